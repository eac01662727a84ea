// What the marks mean: drawn by the functions that draw them, and only those that this stage has.

import { el, frame, surface } from "inspector/dom";
import { PHASES, colour, inks, mark } from "inspector/marks";

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
  free: (context) => frame(context, inks().line, 0, 0, 15, 15),
  "filled in part": (context) => square(context, [colour(0), 6]),
  full: (context) => square(context, [colour(0), 15]),
  "shared by two": (context) => square(context, [colour(0), 7.5], [colour(1), 7.5]),
  cached: (context) => mark(context, "cached", inks().soft, 0, 0, 15, 15),
  "preempted: given back": (context) => mark(context, "preempted", "", 0, 0, 15, 15),
};

// The marks of the timeline: [words, function that draws one, width, height].
export function marksOf(kind) {
  return MARKS[kind].map((phase) => {
    const words = kind === "nothing" && phase === "again" ? "the whole sequence is run" : PHASES[phase];
    return [words, (context) => mark(context, phase, colour(0), 0, 0, 20, 12), 20, 12];
  });
}

// One page of the pool, as the map draws it, beside what its parts mean.
export function pagesOf(kind) {
  const pooled = ["pages", "tree", "drafts"].includes(kind) ? Object.entries(SQUARES) : [];
  const shared = ["shared by two", "cached"];
  const mine = kind === "pages" ? pooled.filter(([name]) => !shared.includes(name)) : pooled;
  return mine.map(([name, draw]) => [name, draw, 15, 15]);
}

function square(context, ...parts) {
  let x = 0;
  for (const [hex, width] of parts) {
    context.fillStyle = hex;
    context.fillRect(x, 0, width, 15);
    x += width;
  }
  frame(context, parts[0][0], 0, 0, 15, 15);
}

export class Legend {
  constructor(items) {
    this.items = items.map((item) => [el("canvas", { "aria-hidden": "true" }), ...item]);
    const rows = this.items.map(([canvas, words]) => el("li", {}, canvas, words));
    this.element = el("ul", { class: "legend", "aria-label": "marks", hidden: !rows.length }, ...rows);
  }

  draw() {
    for (const [canvas, , draw, width, height] of this.items) draw(surface(canvas, width, height));
  }
}
