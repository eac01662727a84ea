// All panels of one engine: Time, Memory, Text, Numbers.

import { el, say } from "inspector/dom";
import { legendOf, marksOf, pagesOf } from "inspector/marks";
import { Memory, newest } from "inspector/memory";
import { Numbers } from "inspector/numbers";
import { Text } from "inspector/text";
import { Timeline, listen } from "inspector/timeline";

const SLOW_MILLISECONDS = 150; // between two drawings of panels made of elements: no reader is faster
const DRAFT_WORDS = "tinted: accepted draft tokens; struck out: rejected ones";
const MEMORY_WORDS = {
  nothing: "what is kept from one step to the next",
  buffers: "a buffer for the request that runs",
  slots: "a slot of full length for each request",
  pages: "a square is a page; its letter is its owner",
  tree: "a square is a page; a shared one has several owners",
  drafts: "a square is a page; dots: read by the draft model, too",
  fleet: "a square is a page; each worker has its own",
};

// The request that is followed everywhere: chosen with a click in any panel.
class Selection {
  number = null;

  constructor(changed) {
    this.changed = changed;
  }

  select(number) {
    this.number = number;
    this.changed();
  }

  toggle(number) {
    this.select(number === this.number ? null : number);
  }

  // Whether a request is dimmed because another one is followed.
  dims(number) {
    return this.number !== null && this.number !== number;
  }
}

export class EngineView {
  // does: {abort, begin}, as in Text. named: whether there are two, so that each needs its name.
  constructor(store, clock, redraw, does, named) {
    const { kind, name, lesson } = store.hello;
    Object.assign(this, { store, clock });
    this.selection = new Selection(redraw);
    this.timeline = new Timeline(store, clock, this.selection);
    this.memory = new Memory(store, clock, this.selection);
    this.numbers = new Numbers(store, clock);
    this.text = new Text(store, clock, this.selection, redraw, does);
    this.legends = [legendOf(marksOf(kind)), legendOf(pagesOf(kind))];
    this.news = el("p", { class: "news", role: "status" });
    this.under = el("p", { class: "under", "aria-live": "off" });
    const tell = (words) => say(this.under, words);
    listen(this.timeline, { redraw, tell });
    this.memory.listen(tell);
    const about = el("span", { class: "soft" }, ` ${lesson.look}`);
    const [marks, pages] = this.legends.map((legend) => legend.element);
    const rows = "a row for each request, a column for each step";
    const told = kind === "drafts" ? DRAFT_WORDS : "what each request has been told";
    this.element = el(
      "section",
      { class: "engine", "data-kind": kind, "aria-label": name },
      named ? el("h2", { class: "engine-name" }, title(store.hello), about) : null,
      panel("Time", rows, "time", marks, this.timeline.element, this.under),
      panel("Memory", MEMORY_WORDS[kind], "space", pages, this.memory.element, this.news),
      panel("Text", told, "text", this.text.boxes, this.text.element),
      panel("Numbers", "now, and before as a line", "figures", null, this.numbers.element),
    );
    const resized = new ResizeObserver(redraw); // a sentence below a drawing may take its place
    for (const surface of this.element.querySelectorAll(".surface")) resized.observe(surface);
    this.drawn = { canvases: 0, elements: 0, at: 0 }; // versions, and when
  }

  // version: the page raises it with every visible change. Canvases are drawn in each frame that finds a new version.
  draw(now, version) {
    const { drawn } = this;
    if (drawn.canvases !== version) {
      drawn.canvases = version;
      for (const one of [this.timeline, this.memory, ...this.legends]) one.draw();
    }
    if (drawn.elements === version || now - drawn.at < SLOW_MILLISECONDS) return;
    this.drawn = { canvases: version, elements: version, at: now };
    for (const one of [this.text, this.numbers, this.memory.tree]) one?.draw();
    const { text, isLoss } = newest(this.store, this.clock.of(this.store), this.clock.speed);
    say(this.news, text);
    this.news.classList.toggle("loss", isLoss);
  }
}

export function title(hello) {
  const number = /^\d+/.exec(hello.name)?.[0];
  return number ? `${number} ${hello.lesson.title}` : hello.name;
}

function panel(name, words, place, legend, ...content) {
  const heading = el("h3", {}, name, el("span", { class: "soft" }, ` ${words}`));
  return el("div", { class: `panel ${place}` }, el("div", { class: "panel-head" }, heading, legend), ...content);
}
