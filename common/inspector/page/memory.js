// Memory: what the stage has. Each kind of memory has a drawing of its own; this panel holds it and a line of sums.

import { count, el, point, room, say, surface } from "inspector/dom";
import { drawFleet } from "inspector/memory_fleet";
import { drawPages } from "inspector/memory_pages";
import { drawSlots, drawTokens } from "inspector/memory_rows";
import { Tree } from "inspector/memory_tree";

const DRAWINGS = { nothing: drawTokens, buffers: drawTokens, slots: drawSlots, fleet: drawFleet };
const FRESH_SECONDS = 4; // of the reader’s: how long a sentence stays
const NOTHING = { text: "", isLoss: false };

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
    this.layout = null; // of the last drawing: {sums, at}; at(x, y) returns {words, owner} of what is there
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
    this.canvas.setAttribute("aria-label", this.layout.sums);
  }

  listen(tell) {
    const under = (event) => this.layout?.at?.(...point(event));
    this.canvas.addEventListener("pointermove", (event) => tell(under(event)?.words ?? ""));
    this.canvas.addEventListener("pointerleave", () => tell(""));
    this.canvas.addEventListener("click", (event) => this.selection.toggle(under(event)?.owner ?? null));
  }
}

// What has just happened, in one sentence: the newest preemption, loss of a worker, or prompt found in the cache.
// speed: engine’s seconds in one of the reader’s.
export function newest(store, time, speed) {
  const since = time - FRESH_SECONDS * speed;
  const moment = store.at(time);
  if (!moment) return NOTHING;
  const step = store.steps.findLast(({ e, preempted }) => e > since && e <= time && preempted?.length);
  if (step) return { text: preemption(store, step), isLoss: true };
  const lost = lossWords(store, moment, since);
  if (lost) return { text: lost, isLoss: true };
  const started = (request) => store.step(request.columns[0])?.s ?? -1;
  const hit = [...store.requests.values()].findLast(
    (request) => request.cached && started(request) > since && started(request) <= time,
  );
  if (!hit) return NOTHING;
  const found = `${count(hit.cached)} of its ${count(hit.promptTokens)} prompt tokens`;
  return { text: `${hit.letter} found ${found} cached: they were not run.`, isLoss: false };
}

function preemption(store, step) {
  const held = (number) => store.at(step.s - 1e-4)?.memory.pages.get(number)?.length;
  const pages = (number) => (held(number) ? ` (${held(number)} pages)` : ""); // "" if no look saw them
  const each = step.preempted.map((number) => store.request(number).letter + pages(number));
  const [were, its, runs] = each.length > 1 ? ["were", "they give their", "run"] : ["was", "it gives its", "runs"];
  const who = `The youngest, ${each.join(" and ")}, ${were} preempted`;
  return `Step ${count(step.i)}: no page was free. ${who}: ${its} pages back and ${runs} again later.`;
}

function lossWords(store, moment, since) {
  const before = store.at(since);
  const lost = (moment.stats.workers_lost ?? 0) - (before.stats.workers_lost ?? 0);
  const resumed = (moment.stats.requests_resumed ?? 0) - (before.stats.requests_resumed ?? 0);
  if (lost <= 0) return "";
  const again = resumed === 1 ? "1 request was" : `${count(resumed)} requests were`;
  return `A worker died. ${again} begun again elsewhere, from the tokens that clients have.`;
}
