// Numbers: a tile for each figure, with its last minute as a line, and where a step's time goes.

import { bytes, count, el, milliseconds, room, say, surface } from "inspector/dom";
import { inks, tint } from "inspector/marks";
import { WINDOW_SECONDS, figuresAt, partsAt, stretchAt } from "inspector/metrics";

const FIGURES = {
  rate: {
    name: "tokens per second",
    title: "since the engine was last idle, at most a minute; the line: of two seconds",
    show: count,
    beside: ({ stretch: { tokens, seconds } }) =>
      seconds ? `${count(tokens)} in ${milliseconds(1000 * seconds)}` : "",
  },
  running: { name: "running", show: count, beside: (figures) => `${count(figures.waiting)} waiting` },
  memory: {
    name: "K/V memory",
    title: "share of the K/V memory that requests have taken",
    show: (value) => `${Math.round(value)} %`,
  },
  ttft: { name: "first token (TTFT)", spread: true, title: "from arrival to the first token" },
  itl: { name: "next token (ITL)", spread: true, title: "the gap between two chunks" },
  tpot: { name: "per token (TPOT)", spread: true, title: "mean of each request that ended" },
  hits: { name: "prefix hit rate", show: (value) => `${Math.round(value)} %`, kinds: ["tree", "drafts", "fleet"] },
  accepted: { name: "draft acceptance", show: (value) => `${Math.round(value)} %`, kinds: ["drafts", "fleet"] },
  preemptions: { name: "preemptions", show: count, kinds: ["pages", "tree", "drafts"] },
  handed: {
    name: "handed over",
    title: "keys and values that travelled between workers",
    show: bytes,
    kinds: ["fleet"],
  },
};
const SPREAD = ": median and 99th percentile of the last busy minute";
const EVERY_SECONDS = 0.5; // of the reader’s, between two points of a line
const LEAST_SECONDS = 10; // that a line is wide
const MOST_NEW_POINTS = 8;
const SHADES = { model: 0.75, attention: 0.5, sampling: 0.34, drafting: 0.22, bookkeeping: 0.1 };

export class Numbers {
  constructor(store, clock) {
    this.store = store;
    this.clock = clock;
    this.kept = new Map(); // time on a grid of EVERY_SECONDS -> figures, at this speed of the clock
    this.speed = clock.speed;
    this.tiles = new Map();
    this.grid = el("dl", { class: "tiles" });
    for (const [key, figure] of Object.entries(FIGURES)) {
      if (!figure.kinds || figure.kinds.includes(store.hello.kind)) this.grid.append(this.tile(key, figure));
    }
    this.parts = el("div", { class: "parts" });
    this.element = el("div", { class: "numbers" }, this.parts, this.grid);
  }

  tile(key, figure) {
    const value = el("span", { class: "value" }, "–");
    const spread = el("span", { class: "spread" });
    const canvas = el("canvas", { class: "spark", "aria-hidden": "true" });
    this.tiles.set(key, { figure, value, spread, canvas });
    return el(
      "div",
      { class: "tile", title: figure.spread ? figure.title + SPREAD : figure.title },
      el("dt", {}, figure.name),
      el("dd", {}, value, spread),
      canvas,
    );
  }

  draw() {
    const time = this.clock.of(this.store);
    const figures = figuresAt(this.store, time, this.clock.speed);
    if (!figures) return true;
    const stretch = stretchAt(this.store, time);
    Object.assign(figures, { stretch, rate: stretch.tokens / (stretch.seconds || 1) });
    const line = this.line(time);
    const wide = room(this.grid.firstElementChild)[0] - 16;
    for (const [key, { figure, value, spread, canvas }] of this.tiles) {
      const now = figures[key];
      say(value, now === null ? "–" : figure.spread ? milliseconds(now.p50) : figure.show(now));
      if (figure.spread) say(spread, now === null ? "" : `p99 ${milliseconds(now.p99)}`);
      if (figure.beside) say(spread, figure.beside(figures));
      spark(
        canvas,
        wide,
        line.map((one) => (figure.spread ? one?.[key]?.p50 : one?.[key]) ?? null),
      );
    }
    this.drawParts(time);
    return !this.owes;
  }

  // The last minute, or what there is of it. Each point is computed once, when its time has come; a few in one drawing.
  line(time) {
    const points = [];
    const { speed } = this.clock;
    if (this.speed !== speed) this.kept.clear();
    this.speed = speed;
    const every = EVERY_SECONDS * speed;
    const last = Math.floor(time / every);
    const seconds = Math.min(WINDOW_SECONDS * speed, Math.max(LEAST_SECONDS * speed, time - this.store.moments[0].t));
    let budget = MOST_NEW_POINTS;
    this.owes = false;
    for (let at = last; at >= last - seconds / every; at--) {
      if (at >= 0 && !this.kept.has(at) && at * every <= this.store.now) {
        if (budget-- > 0) this.kept.set(at, figuresAt(this.store, at * every, speed));
        else this.owes = true; // the next drawing goes on
      }
      points.unshift(this.kept.get(at) ?? null);
    }
    return points;
  }

  drawParts(time) {
    const parts = partsAt(this.store, time);
    if (!parts) {
      this.parts.hidden = true;
      return;
    }
    this.parts.hidden = false;
    const whole = parts.reduce((sum, [, spent]) => sum + spent, 0);
    const order = Object.keys(SHADES);
    parts.sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
    if (this.parts.childElementCount !== parts.length + 1) {
      const rows = parts.map(([name]) => el("span", { class: "part", "data-part": name }));
      this.parts.replaceChildren(el("span", { class: "parts-title" }), ...rows);
    }
    say(this.parts.firstChild, `a step takes ${milliseconds(whole)}:`);
    parts.forEach(([name, spent], at) => {
      const part = this.parts.children[at + 1];
      const share = spent / whole;
      part.style.flexGrow = String(Math.max(0.02, share));
      part.style.background = tint(inks().ink, SHADES[name] ?? 0.2);
      part.style.color = (SHADES[name] ?? 0) > 0.4 ? inks().paper : inks().ink;
      part.title = `${name}: ${milliseconds(spent)}, ${Math.round(100 * share)} %`;
      say(part, share > 0.17 ? `${name} ${Math.round(100 * share)} %` : "");
    });
  }
}

// A line from left to right, its own smallest value at least 0 at the bottom and its largest at the top.
function spark(canvas, width, points) {
  if (width < 20) return;
  const height = 15;
  const context = surface(canvas, width, height);
  const most = Math.max(1e-9, ...points.map((value) => value ?? 0));
  const { soft, line } = inks();
  context.strokeStyle = line;
  context.beginPath();
  context.moveTo(0, height - 0.5);
  context.lineTo(width, height - 0.5);
  context.stroke();
  context.strokeStyle = soft;
  context.lineWidth = 1.4;
  context.beginPath();
  let isDown = false;
  points.forEach((value, at) => {
    if (value === null) {
      isDown = false;
      return;
    }
    const [x, y] = [(at / (points.length - 1)) * width, height - 1.5 - (value / most) * (height - 3)];
    if (isDown) context.lineTo(x, y);
    else context.moveTo(x, y);
    isDown = true;
  });
  context.stroke();
}
