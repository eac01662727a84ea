// The page's one visual language. A colour and a letter say whose something is; a texture says what it is.
// The store gives each request the colour that the fewest beside it have; the letter (A ... Z, A2, B2 ...) is its own.

const LIGHT = [
  "#2f66ad",
  "#b35c00",
  "#2a7d52",
  "#b03a66",
  "#0e7a88",
  "#6a4cab",
  "#6b7414",
  "#855532",
  "#3a6b8c",
  "#9c3f97",
  "#51606f",
  "#8a6d00",
];
const DARK = [
  "#74a7ea",
  "#f0a355",
  "#67c594",
  "#e884a8",
  "#56c3cf",
  "#ab90e6",
  "#bcc65a",
  "#cf9f7c",
  "#9ac4dd",
  "#dc92d9",
  "#a9b7c6",
  "#e0c14f",
];
const INKS = {
  light: {
    paper: "#ffffff",
    ink: "#1d2126",
    soft: "#69717c",
    line: "#d5d9de",
    faint: "#eceef0",
    alert: "#c02626",
    on: "#ffffff",
  },
  dark: {
    paper: "#1a1d21",
    ink: "#e8eaed",
    soft: "#9aa3ad",
    line: "#3c424a",
    faint: "#272b31",
    alert: "#ff7b72",
    on: "#14171a",
  },
};

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

let theme = "light";
let patterns = new Map();

export function setTheme(name) {
  theme = name;
  patterns = new Map();
}

export const inks = () => INKS[theme];
export const COLOURS = LIGHT.length;
export const colour = (hue) => (theme === "light" ? LIGHT : DARK)[hue % COLOURS];

export function letter(number) {
  const round = Math.floor(number / 26);
  return String.fromCharCode(65 + (number % 26)) + (round ? String(round + 1) : "");
}

// A colour mixed with the paper: share 1 is the colour itself.
export function tint(hex, share) {
  const paper = inks().paper;
  const mixed = [1, 3, 5].map((at) => {
    const [a, b] = [parseInt(hex.slice(at, at + 2), 16), parseInt(paper.slice(at, at + 2), 16)];
    return Math.round(a * share + b * (1 - share))
      .toString(16)
      .padStart(2, "0");
  });
  return `#${mixed.join("")}`;
}

// A fill for the texture of a phase in a request's colour.
export function fill(context, phase, hex) {
  if (phase === "decode") return hex;
  if (phase === "accepted") return tint(hex, 0.55);
  const key = `${phase} ${hex}`;
  if (!patterns.has(key)) patterns.set(key, context.createPattern(tile(phase, hex), "repeat"));
  return patterns.get(key);
}

function tile(phase, hex) {
  const size = phase === "cached" ? 5 : 6;
  const canvas = document.createElement("canvas");
  const scale = 2; // patterns are drawn twice as fine as a CSS pixel, and scaled by `fill`
  canvas.width = canvas.height = size * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = phase === "cached" ? inks().paper : tint(hex, phase === "again" ? 0.42 : 0.24);
  context.fillRect(0, 0, size, size);
  context.strokeStyle = context.fillStyle = hex;
  context.lineWidth = phase === "again" ? 1 : 1.3;
  context.beginPath();
  if (phase === "cached") context.arc(size / 2, size / 2, 1.1, 0, 7);
  for (const shift of phase === "cached" ? [] : [-size, 0, size]) {
    context.moveTo(shift - 1, size + 1);
    context.lineTo(shift + size + 1, -1);
    if (phase === "again") {
      context.moveTo(shift - 1, -1);
      context.lineTo(shift + size + 1, size + 1);
    }
  }
  if (phase === "cached") context.fill();
  else context.stroke();
  return canvas;
}

// One mark of a phase in a rectangle. The same function draws the legend, so the two cannot differ.
export function mark(context, phase, hex, x, y, width, height) {
  const { alert, soft } = inks();
  if (phase === "waiting" || phase === "elsewhere") {
    context.fillStyle = phase === "waiting" ? soft : hex;
    context.globalAlpha = 0.55;
    context.fillRect(x, y + height / 2 - 0.75, width, 1.5);
    context.globalAlpha = 1;
  } else if (phase === "travel") {
    context.strokeStyle = hex;
    context.lineWidth = 2;
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(x, y + height / 2);
    context.lineTo(x + width, y + height / 2);
    context.stroke();
    context.setLineDash([]);
  } else if (phase === "preempted") {
    const half = Math.min(5, height / 2 - 1);
    const [cx, cy] = [x + width / 2, y + height / 2];
    context.strokeStyle = alert;
    context.lineWidth = 2.2;
    context.beginPath();
    context.moveTo(cx - half, cy - half);
    context.lineTo(cx + half, cy + half);
    context.moveTo(cx - half, cy + half);
    context.lineTo(cx + half, cy - half);
    context.stroke();
  } else if (phase === "rejected") {
    context.strokeStyle = hex;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, Math.max(1, width - 1), Math.max(1, height - 1));
  } else {
    context.fillStyle = fill(context, phase, hex);
    context.fillRect(x, y, width, height);
    if (phase === "cached") {
      context.strokeStyle = hex;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, Math.max(1, width - 1), Math.max(1, height - 1));
    }
  }
}
