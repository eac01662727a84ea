// Memory: what the stage has. Each kind of memory has a drawing of its own; this panel holds it and a line of sums.

import { el, point, room, say, surface } from "inspector/dom";
import { drawFleet } from "inspector/memory_fleet";
import { drawPages } from "inspector/memory_pages";
import { drawSlots } from "inspector/memory_slots";
import { drawTokens } from "inspector/memory_tokens";
import { Tree } from "inspector/memory_tree";

const DRAWINGS = {
  nothing: drawTokens,
  buffers: drawTokens,
  slots: drawSlots,
  pages: drawPages,
  tree: drawPages,
  drafts: drawPages,
  fleet: drawFleet,
};

export class Memory {
  constructor(store, clock, selection) {
    this.store = store;
    this.clock = clock;
    this.selection = selection;
    this.sums = el("p", { class: "sums" });
    this.canvas = el("canvas", { class: "memory", role: "img" });
    this.surface = el("div", { class: "surface" }, this.canvas);
    this.tree = ["tree", "drafts"].includes(store.hello.kind) ? new Tree(store, clock, selection) : null;
    this.element = el("div", { class: "memory-body" }, this.sums, this.surface, this.tree?.element);
    this.layout = null;
  }

  draw() {
    const time = this.clock.of(this.store);
    const moment = this.store.at(time);
    const [width, height] = room(this.surface);
    if (!moment || width < 60 || height < 40) return;
    const context = surface(this.canvas, width, height);
    const scene = {
      context,
      width,
      height,
      store: this.store,
      moment,
      time,
      speed: this.clock.speed,
      selection: this.selection,
    };
    this.layout = DRAWINGS[this.store.hello.kind](scene);
    say(this.sums, this.layout.sums);
    if (this.canvas.getAttribute("aria-label") !== this.layout.sums)
      this.canvas.setAttribute("aria-label", this.layout.sums);
  }

  listen(tell) {
    this.canvas.addEventListener("pointermove", (event) => tell(this.under(event)?.words ?? ""));
    this.canvas.addEventListener("pointerleave", () => tell(""));
    this.canvas.addEventListener("click", (event) => this.selection.toggle(this.under(event)?.owner ?? null));
  }

  // What lies under the pointer: {words, owner: a request's number or undefined}, or nothing.
  under(event) {
    return this.layout?.at?.(...point(event));
  }
}
