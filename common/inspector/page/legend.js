// What the marks mean: drawn by the function that draws them, and only those that this stage has.

import { el, surface, unit } from "inspector/dom";
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
const WORDS = { nothing: { again: "the whole sequence is run" } };

export class Legend {
  constructor(kind) {
    this.kind = kind;
    this.swatches = MARKS[kind].map((phase) => [phase, el("canvas", { "aria-hidden": "true" })]);
    const items = this.swatches.map(([phase, canvas]) => el("li", {}, canvas, WORDS[kind]?.[phase] ?? PHASES[phase]));
    this.element = el("ul", { class: "legend", "aria-label": "marks" }, ...items);
  }

  draw() {
    if (!isNew(this)) return;
    for (const [phase, canvas] of this.swatches) {
      mark(surface(canvas, 20, 12), phase, phase === "waiting" ? inks().soft : colour(0), 0, 0, 20, 12);
    }
  }
}

// One page of the pool, as the map draws it, beside what its parts mean.
export class PageLegend {
  constructor(kind) {
    const names = ["free", "filled in part", "full"];
    if (kind !== "pages") names.push("shared by two", "cached");
    this.swatches = names.map((name) => [name, el("canvas", { "aria-hidden": "true" })]);
    this.element = el("ul", { class: "legend" }, ...this.swatches.map(([name, canvas]) => el("li", {}, canvas, name)));
  }

  draw() {
    if (!isNew(this)) return;
    for (const [name, canvas] of this.swatches) {
      const context = surface(canvas, 15, 15);
      const hex = colour(0);
      if (name === "cached") mark(context, "cached", inks().soft, 0, 0, 15, 15);
      else if (name === "free") {
        context.strokeStyle = inks().line;
        context.strokeRect(0.5, 0.5, 14, 14);
      } else {
        context.strokeStyle = hex;
        context.strokeRect(0.5, 0.5, 14, 14);
        context.fillStyle = hex;
        context.fillRect(0, 0, name === "full" ? 15 : name === "shared by two" ? 7.5 : 6, 15);
        if (name === "shared by two") {
          context.fillStyle = colour(1);
          context.fillRect(7.5, 0, 7.5, 15);
        }
      }
    }
  }
}

// Whether theme or size of type have changed since a legend was drawn.
function isNew(legend) {
  const look = [inks(), unit()];
  if (legend.look?.every((one, at) => one === look[at])) return false;
  legend.look = look;
  return true;
}
