// Text: each answer as it grows. On demand a box for each token; in stage 07 the boxes say whether it comes from the
// target or the drafter, and under them stand the draft tokens that were rejected.

import { count, el, milliseconds, say } from "inspector/dom";
import { badge } from "inspector/memory_tree";
import { colour } from "inspector/marks";

const MOST_CARDS = 14;
const MOST_BOXES = 64; // tokens of one answer that are drawn as boxes, the last ones; all of a followed answer's
const MOST_CHARACTERS = 4000; // likewise
const STATES = {
  arriving: "not here yet",
  waiting: "waits",
  running: "running",
  preempted: "preempted, waits",
  stop: "ended",
  length: "ended at max_tokens",
  abort: "aborted",
  error: "failed",
};

export class Text {
  // abort: takes a request's id. begin: sends the lesson's first preset. Both are null where nothing can be sent.
  constructor(store, clock, selection, { abort, begin, options }) {
    this.store = store;
    this.clock = clock;
    this.selection = selection;
    this.abort = abort;
    this.options = options;
    this.cards = new Map();
    this.element = el("div", { class: "cards", role: "list", "aria-label": "answers" });
    const { name } = store.hello.lesson.presets[0];
    const start = el("button", { type: "button", class: "primary", onclick: begin }, `Send: ${name}`);
    this.empty = el("p", { class: "soft" }, "No request yet. ", begin ? start : null);
  }

  draw() {
    const time = this.clock.of(this.store);
    const moment = this.store.at(time);
    if (!moment) return;
    const shown = this.choose(moment, time);
    for (const [number, card] of this.cards) {
      if (!shown.some((request) => request.n === number)) {
        card.element.remove();
        this.cards.delete(number);
      }
    }
    shown.forEach((request, at) => {
      const card = this.cards.get(request.n) ?? this.make(request);
      if (this.element.children[at] !== card.element)
        this.element.insertBefore(card.element, this.element.children[at] ?? null);
      this.fill(card, request, moment, time);
    });
    if (!shown.length) this.element.replaceChildren(this.empty);
    else this.empty.remove();
  }

  // The chosen one, then those that run, those that wait, and those that have just ended.
  choose(moment, time) {
    const all = [...this.store.requests.values()].filter(
      (request) => request.arrived !== null && request.arrived <= time,
    );
    const rank = (request) => {
      if (request.n === this.selection.number) return -1;
      const place = moment.running.indexOf(request.n);
      if (place >= 0) return place;
      const queued = moment.waiting.indexOf(request.n);
      if (queued >= 0) return 1000 + queued;
      return 1e6 + time - (request.finished ?? time);
    };
    return all.sort((a, b) => rank(a) - rank(b)).slice(0, MOST_CARDS);
  }

  make(request) {
    const card = {
      prompt: el("span", { class: "prompt" }),
      state: el("span", { class: "state" }),
      answer: el("p", { class: "answer" }, el("span", { class: "words" })),
      stop: el(
        "button",
        { class: "quiet", title: `abort ${request.letter}`, onclick: () => this.abort(request.id) },
        "Abort",
      ),
      drawn: "",
    };
    const pick = () => this.selection.toggle(request.n);
    const name = el(
      "button",
      { class: "name", title: `follow ${request.letter} everywhere`, onclick: pick },
      badge(request),
    );
    card.element = el(
      "article",
      { class: "card", role: "listitem", "data-request": request.n },
      el("header", {}, name, card.prompt, card.state, this.abort ? card.stop : null),
      card.answer,
    );
    card.element.style.setProperty("--of", colour(request.hue));
    this.cards.set(request.n, card);
    return card;
  }

  fill(card, request, moment, time) {
    const state = request.stateAt(moment, time, this.store.columnAt(time));
    const tokens = request.tokensAt(time);
    const isChosen = this.selection.number === request.n;
    const ends = ["stop", "length", "abort", "error"].includes(state);
    card.element.classList.toggle("chosen", isChosen);
    card.element.classList.toggle("dim", this.selection.dims(request.n));
    card.element.dataset.state = state;
    card.element.style.setProperty("--of", colour(request.hue));
    card.element.querySelector(".badge").style.setProperty("--of", colour(request.hue));
    card.stop.hidden = ends;
    say(card.prompt, request.prompt);
    say(card.state, this.stateWords(request, state, tokens));
    const wantsBoxes = this.options.boxes;
    const key = `${wantsBoxes} ${isChosen} ${tokens} ${request.text.length} ${state}`;
    if (card.drawn === key) return;
    card.drawn = key;
    const [words] = card.answer.children;
    if (wantsBoxes)
      words.replaceChildren(...this.boxes(request, isChosen ? 0 : Math.max(0, tokens - MOST_BOXES), tokens));
    else {
      const text = request.textAt(time);
      words.textContent = isChosen || text.length <= MOST_CHARACTERS ? text : `… ${text.slice(-MOST_CHARACTERS)}`;
    }
    card.answer.hidden = !tokens;
    card.answer.classList.toggle("boxes", wantsBoxes);
  }

  stateWords(request, state, tokens) {
    const parts = [STATES[state]];
    if (request.cached) parts.push(`${count(request.cached)} of ${count(request.promptTokens)} cached`);
    parts.push(`${count(tokens)} of ${count(request.maxTokens)} tokens`);
    if (tokens) parts.push(`first after ${milliseconds(1000 * request.firstToken)}`);
    if (tokens > 1) parts.push(`${milliseconds(1000 * request.perToken)} each`);
    return parts.join(" · ");
  }

  boxes(request, from, to) {
    const boxes = request.tokens.slice(from, to).map((token) => {
      const box = el("span", { class: `token ${token.from}` }, this.word(token.id));
      if (token.from === "draft") box.title = "a draft token that the model accepted";
      const wrong = token.drafted?.draftTokens.slice(token.drafted.accepted) ?? [];
      if (!wrong.length) return box;
      const words = wrong.map((id) => this.word(id)).join("");
      return el(
        "span",
        { class: "pair" },
        box,
        el("s", { title: `“${words}”: a draft token that the model rejected` }, words),
      );
    });
    return from ? ["… ", ...boxes] : boxes;
  }

  word(id) {
    return (this.store.words.get(id) ?? `#${id}`).replace(/\n/g, "⏎");
  }
}
