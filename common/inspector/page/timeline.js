// Time: a row for each request, a column for each step. Drawn on a canvas, only what is in view.

import { count, el, frame, milliseconds, room, surface, write } from "inspector/dom";
import { inks, tint } from "inspector/marks";
import { drawRow } from "inspector/timeline_row";

const GUTTER = { least: 100, most: 150 }; // for names, left of the columns
const HEAD = 46; // for the steps' durations, above the rows
const ROW = { least: 13, most: 26 };
const TALL = 150; // a row where its cells are as high as the tokens that they ran: stages 01 to 03
export const ZOOM = { least: 1.5, most: 40 };

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
    this.alive = []; // requests that have a row
    this.rows = []; // those in view
    this.drawn = {}; // cells of the last drawing, by phase: tests count them
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
    // A young timeline grows from the left; a full one runs out of it.
    this.start = Math.max(this.store.first, edge - Math.max(1, Math.floor(wide / this.width)));
    this.drawn = {};
    this.placeRows();
    this.mostTokens = this.isTall ? this.most(edge, (step) => step.tokens) : 1;
    this.drawHead(edge);
    this.rows.forEach((request, at) => drawRow(this, request, HEAD + at * this.rowHeight, edge));
    const { column } = this.hover ?? { column: null };
    if (column !== null && column >= this.start)
      frame(context, ink, this.x(column) - 1, HEAD - 12, Math.max(3, this.width + 1), height);
    context.fillStyle = ink;
    context.globalAlpha = 0.5;
    context.fillRect(this.x(edge), HEAD - 4, 1, height); // now
    context.globalAlpha = 1;
    this.sayMoment(edge);
  }

  // What the step ran is said from the step itself: of several short steps only the last one has a moment of its own.
  sayMoment(edge) {
    const { waiting = [] } = this.store.at(this.clock.of(this.store)) ?? {};
    const ran = this.store.step(edge - 1)?.works.length ?? 0;
    const step = `step ${count(edge)} of ${count(this.store.columns)}`;
    const words = `${step}: it ran ${count(ran)} ${ran === 1 ? "request" : "requests"}, ${count(waiting.length)} wait`;
    const told = { "aria-valuetext": words, "aria-valuenow": edge, "aria-valuemax": this.store.columns };
    if (this.canvas.getAttribute("aria-valuetext") === words) return;
    for (const [name, value] of Object.entries(told)) this.canvas.setAttribute(name, value);
  }

  // The requests that are alive in the columns in view, in order of arrival. Where they do not all fit, the last ones.
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
    if (this.isFleet)
      workers
        .slice(0, 3)
        .forEach(({ number }, at) => write(context, `steps of worker ${number}`, 0, (at + 1) * lane - 2, soft, small));
    else
      ["time of a step", `up to ${milliseconds(1000 * longest)}`].forEach((words, at) =>
        write(context, words, 0, 14 * (at + 1), soft, small),
      );
    const how = gutter < GUTTER.most ? "" : ": scroll"; // a narrow gutter has no room for it
    if (this.hidden) write(context, `${this.rows.length} of ${this.alive.length} rows${how}`, 0, HEAD - 4, soft, small);
    context.fillStyle = line;
    workers.forEach((_, at) => context.fillRect(gutter, (at + 1) * lane, this.size.width - gutter, 1));
    const every = [10, 20, 50, 100, 200, 500].find((every) => every * width > 70) ?? 1000; // between two numbers
    for (let column = start; column < edge; column++) {
      const step = this.store.step(column);
      const height = Math.max(1, ((step.e - step.s) / longest) * (lane - 4));
      const x = this.x(column);
      context.fillStyle = tint(ink, 0.5);
      context.fillRect(x, (step.worker + 1) * lane - height, Math.max(1, width - 1), height);
      context.fillStyle = alert;
      if (step.preempted?.length) context.fillRect(x, HEAD - 11, Math.max(2, width - 1), 3);
      if (column % every === 0) write(context, count(column), x, HEAD - 1, soft, small);
    }
  }

  // The largest of a figure of the steps in view.
  most(edge, figure) {
    let most = 0.001;
    for (let column = this.start; column < edge; column++) most = Math.max(most, figure(this.store.step(column)));
    return most;
  }
}
