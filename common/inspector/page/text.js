// Text: each answer as it grows. On demand a box for each token; in stage 07 the boxes say whether it comes from the
// target or the drafter, and under them stand the draft tokens that were rejected.

import { button, count, el, milliseconds, say } from "inspector/dom";
import { badge } from "inspector/memory_tree";
import { colour } from "inspector/marks";

const MAX_CARDS = 14;
const MAX_BOXES = 64; // of one answer: its last tokens; a followed answer shows all
const MAX_CHARACTERS = 4000; // likewise
const STATES = {
  waiting: "waits",
  running: "running",
  preempted: "preempted, waits",
  stop: "ended",
  length: "ended at max_tokens",
  abort: "aborted",
  error: "failed",
};

export class Text {
  // abort: takes a request's id. begin: sends the lesson's first preset. A recording has neither.
  constructor(store, clock, selection, redraw, { abort, begin }) {
    Object.assign(this, { store, clock, selection, abort });
    this.cards = new Map();
    this.element = el("div", { class: "cards", role: "list", "aria-label": "answers" });
    // Lesson 07 begins with boxes: they show whether a token comes from the target or the drafter.
    const checked = store.hello.kind === "drafts";
    this.box = el("input", { type: "checkbox", checked, class: "boxes-switch", onchange: redraw });
    this.boxes = el("label", { class: "legend" }, this.box, " tokens as boxes");
    const { name } = store.hello.lesson.presets[0];
    const start = begin ? button(`Send: ${name}`, begin, { class: "primary" }) : null;
    this.empty = el("p", { class: "soft" }, "No request yet. ", start);
  }

  draw() {
    const time = this.clock.of(this.store);
    const moment = this.store.at(time);
    if (!moment) return;
    const shown = this.choose(moment, time);
    this.cards = new Map(shown.map((request) => [request, this.cards.get(request) ?? this.make(request)]));
    for (const [request, card] of this.cards) this.fill(card, request, moment, time);
    const elements = shown.length ? [...this.cards.values()].map((card) => card.element) : [this.empty];
    const before = [...this.element.children];
    const isSame = elements.length === before.length && elements.every((one, at) => one === before[at]);
    if (!isSame) this.element.replaceChildren(...elements); // Otherwise the focus stays where it is.
  }

  // The chosen one, then those that run, those that wait, and those that have just ended.
  choose(moment, time) {
    const order = [...moment.running, ...moment.waiting];
    const rank = ({ n, finished }) => {
      if (n === this.selection.number) return -1;
      const place = order.indexOf(n);
      return place >= 0 ? place : 1e6 + time - (finished ?? time);
    };
    const all = [...this.store.requests.values()].filter(({ arrived }) => arrived !== null && arrived <= time);
    return all.sort((a, b) => rank(a) - rank(b)).slice(0, MAX_CARDS);
  }

  make(request) {
    const { n, id, letter } = request;
    const [prompt, state] = ["prompt", "state"].map((name) => el("span", { class: name }));
    const words = el("span", { class: "words" });
    const answer = el("p", { class: "answer" }, words);
    const pick = { class: "name", title: `follow ${letter} everywhere` };
    const name = button("", () => this.selection.toggle(n), pick);
    name.append(badge(request));
    const stop = button("Abort", () => this.abort(id), { class: "quiet", title: `abort ${letter}` });
    const header = el("header", {}, name, prompt, state, this.abort ? stop : null);
    const element = el("article", { class: "card", role: "listitem", "data-request": n }, header, answer);
    return { element, prompt, state, answer, words, stop, drawn: "" };
  }

  fill(card, request, moment, time) {
    const state = request.stateAt(moment, time, this.store.columnAt(time));
    const tokens = request.tokensAt(time);
    const isChosen = this.selection.number === request.n;
    const { element, answer, words } = card;
    element.classList.toggle("chosen", isChosen);
    element.classList.toggle("dim", this.selection.dims(request.n));
    element.dataset.state = state;
    for (const one of [element, element.querySelector(".badge")]) one.style.setProperty("--of", colour(request.hue));
    card.stop.hidden = ["stop", "length", "abort", "error"].includes(state);
    say(card.prompt, request.prompt);
    say(card.state, this.stateWords(request, state, tokens));
    const isBoxes = this.box.checked;
    const key = `${isBoxes} ${isChosen} ${tokens} ${request.text.length} ${state}`;
    if (card.drawn === key) return;
    card.drawn = key;
    answer.hidden = !tokens;
    answer.classList.toggle("boxes", isBoxes);
    if (isBoxes) {
      const from = isChosen ? 0 : Math.max(0, tokens - MAX_BOXES);
      words.replaceChildren(from ? "… " : "", ...request.tokens.slice(from, tokens).map((token) => this.token(token)));
    } else {
      const text = request.textAt(time).replace(/\n\n+/g, "\n"); // an empty line would be half of a small card
      words.textContent = isChosen || text.length <= MAX_CHARACTERS ? text : `… ${text.slice(-MAX_CHARACTERS)}`;
    }
  }

  stateWords(request, state, tokens) {
    const parts = [STATES[state]];
    if (request.cached) parts.push(`${count(request.cached)} of ${count(request.promptTokens)} cached`);
    parts.push(`${count(tokens)} of ${count(request.maxTokens)} tokens`);
    if (tokens) parts.push(`first after ${milliseconds(1000 * request.firstToken)}`);
    if (tokens > 1) parts.push(`${milliseconds(1000 * request.perToken)} each`);
    return parts.join(" · ");
  }

  token({ id, from, drafted }) {
    const title = from === "draft" ? "a draft token that the model accepted" : null;
    const box = el("span", { class: `token ${from}`, title }, this.word(id));
    const wrong = drafted?.draftTokens.slice(drafted.accepted) ?? [];
    if (!wrong.length) return box;
    const words = wrong.map((one) => this.word(one)).join("");
    const rejected = el("s", { title: `“${words}”: a draft token that the model rejected` }, words);
    return el("span", { class: "pair" }, box, rejected);
  }

  word(id) {
    return (this.store.words.get(id) ?? `#${id}`).replace(/\n/g, "⏎");
  }
}
