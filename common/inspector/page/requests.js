// One request as it becomes known: its prompt, its text and tokens with their times, and what each step did for it.

import { letter } from "inspector/marks";

// The number of entries of an ascending list whose key is not above this value.
export function upTo(list, value, key) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class Request {
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
      Object.assign(this, { id, prompt, promptTokens, maxTokens, arrived, text: "", tokens: [], lengths: [] });
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
    // What is run like a prompt after it has been run before is run again: after a preemption, or on another worker.
    if (phase === "prefill" && this.rerun) kind = "again";
    // What another worker runs like a prompt has not travelled: it is run again.
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

  // Its place among `columns` of the first one that is not before this one.
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

  // "arriving", "waiting", "running", "preempted" or how it ended. column: how many steps had ended at `time`; many
  // short ones may lie between it and the moment.
  stateAt(moment, time, column) {
    if (this.arrived !== null && this.arrived > time) return "arriving";
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
