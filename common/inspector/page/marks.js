// The page's one visual language. A colour and a letter say whose something is; a texture says what it is. The colours
// are in style.css. The store gives each request the one that the fewest beside it have; its letter is its own.

import { frame } from "inspector/dom";

export const PHASES = {
  waiting: "waits",
  prefill: "prefill: the prompt",
  cached: "cached: not run",
  decode: "decode: one token",
  again: "run again",
  accepted: "draft token accepted",
  rejected: "draft token rejected",
  preempted: "preempted",
  travel: "its pages travel",
  elsewhere: "the other worker’s step",
};
export const COLOURS = 12;
const INKS = ["paper", "ink", "soft", "line", "faint", "alert", "on"];

let colours = [];
let named = {};
let patterns = new Map();

// theme: "light" or "dark". What is drawn takes its colours from the page's styles.
export function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const style = getComputedStyle(document.documentElement);
  named = Object.fromEntries(INKS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  colours = style.getPropertyValue("--requests").trim().split(/\s+/);
  patterns = new Map();
}

export const inks = () => named;
export const colour = (hue) => colours[hue];

export function letter(number) {
  const round = Math.floor(number / 26);
  return String.fromCharCode(65 + (number % 26)) + (round ? String(round + 1) : "");
}

// A colour mixed with the paper: share 1 is the colour itself.
export function tint(hex, share) {
  const mixed = [1, 3, 5].map((at) => {
    const [a, b] = [hex, named.paper].map((one) => parseInt(one.slice(at, at + 2), 16));
    return Math.round(a * share + b * (1 - share));
  });
  return `rgb(${mixed.join()})`;
}

// A fill for the texture of a phase in a request's colour.
export function fill(context, phase, hex) {
  if (phase === "decode") return hex;
  if (phase === "accepted") return tint(hex, 0.55);
  const key = `${phase} ${hex}`;
  if (!patterns.has(key)) patterns.set(key, context.createPattern(tile(phase, hex), "repeat"));
  return patterns.get(key);
}

// Dots for what is cached, lines for a prompt, crossed lines for what is run again.
function tile(phase, hex) {
  const size = phase === "cached" ? 10 : 12;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  context.fillStyle = phase === "cached" ? named.paper : tint(hex, phase === "again" ? 0.42 : 0.24);
  context.fillRect(0, 0, size, size);
  context.strokeStyle = context.fillStyle = hex;
  context.lineWidth = phase === "again" ? 2 : 2.6;
  context.beginPath();
  if (phase === "cached") {
    context.arc(size / 2, size / 2, 2.2, 0, 7);
    context.fill();
    return canvas;
  }
  for (const shift of [-size, 0, size]) {
    context.moveTo(shift - 2, size + 2);
    context.lineTo(shift + size + 2, -2);
    if (phase !== "again") continue;
    context.moveTo(shift - 2, -2);
    context.lineTo(shift + size + 2, size + 2);
  }
  context.stroke();
  return canvas;
}

// One mark of a phase in a rectangle. The same function draws the legend, so the two cannot differ.
export function mark(context, phase, hex, x, y, width, height) {
  if (phase === "waiting" || phase === "elsewhere") {
    context.fillStyle = phase === "waiting" ? named.soft : hex;
    context.globalAlpha = 0.55;
    context.fillRect(x, y + height / 2 - 0.75, width, 1.5);
    context.globalAlpha = 1;
  } else if (phase === "travel") {
    context.fillStyle = hex;
    for (let dash = 0; dash < width; dash += 7)
      context.fillRect(x + dash, y + height / 2 - 1, Math.min(4, width - dash), 2);
  } else if (phase === "preempted") {
    const half = Math.min(5, height / 2 - 1);
    const [cx, cy] = [x + width / 2, y + height / 2];
    context.strokeStyle = named.alert;
    context.lineWidth = 2.2;
    context.beginPath();
    for (const slope of [1, -1]) {
      context.moveTo(cx - half, cy - slope * half);
      context.lineTo(cx + half, cy + slope * half);
    }
    context.stroke();
  } else if (phase === "rejected") frame(context, hex, x, y, width, height);
  else {
    context.fillStyle = fill(context, phase, hex);
    context.fillRect(x, y, width, height);
    if (phase === "cached") frame(context, hex, x, y, width, height);
  }
}
