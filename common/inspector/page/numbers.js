// Numbers: a tile for each figure, with its last minute as a line, and where a step's time goes.

import { block, bytes, count, el, milliseconds, room, say, surface } from "inspector/dom";
import { inks, tint } from "inspector/marks";

const SPREAD = ": median and 99th percentile of the last busy minute";
const POOLS = ["pages", "tree", "drafts"];
const percent = (value) => `${value && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
const times = { show: ({ p50 }) => milliseconds(p50), beside: (_, { p99 }) => `p99 ${milliseconds(p99)}` };
const FIGURES = {
  rate: {
    name: "tokens per second",
    title: "since the engine was last idle, at most a minute; the line: of two seconds",
    show: count,
    beside: ({ tokens, seconds }) => (seconds ? `${count(tokens)} in ${milliseconds(1000 * seconds)}` : ""),
  },
  running: { name: "running", show: count, beside: ({ waiting }) => `${count(waiting)} waiting` },
  memory: {
    name: "K/V memory taken",
    title: "share of the K/V memory that requests have taken, and how much of that holds tokens",
    show: percent,
    beside: ({ filled }) => (filled ? `${percent(filled)} of it filled` : ""),
    kinds: ["slots", "fleet", ...POOLS],
  },
  ttft: { name: "first token (TTFT)", title: `from arrival to the first token${SPREAD}`, ...times },
  itl: { name: "next token (ITL)", title: `the gap between two chunks${SPREAD}`, ...times },
  tpot: { name: "per token (TPOT)", title: `mean of each request that ended${SPREAD}`, ...times },
  hits: { name: "prefix hit rate", show: percent, kinds: ["tree", "drafts", "fleet"] },
  accepted: { name: "draft acceptance", show: percent, kinds: ["drafts", "fleet"] },
  preemptions: { name: "preemptions", show: count, kinds: POOLS },
  handed: { name: "handed over", title: "keys and values that travelled", show: bytes, kinds: ["fleet"] },
};
const RATE_SECONDS = 2;
const WINDOW_SECONDS = 60;
const MAX_GAPS = 4000; // of a minute, evenly spaced, for the percentiles: a busy engine makes 100,000
const IDLE_SECONDS = 0.25; // A shorter pause does not count: a client may be about to send its next question.
const ONE_CHUNK_SECONDS = 2e-4; // tokens of one step come as one chunk: no client sees a gap between them
const EVERY_SECONDS = 0.5; // of the reader’s, between two points of a line
const MIN_SECONDS = 10; // of a line, at least
const SHADES = { model: 0.75, attention: 0.5, sampling: 0.34, drafting: 0.22, bookkeeping: 0.1 };

export class Numbers {
  constructor(store, clock) {
    Object.assign(this, { store, clock });
    this.kept = new Map(); // speed of the clock, and time on a grid of EVERY_SECONDS of it -> figures
    this.tiles = Object.keys(FIGURES)
      .filter((key) => FIGURES[key].kinds?.includes(store.hello.kind) ?? true)
      .map((key) => this.tile(key));
    this.grid = el("dl", { class: "tiles" }, ...this.tiles.map((tile) => tile.element));
    this.partsTitle = el("span", { class: "parts-title" });
    this.bars = Object.keys(SHADES).map((name) => [name, el("span", { class: "part" })]);
    this.parts = el("div", { class: "parts" }, this.partsTitle, ...this.bars.map(([, bar]) => bar));
    this.element = el("div", { class: "numbers" }, this.parts, this.grid);
  }

  tile(key) {
    const { name, title } = FIGURES[key];
    const [value, spread] = [el("span", { class: "value" }, "–"), el("span", { class: "spread" })];
    const canvas = el("canvas", { "aria-hidden": "true" });
    const figures = [el("dt", {}, name), el("dd", {}, value, spread)];
    const element = el("div", { class: "tile", title }, ...figures, el("div", { class: "spark" }, canvas));
    return { key, value, spread, canvas, element };
  }

  draw() {
    const time = this.clock.of(this.store);
    const figures = figuresAt(this.store, time, this.clock.speed);
    if (!figures) return;
    const { tokens, seconds } = stretchAt(this.store, time);
    Object.assign(figures, { tokens, seconds, rate: tokens / (seconds || 1) });
    const points = this.line(time);
    for (const { key, value, spread, canvas } of this.tiles) {
      const { show, beside } = FIGURES[key];
      const now = figures[key];
      say(value, now === null ? "–" : show(now));
      say(spread, now === null || !beside ? "" : beside(figures, now));
      const values = points.map((one) => one?.[key]?.p50 ?? one?.[key] ?? null);
      spark(canvas, values);
    }
    this.drawParts(time);
  }

  // The last minute, or what there is of it. Each point is computed once, when its time has come.
  line(time) {
    const { speed } = this.clock;
    const every = EVERY_SECONDS * speed;
    const last = Math.floor(time / every);
    const seconds = Math.min(WINDOW_SECONDS * speed, Math.max(MIN_SECONDS * speed, time - this.store.moments[0].t));
    const points = [];
    for (let at = last; at >= last - seconds / every; at--) {
      const key = `${speed} ${at}`;
      if (at >= 0 && !this.kept.has(key) && at * every <= this.store.now)
        this.kept.set(key, figuresAt(this.store, at * every, speed));
      points.unshift(this.kept.get(key) ?? null);
    }
    return points;
  }

  drawParts(time) {
    const parts = partsAt(this.store, time);
    this.parts.hidden = !parts;
    if (!parts) return;
    const whole = Object.values(parts).reduce((sum, spent) => sum + spent, 0);
    say(this.partsTitle, `a step takes ${milliseconds(whole)}:`);
    for (const [name, bar] of this.bars) {
      const [share, shade] = [(parts[name] ?? 0) / whole, SHADES[name]];
      const style = { flexGrow: String(Math.max(0.02, share)), background: tint(inks().ink, shade) };
      Object.assign(bar.style, style, { color: shade > 0.4 ? inks().paper : inks().ink });
      bar.hidden = !parts[name];
      bar.title = `${name}: ${milliseconds(whole * share)}, ${Math.round(100 * share)} %`;
      say(bar, share > 0.17 ? `${name} ${Math.round(100 * share)} %` : "");
    }
  }
}

// A line from left to right, from 0 at the bottom to its own largest value at the top.
function spark(canvas, points) {
  const [width, height] = room(canvas.parentElement);
  if (width < 20 || height < 8) return;
  const context = surface(canvas, width, height);
  const { soft, line } = inks();
  block(context, line, 0, height - 1, width, 1);
  const most = Math.max(1e-9, ...points);
  context.strokeStyle = soft;
  context.lineWidth = 1.4;
  context.beginPath();
  points.forEach((value, at) => {
    if (value === null) return;
    const [x, y] = [(at / (points.length - 1)) * width, height - 1.5 - (value / most) * (height - 3)];
    if (points[at - 1] === null || !at) context.moveTo(x, y);
    else context.lineTo(x, y);
  });
  context.stroke();
}

// At one moment: a value for each figure, null where there is nothing to tell yet. speed: of the clock.
function figuresAt(store, time, speed) {
  const moment = store.at(time);
  if (!moment) return null;
  const { stats } = moment;
  const [first, perToken, ranges] = [[], [], []];
  const since = endOfWork(store, time) - WINDOW_SECONDS;
  let recent = 0;
  for (const request of store.requests.values()) {
    if (request.arrived === null || (request.finished !== null && request.finished < since)) continue;
    const { tokens } = request;
    const [from, to] = [since, time].map((moment) => request.tokensAt(moment));
    if (from === to) continue;
    ranges.push({ tokens, from: Math.max(1, from), to });
    recent += to - request.tokensAt(time - RATE_SECONDS * speed);
    if (!from) first.push(1000 * request.firstToken);
    if (request.finished !== null && request.finished <= time && request.perToken !== null)
      perToken.push(1000 * request.perToken);
  }
  return {
    rate: recent / (RATE_SECONDS * speed),
    running: moment.running.length,
    waiting: moment.waiting.length,
    ttft: percentiles(first),
    itl: percentiles(gapsOf(ranges)),
    tpot: percentiles(perToken),
    memory: share(stats.kv_tokens_reserved, stats.kv_tokens_capacity),
    filled: share(stats.kv_tokens_used, stats.kv_tokens_reserved),
    hits: share(stats.prefix_tokens_hit, stats.prefix_tokens_asked),
    accepted: share(stats.accepted_tokens, stats.draft_tokens),
    preemptions: stats.preemptions ?? null,
    handed: stats.handoff_bytes ?? null,
  };
}

// Percent, or null where there is no whole.
const share = (part, whole) => (whole ? (100 * part) / whole : null);

// Output tokens, and the seconds that they took, since the engine last had no request: at most a minute. After the
// last request has ended it does not change, so two engines with the same load compare, whichever ended first.
function stretchAt(store, time) {
  const until = endOfWork(store, time);
  const spans = [];
  let since = until;
  let known = until - WINDOW_SECONDS;
  for (const request of store.requests.values()) {
    // A request without an arrival ended before the page was opened, and its tokens are not known.
    if (request.arrived === null) known = Math.max(known, store.step(request.columns.at(-1))?.e ?? 0);
    else if (request.arrived <= time) {
      const end = Math.min(request.finished ?? time, time);
      if (end > known) spans.push({ request, end });
    }
  }
  for (const { request, end } of spans.sort((a, b) => b.end - a.end)) {
    if (end < since - IDLE_SECONDS) break;
    since = Math.min(since, request.arrived);
  }
  since = Math.max(since, known);
  const tokens = spans.reduce((sum, { request }) => sum + request.tokensAt(until) - request.tokensAt(since), 0);
  return { tokens, seconds: Math.max(0, until - since) };
}

// The last moment, up to this one, at which there was a request.
function endOfWork(store, time) {
  let end = 0;
  for (const { arrived, finished } of store.requests.values())
    if (arrived !== null && arrived <= time) end = Math.max(end, Math.min(finished ?? time, time));
  return end;
}

// Milliseconds between the chunks of these ranges of tokens.
function gapsOf(ranges) {
  const every = Math.ceil(ranges.reduce((sum, { from, to }) => sum + to - from, 0) / MAX_GAPS);
  const gaps = [];
  for (const { tokens, from, to } of ranges) {
    for (let at = from; at < to; at += every) {
      const gap = tokens[at].t - tokens[at - 1].t;
      if (gap > ONE_CHUNK_SECONDS) gaps.push(1000 * gap);
    }
  }
  return gaps;
}

function percentiles(values) {
  if (!values.length) return null;
  const sorted = Float64Array.from(values).sort();
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  return { p50: at(0.5), p99: at(0.99) };
}

// Where the time of the last steps went: milliseconds of a step for each part, on average; null if nothing is known.
function partsAt(store, time, most = 60) {
  const ended = store.columnAt(time) - store.first;
  const steps = store.steps.slice(Math.max(0, ended - most), ended).filter((step) => step.parts);
  const sums = {};
  for (const { parts } of steps)
    for (const [name, spent] of Object.entries(parts)) sums[name] = (sums[name] ?? 0) + spent / steps.length;
  return steps.length ? sums : null;
}
