// Time: a row for each request, a column for each step. Drawn on a canvas, only what is in view.

import { block, count, el, frame, milliseconds, point, room, surface, write } from "inspector/dom";
import { PHASES, colour, inks, mark, tint } from "inspector/marks";

const GUTTER = { least: 100, most: 150 }; // for names, left of the columns
const HEAD = 46; // for the steps' durations, above the rows
const ROW = { least: 13, most: 26 };
const TALL = 150; // a row of stages 01 to 03, where cells are as high as the tokens that they ran
const SAME = 8; // characters: a longer beginning that prompts share is left out
const ZOOM = { least: 1.5, most: 40 };

export class Timeline {
  constructor(store, clock, selection) {
    Object.assign(this, { store, clock, selection });
    // Arrow keys move it through time: to a screen reader it is a slider that says what there is at that moment.
    const slider = { tabindex: 0, role: "slider", "aria-label": "Time, in steps", "aria-valuemin": 0 };
    this.canvas = el("canvas", { class: "timeline", ...slider });
    this.element = el("div", { class: "surface" }, this.canvas);
    this.width = 12; // units of a column
    this.zoomed = false; // by hand; until then columns get narrower as there are more
    this.held = false; // by a pointer that drags: the columns stay under it
    this.scroll = 0; // rows that are out of view below
    this.scrolled = false; // by hand; until then the first request that runs is in view
    this.alive = []; // requests that have a row
    this.rows = []; // those in view
    this.hover = null; // {column, request}
    this.isTall = ["nothing", "buffers"].includes(store.hello.kind);
    this.isFleet = store.hello.kind === "fleet";
  }

  // The column behind the last one in view: the newest, or the one at the moment shown.
  get edge() {
    return this.store.columnAt(this.clock.of(this.store));
  }

  columnAt(x) {
    const column = this.start + Math.floor((x - this.gutter) / this.width);
    return x >= this.gutter && column >= this.store.first && column < this.edge ? column : null;
  }

  rowAt(y) {
    return this.rows[Math.floor((y - HEAD) / this.rowHeight)] ?? null;
  }

  x(column) {
    return this.gutter + (column - this.start) * this.width;
  }

  draw() {
    const [width, height] = room(this.element);
    this.size = { width, height };
    this.gutter = Math.min(GUTTER.most, Math.max(GUTTER.least, Math.round(0.3 * width)));
    const wide = width - this.gutter;
    if (wide < 50 || height < HEAD + 20) return;
    const context = (this.context = surface(this.canvas, width, height));
    const edge = this.edge;
    const { ink } = inks();
    if (!this.zoomed && !this.held)
      this.width = Math.min(14, Math.max(4, Math.floor((wide - 8) / Math.max(1, edge - this.store.first))));
    // A short timeline grows to the right; a full one leaves at the left.
    this.start = Math.max(this.store.first, edge - Math.max(1, Math.floor(wide / this.width)));
    this.placeRows();
    this.mostTokens = this.isTall ? this.most(edge, (step) => step.tokens) : 1;
    this.drawHead(edge);
    this.rows.forEach((request, at) => drawRow(this, request, HEAD + at * this.rowHeight, edge));
    const { column } = this.hover ?? { column: null };
    if (column !== null && column >= this.start)
      frame(context, ink, this.x(column) - 1, HEAD - 12, Math.max(3, this.width + 1), height);
    context.globalAlpha = 0.5;
    block(context, ink, this.x(edge), HEAD - 4, 1, height); // now
    context.globalAlpha = 1;
    this.sayMoment(edge);
  }

  // What the step ran is said from the step itself: of several short steps only the last one has a moment of its own.
  sayMoment(edge) {
    const { waiting = [] } = this.store.at(this.clock.of(this.store)) ?? {};
    const ran = this.store.step(edge - 1)?.works.length ?? 0;
    const step = `step ${count(edge)} of ${count(this.store.columns)}`;
    const words = `${step}: it ran ${count(ran)} ${ran === 1 ? "request" : "requests"}, ${count(waiting.length)} wait`;
    const told = { valuetext: words, valuenow: edge, valuemax: this.store.columns };
    for (const [name, value] of Object.entries(told)) this.canvas.setAttribute(`aria-${name}`, value);
  }

  // The requests that are alive in the columns in view, in order of arrival. If they do not all fit: from the first
  // running request on, or the last ones.
  placeRows() {
    const time = this.clock.of(this.store);
    const begin = this.store.step(this.start)?.s ?? time;
    this.alive = [...this.store.requests.values()].filter(({ arrived, finished, columns }) => {
      if (arrived === null) return columns.at(-1) >= this.start;
      return arrived <= time && (finished === null || finished >= begin);
    });
    const space = this.size.height - HEAD;
    const most = this.isTall ? TALL : ROW.most;
    this.rowHeight = Math.max(ROW.least, Math.min(most, Math.floor(space / Math.max(1, this.alive.length))));
    const fitting = Math.floor(space / this.rowHeight);
    this.hidden = Math.max(0, this.alive.length - fitting);
    const runs = ({ finished, columns }) => columns[0] < this.edge && (finished === null || finished > time);
    const first = this.alive.findIndex(runs);
    if (!this.scrolled) this.scroll = first < 0 ? 0 : this.hidden - first;
    this.scroll = Math.min(Math.max(0, this.scroll), this.hidden);
    const last = this.alive.length - this.scroll;
    this.rows = this.alive.slice(Math.max(0, last - fitting), last);
  }

  drawHead(edge) {
    const { context, start, gutter, width } = this;
    const { soft, line, ink, alert } = inks();
    const small = { size: 11 };
    const workers = this.store.hello.sizes.workers ?? [null];
    const lane = (HEAD - 12) / workers.length; // each worker's steps stand on a line of their own
    const longest = this.most(edge, (step) => step.e - step.s);
    const steps = this.isFleet
      ? workers.map(({ number }) => `steps of worker ${number}`)
      : ["time of a step", `up to ${milliseconds(1000 * longest)}`];
    const tall = this.isFleet ? lane : 15;
    steps.slice(0, 3).forEach((words, at) => write(context, words, 0, (at + 1) * tall - 2, soft, small));
    const how = gutter < GUTTER.most ? "" : ": scroll"; // a narrow gutter has no room for it
    if (this.hidden) write(context, `${this.rows.length} of ${this.alive.length} rows${how}`, 0, HEAD - 4, soft, small);
    workers.forEach((_, at) => block(context, line, gutter, (at + 1) * lane, this.size.width - gutter, 1));
    const every = [10, 20, 50, 100, 200, 500].find((every) => every * width > 70) ?? 1000; // between two numbers
    for (let column = start; column < edge; column++) {
      const step = this.store.step(column);
      const height = Math.max(1, ((step.e - step.s) / longest) * (lane - 4));
      const x = this.x(column);
      block(context, tint(ink, 0.5), x, (step.worker + 1) * lane - height, Math.max(1, width - 1), height);
      if (step.preempted?.length) block(context, alert, x, HEAD - 11, Math.max(2, width - 1), 3);
      if (column % every === 0) write(context, count(column), x, HEAD - 1, soft, small);
    }
  }

  // The largest of a figure of the steps in view.
  most(edge, figure) {
    const [from, to] = [this.start, edge].map((column) => column - this.store.first);
    return Math.max(0.001, ...this.store.steps.slice(from, to).map(figure));
  }
}

// One row: a request's letter and prompt, and a mark for each step that did something for it.
function drawRow(timeline, request, y, edge) {
  const { context, rowHeight, gutter, selection } = timeline;
  const height = rowHeight - (rowHeight > 14 ? 4 : 2);
  const hex = colour(request.hue);
  const { ink, soft, faint, on } = inks();
  if (selection.number === request.n) block(context, faint, 0, y, timeline.size.width, rowHeight);
  context.globalAlpha = selection.dims(request.n) ? 0.3 : 1;
  const badge = Math.min(18, rowHeight - 2);
  const wide = badge * (request.letter.length > 1 ? 1.4 : 1);
  block(context, hex, 0, y + 1, wide, badge);
  const centred = { size: Math.min(12, badge - 1), bold: true, align: "center" };
  write(context, request.letter, wide / 2, y + 1 + badge / 2 + 4.2, on, centred);
  context.save();
  context.beginPath();
  context.rect(0, y, gutter - 8, rowHeight);
  context.clip();
  const size = Math.min(12, rowHeight - 1);
  write(context, name(timeline, request), 29, y + badge / 2 + 5, request.finished === null ? ink : soft, { size });
  context.restore();
  const top = y + (rowHeight - height) / 2;
  drawWaiting(timeline, request, hex, top, height, edge);
  drawCells(timeline, request, hex, top, height, edge);
  context.globalAlpha = 1;
}

// Its prompt without the beginning that another row shares: "Tell me a story about" would not tell two apart.
function name({ rows }, { prompt }) {
  const same = Math.max(0, ...rows.map((other) => (other.prompt === prompt ? 0 : common(prompt, other.prompt))));
  const words = prompt.lastIndexOf(" ", same) + 1;
  return words > SAME ? `… ${prompt.slice(words)}` : prompt;
}

// The number of characters with which both begin.
function common(one, other) {
  let same = 0;
  while (same < 60 && same < one.length && one[same] === other[same]) same += 1;
  return same;
}

// Narrow columns of the same kind become one rectangle: a thousand steps are a few.
function drawCells(timeline, request, hex, y, height, edge) {
  const { columns, works } = request;
  const gap = timeline.width > 5 ? 1 : 0;
  const joins = (at) =>
    columns[at] < edge && columns[at] === columns[at - 1] + 1 && works[at].phase === works[at - 1].phase;
  for (let from = request.place(timeline.start), to; columns[from] < edge; from = to) {
    to = from + 1;
    if (!gap && !works[from].draftTokens) while (joins(to) && !works[to].draftTokens) to += 1;
    const width = (columns[to - 1] - columns[from] + 1) * timeline.width - gap;
    drawCell(timeline, request, from, hex, timeline.x(columns[from]), y, width, height);
  }
  for (const column of request.preemptions.filter((one) => one >= timeline.start && one < edge))
    mark(timeline.context, "preempted", hex, timeline.x(column), y, Math.max(9, timeline.width), height);
}

function drawCell(timeline, request, place, hex, x, y, width, height) {
  const { context, isTall } = timeline;
  const { phase, tokens, draftTokens, accepted } = request.works[place];
  if (draftTokens) {
    const slice = height / (1 + draftTokens.length);
    draftTokens.forEach((_, at) => {
      const top = y + height - (at + 2) * slice;
      mark(context, at < accepted ? "accepted" : "rejected", hex, x, top, width, slice - (slice > 3 ? 0.5 : 0));
    });
    mark(context, "decode", hex, x, y + height - slice, width, slice);
    return;
  }
  if (place === 0 && request.cached) {
    const share = (height * request.cached) / (request.cached + tokens);
    mark(context, "cached", hex, x, y, width, share);
    mark(context, phase, hex, x, y + share, width, height - share);
  } else if (isTall) {
    // One request at a time: as high as the tokens that were run, from the bottom up.
    const tall = Math.max(4, 0.12 * height, (height * tokens) / timeline.mostTokens);
    mark(context, phase, hex, x, y + height - tall, width, tall);
  } else {
    const inset = phase === "decode" ? height * 0.16 : 0;
    mark(context, phase, hex, x, y + inset, width, height - 2 * inset);
  }
  if (width < 26 || tokens < 2 || height < 12 || isTall) return;
  const { paper, ink } = inks();
  const wide = 6 * String(tokens).length + 4;
  block(context, paper, x + (width - wide) / 2, y + height / 2 - 6, wide, 12);
  write(context, tokens, x + width / 2, y + height / 2 + 4, ink, { size: 10, align: "center" });
}

// A line through the steps that did nothing for it, from its arrival to its end: grey while it waits, in its colour
// while another worker has it, dashed while its pages travel.
function drawWaiting(timeline, request, hex, y, height, edge) {
  const { context, store, isTall, isFleet } = timeline;
  const { columns, arrived, finished, handoffs } = request;
  if (arrived === null) return;
  const end = finished === null ? edge : store.columnAt(finished);
  const begin = Math.min(columns[0] ?? end, end);
  const [top, tall] = isTall ? [y + height - 8, 8] : [y, height]; // a tall row's line lies at its bottom
  const line = (phase, first, last) => {
    const [from, to] = [Math.max(timeline.start, first), Math.min(edge, last)];
    if (to > from) mark(context, phase, hex, timeline.x(from), top, (to - from) * timeline.width, tall);
  };
  line("waiting", store.columnAt(arrived), begin);
  if (!isTall) line(isFleet ? "elsewhere" : "waiting", begin, end);
  for (const place of handoffs) line("travel", columns[place - 1] + 1, columns[place]);
}

// What a pointer and keys do: drag or arrows move through time, the wheel zooms (over the names it scrolls them), a click
// picks a request.
export function listen(timeline, { redraw, tell }) {
  const { canvas, clock, store, selection } = timeline;
  let drag = null;

  function moveTo(edge) {
    if (edge >= store.columns && !clock.recorded) clock.follow();
    else clock.show(store.hello.began + store.endOf(Math.max(store.first + 1, Math.min(edge, store.columns))));
  }

  function zoom(factor) {
    timeline.zoomed = true;
    timeline.width = Math.min(ZOOM.most, Math.max(ZOOM.least, timeline.width * factor));
    redraw();
  }

  function hover(place) {
    timeline.hover = place;
    tell(place ? describe(timeline) : "");
    redraw();
  }

  const pointer = {
    pointerdown(event) {
      drag = { x: point(event)[0], edge: timeline.edge, moved: false };
      timeline.held = true;
      canvas.setPointerCapture(event.pointerId);
    },
    pointermove(event) {
      const [x, y] = point(event);
      if (drag) {
        drag.moved ||= Math.abs(x - drag.x) > 4;
        if (drag.moved) moveTo(drag.edge + Math.round((drag.x - x) / timeline.width));
        return;
      }
      const request = timeline.rowAt(y);
      canvas.style.cursor = x < timeline.gutter && request ? "pointer" : "grab";
      hover({ column: timeline.columnAt(x), request });
    },
    pointerup(event) {
      if (drag && !drag.moved) selection.toggle(timeline.rowAt(point(event)[1])?.n ?? null);
    },
    lostpointercapture() {
      drag = null;
      timeline.held = false;
      redraw();
    },
    pointerleave: () => hover(null),
    wheel(event) {
      event.preventDefault();
      const { deltaX, deltaY } = event;
      if (event.shiftKey || Math.abs(deltaX) > Math.abs(deltaY)) {
        moveTo(timeline.edge + Math.sign(deltaX || deltaY) * Math.ceil(30 / timeline.width));
      } else if (timeline.hidden && point(event)[0] < timeline.gutter) {
        timeline.scrolled = true;
        timeline.scroll -= Math.sign(deltaY);
        redraw();
      } else zoom(deltaY < 0 ? 1.15 : 1 / 1.15);
    },
    keydown(event) {
      if (!(event.key in keys)) return;
      event.preventDefault();
      keys[event.key](event.shiftKey ? 20 : 1);
      const request = selection.number === null ? null : store.request(selection.number);
      hover({ column: Math.max(store.first, timeline.edge - 1), request });
    },
  };
  const keys = {
    ArrowLeft: (steps) => moveTo(timeline.edge - steps),
    ArrowRight: (steps) => moveTo(timeline.edge + steps),
    Home: () => moveTo(store.first + 1),
    End: () => moveTo(store.columns),
    "+": () => zoom(1.25),
    "-": () => zoom(0.8),
    ArrowUp: () => pick(timeline, -1),
    ArrowDown: () => pick(timeline, 1),
  };
  for (const [name, listener] of Object.entries(pointer)) canvas.addEventListener(name, listener, { passive: false });
}

// The next request or the one before, with its row in view.
function pick(timeline, by) {
  const { alive, rows, selection } = timeline;
  const at = alive.findIndex((request) => request.n === selection.number);
  const next = at < 0 ? rows[0] : alive[Math.min(Math.max(0, at + by), alive.length - 1)];
  selection.select(next?.n ?? null);
  const behind = alive.length - 1 - alive.indexOf(next); // rows below it
  timeline.scrolled = true;
  timeline.scroll = Math.min(behind, Math.max(timeline.scroll, behind - rows.length + 1));
}

// What is under the pointer, in words and numbers.
function describe({ hover: { column, request }, store }) {
  const step = column === null ? null : store.step(column);
  const parts = [];
  if (request) parts.push(`${request.letter}: ${request.promptTokens} prompt tokens`);
  if (!step) return parts.join();
  const whole = `${count(step.tokens)} tokens of ${step.works.length} requests`;
  parts.push(`step ${count(step.i)}, ${milliseconds(1000 * (step.e - step.s))}, ${whole}`);
  if (store.hello.kind === "fleet") parts.push(`worker ${step.worker}`);
  const place = request?.place(column);
  if (request?.columns[place] === column) {
    const { phase, tokens, draftTokens, accepted } = request.works[place];
    parts.push(`${request.letter}: ${PHASES[phase]}, ${count(tokens)} tokens`);
    if (draftTokens) parts.push(`${accepted} of ${draftTokens.length} draft tokens accepted`);
  }
  if (request?.preemptions.includes(column)) parts.push(`${request.letter} is preempted`);
  return parts.join(" · ");
}
