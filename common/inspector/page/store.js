// What one engine has done, as the updates of view.py tell it. Everything is kept by time, so that a panel can show any
// moment of the past: `at(time)` finds it. Nothing here draws.

import { COLOURS, letter } from "inspector/marks";

const MAX_STEPS = 20000;
const MAX_MOMENTS = 12000;
const MAX_REQUESTS = 4000;

export class Store {
  constructor(hello) {
    this.hello = hello;
    this.now = 0; // seconds on the engine's clock, which began at hello.began
    this.first = 0; // the column of steps[0]
    this.steps = [];
    this.requests = new Map();
    this.moments = []; // where everything was: {t, column, running, waiting, stats, memory}
    this.words = new Map();
    this.hue = -1; // the last one given
  }

  get columns() {
    return this.first + this.steps.length;
  }

  step(column) {
    return this.steps[column - this.first];
  }

  request(number) {
    if (!this.requests.has(number)) this.requests.set(number, new Request(number, this.freeHue()));
    return this.requests.get(number);
  }

  // The colour that the fewest unfinished requests have; of those, the one that was given longest ago.
  freeHue() {
    const taken = new Array(COLOURS).fill(0);
    for (const request of this.requests.values()) {
      // A request without an arrival ended before the page was opened, and is known from old steps only.
      if (request.arrived !== null && request.finished === null) taken[request.hue] += 1;
    }
    const least = Math.min(...taken);
    do this.hue = (this.hue + 1) % COLOURS;
    while (taken[this.hue] > least);
    return this.hue;
  }

  apply(update) {
    this.now = update.now;
    for (const [id, text] of byNumber(update.words)) this.words.set(id, text);
    for (const row of update.requests) this.request(row.n).take(row, update.now);
    for (const step of update.steps) this.takeStep(step);
    this.takeMoment(update);
    this.forget();
  }

  takeStep(step) {
    step.column = this.columns;
    step.tokens = 0;
    step.worker = step.counters?.worker ?? 0;
    this.steps.push(step);
    for (const [number, phase, tokens] of step.works) {
      step.tokens += tokens;
      this.request(number).takeWork(step, phase, tokens);
    }
    for (const [number, ids, accepted] of step.drafts ?? []) this.request(number).takeDraft(step, ids, accepted);
    for (const number of step.preempted ?? []) this.request(number).preemptions.push(step.column);
  }

  takeMoment({ now: t, running, waiting, stats, memory: told, pages, texts }) {
    const before = this.moments.at(-1)?.memory;
    const memory = { ...told };
    for (const name of ["computed", "room", "slot", "shared", "drafted", "flights"])
      memory[name] = byNumber(told[name]);
    // A page table comes when it has changed, and goes when its owner holds nothing.
    const tables = [...(before?.pages ?? []), ...byNumber(pages)];
    memory.pages = new Map(tables.filter(([owner]) => memory.computed.has(owner)));
    memory.tree ??= before?.tree ?? [];
    memory.texts = texts ? new Map([...(before?.texts ?? []), ...byNumber(texts)]) : (before?.texts ?? new Map());
    this.moments.push({ t, column: this.columns, running, waiting, stats, memory });
  }

  // The last moment that is not after this time; the first one if there is none.
  at(time) {
    return this.moments[Math.max(0, upTo(this.moments, time, (moment) => moment.t) - 1)];
  }

  // When this many steps had ended: at the look right after the last of them, if there was one before the next step.
  endOf(column) {
    const moment = this.moments[upTo(this.moments, column - 1, (one) => one.column)];
    const end = this.step(column - 1)?.e ?? 0;
    return moment?.column === column ? Math.max(end, moment.t) : end;
  }

  // The number of steps that had ended at this time.
  columnAt(time) {
    return this.first + upTo(this.steps, time, (step) => step.e);
  }

  // Bounds the memory, however long a page stays open: it drops the oldest quarter at a time.
  forget() {
    if (this.moments.length > MAX_MOMENTS) this.moments.splice(0, MAX_MOMENTS / 4);
    if (this.steps.length > MAX_STEPS) {
      this.steps.splice(0, MAX_STEPS / 4);
      this.first += MAX_STEPS / 4;
    }
    if (this.requests.size > MAX_REQUESTS) {
      const ended = [...this.requests.values()].filter((request) => request.finished !== null);
      for (const request of ended.slice(0, MAX_REQUESTS / 4)) this.requests.delete(request.n);
    }
  }
}

const byNumber = (object) => new Map(Object.entries(object ?? {}).map(([key, value]) => [Number(key), value]));

// The number of entries of an ascending list whose key is not above this value.
function upTo(list, value, key) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// One request as it becomes known: its prompt, its text and tokens with their times, and what each step did for it.
class Request {
  // hue: which of the page's colours it has.
  constructor(number, hue) {
    this.n = number;
    this.hue = hue;
    this.letter = letter(number);
    this.id = "";
    this.prompt = "";
    this.promptTokens = this.maxTokens = this.cached = 0;
    this.arrived = null;
    this.finish = null;
    this.finished = null; // when
    this.text = "";
    this.tokens = []; // {id, t, from: "model" or "draft"}
    this.lengths = []; // [time, length of the text then]
    this.columns = []; // steps that did something for it, ascending
    this.works = []; // for each of them {phase, tokens, accepted, draftTokens, worker, t}
    this.preemptions = []; // columns
    this.handoffs = []; // places in `works` where another worker goes on
  }

  take(row, now) {
    if ("prompt" in row) {
      const { id, prompt, prompt_tokens: promptTokens, max_tokens: maxTokens, arrived } = row;
      Object.assign(this, { id, prompt, promptTokens, maxTokens, arrived });
    }
    for (const [id, t] of row.tokens ?? []) this.tokens.push({ id, t, from: "model" });
    if (row.text) {
      this.text = this.text.slice(0, row.text[0]) + row.text[1];
      this.lengths.push([this.tokens.at(-1)?.t ?? now, this.text.length]);
    }
    if (row.cached) this.cached = row.cached;
    if (row.finish) Object.assign(this, { finish: row.finish, finished: row.finished });
  }

  takeWork(step, phase, tokens) {
    let kind = phase === "recompute" ? "again" : phase;
    // A prefill of what has run before counts as run again: after a preemption, or on another worker.
    if (phase === "prefill" && this.rerun) kind = "again";
    // If another worker begins with a decode, the pages have travelled; with a prefill, it runs them again.
    if (kind === "decode" && this.works.length && this.works.at(-1).worker !== step.worker)
      this.handoffs.push(this.works.length);
    this.columns.push(step.column);
    this.works.push({ phase: kind, tokens, accepted: 0, draftTokens: null, worker: step.worker, t: step.e });
  }

  get rerun() {
    const last = this.works.at(-1);
    return last !== undefined && (this.preemptions.at(-1) > this.columns.at(-1) || last.phase !== "prefill");
  }

  // The step's tokens come after the draft tokens that were accepted: draftTokens[0 .. accepted) are output tokens.
  takeDraft(step, draftTokens, accepted) {
    const work = this.works.at(-1);
    if (!work || this.columns.at(-1) !== step.column) return;
    Object.assign(work, { accepted, draftTokens });
    const mine = this.tokens.filter((token) => token.t >= step.s && token.t <= step.e + 1e-4);
    for (const token of mine.slice(0, accepted)) token.from = "draft";
    if (mine.length) mine[0].drafted = { draftTokens, accepted };
  }

  // The place in `columns` of its first step that is not before this one.
  place(column) {
    return upTo(this.columns, column - 1, (one) => one);
  }

  textAt(time) {
    if (time >= (this.lengths.at(-1)?.[0] ?? 0)) return this.text;
    const known = upTo(this.lengths, time, ([t]) => t);
    return known ? this.text.slice(0, this.lengths[known - 1][1]) : "";
  }

  // The number of output tokens that it had.
  tokensAt(time) {
    return upTo(this.tokens, time, (token) => token.t);
  }

  // "waiting", "running", "preempted" or how it ended. column: how many steps had ended at `time`; many
  // short ones may lie between it and the moment.
  stateAt(moment, time, column) {
    if (this.finished !== null && this.finished <= time) return this.finish;
    const ran = this.place(column);
    const hasRunSince = ran > this.place(moment.column);
    const begin = hasRunSince ? this.columns[ran - 1] : moment.column;
    const gaveWay = this.preemptions.some((step) => step >= begin && step < column);
    if ((hasRunSince || moment.running.includes(this.n)) && !gaveWay) return "running";
    return ran ? "preempted" : "waiting";
  }

  get firstToken() {
    return this.tokens.length && this.arrived !== null ? this.tokens[0].t - this.arrived : null;
  }

  get perToken() {
    const tokens = this.tokens;
    return tokens.length > 1 ? (tokens.at(-1).t - tokens[0].t) / (tokens.length - 1) : null;
  }
}
