// What one engine has done, as the updates of view.py tell it. Everything is kept by time, so that a panel can show any
// moment of the past: `at(time)` finds it. Nothing here draws.

import { COLOURS } from "inspector/marks";
import { Request, upTo } from "inspector/requests";

const VERSION = 1;
const MOST_STEPS = 20000;
const MOST_MOMENTS = 12000;
const MOST_REQUESTS = 4000;

export class Store {
  constructor(hello) {
    if (hello.version !== VERSION) throw new Error(`this page reads version ${VERSION}, not ${hello.version}`);
    this.hello = hello;
    this.now = 0; // seconds on the engine's clock, which began at hello.began
    this.first = 0; // the column of steps[0]
    this.steps = [];
    this.requests = new Map();
    this.moments = []; // where everything was: {t, column, running, waiting, stats, memory}
    this.words = new Map();
    this.newestStep = -1;
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
      // What has no arrival ended before the page was opened, and is known from old steps only.
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
    if (step.i <= this.newestStep) return; // a page that connects again is told of steps it knows
    this.newestStep = step.i;
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
    // Page tables are told when they change, and gone when their owner holds nothing.
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

  // Bounded, however long a page stays open: the oldest goes first, a quarter at a time.
  forget() {
    if (this.moments.length > MOST_MOMENTS) this.moments.splice(0, MOST_MOMENTS / 4);
    if (this.steps.length > MOST_STEPS) {
      this.steps.splice(0, MOST_STEPS / 4);
      this.first += MOST_STEPS / 4;
    }
    if (this.requests.size > MOST_REQUESTS) {
      const ended = [...this.requests.values()].filter((request) => request.finished !== null);
      for (const request of ended.slice(0, MOST_REQUESTS / 4)) this.requests.delete(request.n);
    }
  }
}

const byNumber = (object) => new Map(Object.entries(object ?? {}).map(([key, value]) => [Number(key), value]));
