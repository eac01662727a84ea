// All panels of one engine: Time, Memory, Text, Numbers.

import { el, say } from "inspector/dom";
import { Legend, PageLegend } from "inspector/legend";
import { Memory } from "inspector/memory";
import { newest } from "inspector/news";
import { Numbers } from "inspector/numbers";
import { Selection } from "inspector/selection";
import { Text } from "inspector/text";
import { Timeline } from "inspector/timeline";
import { listen } from "inspector/timeline_input";

const SLOW_MILLISECONDS = 150; // between two drawings of a panel that is made of elements: no one reads faster

export class EngineView {
  // abort, begin: as in Text. options: shared by all engines of the page.
  constructor(store, clock, { abort, begin, options, redraw, named }) {
    this.store = store;
    this.clock = clock;
    const kind = store.hello.kind;
    this.selection = new Selection(redraw);
    this.timeline = new Timeline(store, clock, this.selection);
    this.memory = new Memory(store, clock, this.selection);
    this.numbers = new Numbers(store, clock);
    this.text = new Text(store, clock, this.selection, { abort, begin, options });
    this.legend = new Legend(kind);
    this.pageLegend = ["pages", "tree", "drafts"].includes(kind) ? new PageLegend(kind) : null;
    this.news = el("p", { class: "news", role: "status" });
    this.under = el("p", { class: "under", "aria-live": "off" });
    const tell = (words) => say(this.under, words);
    listen(this.timeline, { redraw, tell });
    this.memory.listen(tell);
    this.element = el(
      "section",
      { class: "engine", "data-kind": kind, "aria-label": store.hello.name },
      named
        ? el(
            "h2",
            { class: "engine-name" },
            title(store.hello),
            el("span", { class: "soft" }, ` ${store.hello.lesson.look}`),
          )
        : null,
      panel(
        "Time",
        "a row for each request, a column for each step",
        "time",
        this.legend.element,
        this.timeline.element,
        this.under,
      ),
      panel("Memory", MEMORY_WORDS[kind], "space", this.pageLegend?.element, this.memory.element, this.news),
      panel(
        "Text",
        kind === "drafts" ? DRAFT_WORDS : "what each request has been told",
        "text",
        options.element?.(),
        this.text.element,
      ),
      panel("Numbers", "now, and before as a line", "figures", null, this.numbers.element),
    );
    const resized = new ResizeObserver(redraw); // a sentence below a drawing may take its place
    for (const { element } of [this.timeline, this.memory])
      resized.observe(element.querySelector("canvas").parentElement);
    this.canvases = 0; // the version that they show
    this.slow = [this.text, this.numbers, this.memory.tree, { draw: () => this.tellNews() }]
      .filter(Boolean)
      .map((panel) => ({ panel, version: 0, drawn: 0 }));
  }

  // version: of all that can be seen, counted by the page. Canvases are drawn in each frame in which it is another one.
  // Of the panels made of elements a frame draws one at most, so that no frame is long.
  draw(now, version) {
    if (this.canvases !== version) {
      this.canvases = version;
      this.timeline.draw();
      this.memory.draw();
      this.legend.draw();
      this.pageLegend?.draw();
    }
    const due = this.slow.filter((one) => one.version !== version && now - one.drawn >= SLOW_MILLISECONDS);
    const next = due.sort((a, b) => a.drawn - b.drawn)[0];
    if (!next) return;
    const isAll = next.panel.draw() !== false; // false: it goes on in its next turn
    Object.assign(next, { version: isAll ? version : 0, drawn: now });
  }

  tellNews() {
    const words = newest(this.store, this.clock.of(this.store), this.clock.speed);
    say(this.news, words.text);
    this.news.classList.toggle("loss", words.isLoss);
  }
}

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

export function title(hello) {
  const number = /^\d+/.exec(hello.name)?.[0];
  return number ? `${number} ${hello.lesson.title}` : hello.name;
}

function panel(name, words, place, legend, ...content) {
  const heading = el("h3", {}, name, el("span", { class: "soft" }, ` ${words}`));
  return el(
    "div",
    { class: `panel ${place}`, "data-panel": name.toLowerCase() },
    el("div", { class: "panel-head" }, heading, legend),
    ...content,
  );
}
