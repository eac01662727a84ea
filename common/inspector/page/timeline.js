// Time: a row for each request, a column for each step. Drawn on a canvas, only what is in view.

import { FONT, count, el, milliseconds, room, surface } from "inspector/dom";
import { inks, tint } from "inspector/marks";
import { drawRow } from "inspector/timeline_row";

const GUTTER = { least: 100, most: 150 }; // for names, left of the columns
const HEAD = 46; // for the steps' durations, above the rows
const ROW = { least: 13, most: 26 };
const TALL = 110; // a row where its cells are as high as the tokens that they ran: stages 01 to 03
export const ZOOM = { least: 1.5, most: 40 };

export class Timeline {
  constructor(store, clock, selection) {
    this.store = store;
    this.clock = clock;
    this.selection = selection;
    // Arrow keys move it through time: to a screen reader it is a slider that says what there is at that moment.
    this.canvas = el("canvas", {
      class: "timeline",
      tabindex: 0,
      role: "slider",
      "aria-label": "Time, in steps",
      "aria-valuemin": 0,
    });
    this.element = el("div", { class: "surface" }, this.canvas);
    this.width = 12; // pixels of a column
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

  get visible() {
    return Math.max(1, Math.floor((this.size.width - this.gutter) / this.width));
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
    if (this.size.width < this.gutter + 50 || this.size.height < HEAD + 20) return;
    const context = (this.context = surface(this.canvas, this.size.width, this.size.height));
    const edge = this.edge;
    if (!this.zoomed && !this.held)
      this.width = Math.min(
        14,
        Math.max(4, Math.floor((this.size.width - this.gutter - 8) / Math.max(1, edge - this.store.first))),
      );
    // A young timeline grows from the left; a full one runs out of it.
    this.start = Math.max(this.store.first, edge - this.visible);
    this.drawn = {};
    this.placeRows(edge);
    this.mostTokens = this.isTall ? this.most(edge, (step) => step.tokens) : 1;
    this.drawHead(edge);
    for (let at = 0; at < this.rows.length; at++) drawRow(this, this.rows[at], HEAD + at * this.rowHeight, edge);
    this.drawHover();
    const { ink } = inks();
    context.fillStyle = ink;
    context.globalAlpha = 0.5;
    context.fillRect(this.x(edge), HEAD - 4, 1, this.size.height); // now
    context.globalAlpha = 1;
    this.sayMoment(edge);
  }

  // What the step ran is said from the step itself: of several short steps only the last one has a moment of its own.
  sayMoment(edge) {
    const { waiting = [] } = this.store.at(this.clock.of(this.store)) ?? {};
    const ran = this.store.step(edge - 1)?.works.length ?? 0;
    const step = `step ${count(edge)} of ${count(this.store.columns)}`;
    const words = `${step}: it ran ${count(ran)} ${ran === 1 ? "request" : "requests"}, ${count(waiting.length)} wait`;
    if (this.canvas.getAttribute("aria-valuetext") === words) return;
    this.canvas.setAttribute("aria-valuetext", words);
    this.canvas.setAttribute("aria-valuenow", edge);
    this.canvas.setAttribute("aria-valuemax", this.store.columns);
  }

  // The requests that are alive in the columns in view, in order of arrival. Where they do not all fit, the last ones.
  placeRows(edge) {
    const time = this.clock.of(this.store);
    const begin = this.store.step(this.start)?.s ?? time;
    const alive = [...this.store.requests.values()].filter((request) => {
      if (request.arrived === null) return request.columns.length && request.columns.at(-1) >= this.start;
      return request.arrived <= time && (request.finished === null || request.finished >= begin);
    });
    const space = this.size.height - HEAD;
    this.rowHeight = Math.max(
      ROW.least,
      Math.min(this.isTall ? TALL : ROW.most, Math.floor(space / Math.max(1, alive.length))),
    );
    const fitting = Math.floor(space / this.rowHeight);
    this.hidden = Math.max(0, alive.length - fitting);
    this.scroll = Math.min(Math.max(0, this.scroll), this.hidden);
    const last = alive.length - this.scroll;
    this.rows = alive.slice(Math.max(0, last - fitting), last);
    this.alive = alive;
  }

  drawHead(edge) {
    const context = this.context;
    const { soft, line, ink, alert } = inks();
    const lanes = this.store.hello.sizes.workers?.length ?? 1; // each worker's steps stand on a line of their own
    const lane = (HEAD - 12) / lanes;
    const longest = this.most(edge, (step) => step.e - step.s);
    context.font = `11px ${FONT}`;
    context.fillStyle = soft;
    context.textAlign = "left";
    const names =
      lanes > 1 ? this.store.hello.sizes.workers.map(({ number }) => `steps of worker ${number}`) : ["time of a step"];
    names.slice(0, 3).forEach((name, at) => context.fillText(name, 0, lanes > 1 ? (at + 1) * lane - 2 : 14));
    if (lanes === 1) context.fillText(`up to ${milliseconds(1000 * longest)}`, 0, 28);
    const how = this.gutter < GUTTER.most ? "" : ": scroll"; // a narrow gutter has no room for it
    if (this.hidden) context.fillText(`${this.rows.length} of ${this.alive.length} rows${how}`, 0, HEAD - 4);
    context.fillStyle = line;
    for (let at = 1; at <= lanes; at++) context.fillRect(this.gutter, at * lane, this.size.width - this.gutter, 1);
    for (let column = this.start; column < edge; column++) {
      const step = this.store.step(column);
      const height = Math.max(1, ((step.e - step.s) / longest) * (lane - 4));
      const x = this.x(column);
      context.fillStyle = tint(ink, 0.5);
      context.fillRect(x, (step.worker + 1) * lane - height, Math.max(1, this.width - 1), height);
      if (step.preempted?.length) {
        context.fillStyle = alert;
        context.fillRect(x, HEAD - 11, Math.max(2, this.width - 1), 3);
      }
      if (column % this.every === 0) {
        context.fillStyle = soft;
        context.fillText(count(column), x, HEAD - 1);
      }
    }
  }

  // Columns between two numbers on the axis.
  get every() {
    for (const every of [10, 20, 50, 100, 200, 500]) if (every * this.width > 70) return every;
    return 1000;
  }

  // The largest of a figure of the steps in view.
  most(edge, figure) {
    let most = 0.001;
    for (let column = this.start; column < edge; column++) most = Math.max(most, figure(this.store.step(column)));
    return most;
  }

  drawHover() {
    if (!this.hover || this.hover.column === null || this.hover.column < this.start) return;
    const { ink } = inks();
    this.context.strokeStyle = ink;
    this.context.lineWidth = 1;
    this.context.strokeRect(this.x(this.hover.column) - 0.5, HEAD - 12, Math.max(2, this.width), this.size.height);
  }
}
