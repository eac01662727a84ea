// The visual language of the page. A colour and a letter tell the request; a texture tells what it is. The colours are
// in style.css. The store gives each request the colour that the fewest others have; its letter is its own.

import { block, el, frame, surface } from "inspector/dom";

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
  const ground = phase === "cached" ? named.paper : tint(hex, phase === "again" ? 0.42 : 0.24);
  block(context, ground, 0, 0, size, size);
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
    context.globalAlpha = 0.55;
    block(context, phase === "waiting" ? named.soft : hex, x, y + height / 2 - 0.75, width, 1.5);
    context.globalAlpha = 1;
  } else if (phase === "travel") {
    for (let dash = 0; dash < width; dash += 7)
      block(context, hex, x + dash, y + height / 2 - 1, Math.min(4, width - dash), 2);
  } else if (phase === "preempted") {
    const side = Math.min(10, height - 2);
    const [left, top] = [x + (width - side) / 2, y + (height - side) / 2];
    context.strokeStyle = named.alert;
    context.lineWidth = 2.2;
    context.stroke(new Path2D(`M${left} ${top}l${side} ${side}m0 ${-side}l${-side} ${side}`));
  } else if (phase === "rejected") frame(context, hex, x, y, width, height);
  else {
    block(context, fill(context, phase, hex), x, y, width, height);
    if (phase === "cached") frame(context, hex, x, y, width, height);
  }
}

// The legend: the same functions draw its marks, and only those that this stage has.

const MARKS = {
  nothing: ["waiting", "again"],
  buffers: ["waiting", "prefill", "decode"],
  slots: ["waiting", "prefill", "decode"],
  pages: ["waiting", "prefill", "decode", "preempted", "again"],
  tree: ["waiting", "cached", "prefill", "decode", "preempted", "again"],
  drafts: ["waiting", "prefill", "decode", "accepted", "rejected", "preempted", "again"],
  fleet: ["waiting", "prefill", "travel", "decode", "elsewhere", "again"],
};
const SQUARES = {
  free: (context) => frame(context, named.line, 0, 0, 15, 15),
  "filled in part": (context) => square(context, [colour(0), 6]),
  full: (context) => square(context, [colour(0), 15]),
  "shared by two": (context) => square(context, [colour(0), 7.5], [colour(1), 7.5]),
  cached: (context) => mark(context, "cached", named.soft, 0, 0, 15, 15),
  "preempted: given back": (context) => mark(context, "preempted", "", 0, 0, 15, 15),
};

// The marks of the timeline: [words, function that draws one, width, height].
export function marksOf(kind) {
  return MARKS[kind].map((phase) => {
    const words = kind === "nothing" && phase === "again" ? "the whole sequence is run" : PHASES[phase];
    return [words, (context) => mark(context, phase, colour(0), 0, 0, 20, 12), 20, 12];
  });
}

// The marks of the map of pages, in the same form.
export function pagesOf(kind) {
  const pooled = ["pages", "tree", "drafts"].includes(kind) ? Object.entries(SQUARES) : [];
  const shared = ["shared by two", "cached"];
  const mine = kind === "pages" ? pooled.filter(([name]) => !shared.includes(name)) : pooled;
  return mine.map(([name, draw]) => [name, draw, 15, 15]);
}

function square(context, ...parts) {
  let x = 0;
  for (const [hex, width] of parts) {
    block(context, hex, x, 0, width, 15);
    x += width;
  }
  frame(context, parts[0][0], 0, 0, 15, 15);
}

export function legendOf(items) {
  const drawn = items.map((item) => [el("canvas", { "aria-hidden": "true" }), ...item]);
  const rows = drawn.map(([canvas, words]) => el("li", {}, canvas, words));
  const element = el("ul", { class: "legend", "aria-label": "marks", hidden: !rows.length }, ...rows);
  const draw = () => drawn.forEach(([canvas, , draw, width, height]) => draw(surface(canvas, width, height)));
  return { element, draw };
}
