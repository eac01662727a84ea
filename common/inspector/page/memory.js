// Memory: what the stage has. Each kind of memory has a drawing of its own; this panel holds it and a line of sums.

import { el, point, room, say, surface } from "inspector/dom";
import { drawFleet } from "inspector/memory_fleet";
import { drawPages } from "inspector/memory_pages";
import { drawSlots } from "inspector/memory_slots";
import { drawTokens } from "inspector/memory_tokens";
import { Tree } from "inspector/memory_tree";

const DRAWINGS = { nothing: drawTokens, buffers: drawTokens, slots: drawSlots, fleet: drawFleet };

export class Memory {
  constructor(store, clock, selection) {
    Object.assign(this, { store, clock, selection });
    const { kind } = store.hello;
    this.drawing = DRAWINGS[kind] ?? drawPages;
    this.sums = el("p", { class: "sums" });
    this.canvas = el("canvas", { class: "memory", role: "img" });
    this.surface = el("div", { class: "surface" }, this.canvas);
    this.tree = ["tree", "drafts"].includes(kind) ? new Tree(store, clock, selection) : null;
    this.element = el("div", { class: "memory-body" }, this.sums, this.surface, this.tree?.element);
    this.layout = null; // of the last drawing: {sums, at(x, y): {words, owner}, what that is}
  }

  draw() {
    const { store, clock, selection } = this;
    const time = clock.of(store);
    const moment = store.at(time);
    const [width, height] = room(this.surface);
    if (!moment || width < 60 || height < 40) return;
    const context = surface(this.canvas, width, height);
    this.layout = this.drawing({ context, width, height, store, moment, time, speed: clock.speed, selection });
    say(this.sums, this.layout.sums);
    if (this.canvas.getAttribute("aria-label") !== this.layout.sums)
      this.canvas.setAttribute("aria-label", this.layout.sums);
  }

  listen(tell) {
    const under = (event) => this.layout?.at?.(...point(event));
    this.canvas.addEventListener("pointermove", (event) => tell(under(event)?.words ?? ""));
    this.canvas.addEventListener("pointerleave", () => tell(""));
    this.canvas.addEventListener("click", (event) => this.selection.toggle(under(event)?.owner ?? null));
  }
}
