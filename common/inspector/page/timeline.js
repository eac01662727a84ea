// Time: a row for each request, a column for each step. Drawn on a canvas, only what is in view.

import { count, el, milliseconds, room, surface } from "inspector/dom";
import { colour, inks, mark, tint } from "inspector/marks";

export const GUTTER = 150; // units for names, left of the columns
const HEAD = 46; // for the steps' durations, above the rows
const ROW = { least: 13, most: 26 };
const TALL = 110; // a row where its cells are as high as the tokens that they ran: stages 01 to 03
export const ZOOM = { least: 1.5, most: 40 };
const FONT = "system-ui, sans-serif";

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
    return Math.max(1, Math.floor((this.size.width - GUTTER) / this.width));
  }

  columnAt(x) {
    const column = this.start + Math.floor((x - GUTTER) / this.width);
    return x >= GUTTER && column >= this.store.first && column < this.edge ? column : null;
  }

  rowAt(y) {
    return this.rows[Math.floor((y - HEAD) / this.rowHeight)] ?? null;
  }

  x(column) {
    return GUTTER + (column - this.start) * this.width;
  }

  draw() {
    const [width, height] = room(this.element);
    this.size = { width, height };
    if (this.size.width < GUTTER + 50 || this.size.height < HEAD + 20) return;
    const context = (this.context = surface(this.canvas, this.size.width, this.size.height));
    const edge = this.edge;
    if (!this.zoomed)
      this.width = Math.min(
        14,
        Math.max(4, Math.floor((this.size.width - GUTTER - 8) / Math.max(1, edge - this.store.first))),
      );
    // A young timeline grows from the left; a full one runs out of it.
    this.start = Math.max(this.store.first, edge - this.visible);
    this.drawn = {};
    this.placeRows(edge);
    this.mostTokens = this.isTall ? this.most(edge, (step) => step.tokens) : 1;
    this.drawHead(edge);
    for (let at = 0; at < this.rows.length; at++) this.drawRow(this.rows[at], HEAD + at * this.rowHeight, edge);
    this.drawHover();
    const { ink } = inks();
    context.fillStyle = ink;
    context.globalAlpha = 0.5;
    context.fillRect(this.x(edge), HEAD - 4, 1, this.size.height); // now
    context.globalAlpha = 1;
    this.sayMoment(edge);
  }

  sayMoment(edge) {
    const { running = [], waiting = [] } = this.store.at(this.clock.of(this.store)) ?? {};
    const words = `step ${count(edge)} of ${count(this.store.columns)}: ${running.length} requests run, ${waiting.length} wait`;
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
    if (this.hidden) context.fillText(`${this.rows.length} of ${this.alive.length} rows: scroll`, 0, HEAD - 4);
    context.fillStyle = line;
    for (let at = 1; at <= lanes; at++) context.fillRect(GUTTER, at * lane, this.size.width - GUTTER, 1);
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

  drawRow(request, y, edge) {
    const context = this.context;
    const height = this.rowHeight - (this.rowHeight > 14 ? 4 : 2);
    const hex = colour(request.hue);
    const { ink, soft, faint } = inks();
    if (this.selection.number === request.n) {
      context.fillStyle = faint;
      context.fillRect(0, y, this.size.width, this.rowHeight);
    }
    context.globalAlpha = this.selection.dims(request.n) ? 0.3 : 1;
    context.fillStyle = hex;
    const badge = Math.min(18, this.rowHeight - 2);
    context.fillRect(0, y + 1, request.letter.length > 1 ? badge * 1.4 : badge, badge);
    context.fillStyle = inks().on;
    context.font = `600 ${Math.min(12, badge - 1)}px ${FONT}`;
    context.textAlign = "center";
    context.fillText(request.letter, (request.letter.length > 1 ? badge * 1.4 : badge) / 2, y + 1 + badge / 2 + 4.2);
    context.textAlign = "left";
    context.font = `${Math.min(12, this.rowHeight - 1)}px ${FONT}`;
    context.fillStyle = request.finished === null ? ink : soft;
    context.save();
    context.beginPath();
    context.rect(0, y, GUTTER - 8, this.rowHeight);
    context.clip();
    context.fillText(request.prompt, 29, y + badge / 2 + 5);
    context.restore();
    this.drawCells(request, hex, y + (this.rowHeight - height) / 2, height, edge);
    context.globalAlpha = 1;
  }

  drawCells(request, hex, y, height, edge) {
    const context = this.context;
    this.drawWaiting(request, hex, y, height, edge);
    const gap = this.width > 5 ? 1 : 0;
    let from = request.place(this.start);
    while (from < request.columns.length && request.columns[from] < edge) {
      const work = request.works[from];
      let to = from + 1;
      // Narrow columns of the same kind become one rectangle: a thousand steps are a few.
      if (!gap && !work.guesses) {
        while (
          to < request.columns.length &&
          request.columns[to] < edge &&
          request.columns[to] === request.columns[to - 1] + 1 &&
          request.works[to].phase === work.phase &&
          !request.works[to].guesses
        )
          to++;
      }
      const width = (request.columns[to - 1] - request.columns[from] + 1) * this.width - gap;
      this.drawCell(request, from, hex, this.x(request.columns[from]), y, width, height);
      from = to;
    }
    for (const column of request.preemptions) {
      if (column >= this.start && column < edge)
        mark(context, "preempted", hex, this.x(column), y, Math.max(9, this.width), height);
    }
  }

  drawCell(request, place, hex, x, y, width, height) {
    const work = request.works[place];
    this.drawn[work.phase] = (this.drawn[work.phase] ?? 0) + 1;
    if (place === 0 && request.cached) {
      const share = request.cached / (request.cached + work.tokens);
      mark(this.context, "cached", hex, x, y, width, height * share);
      mark(this.context, work.phase, hex, x, y + height * share, width, height * (1 - share));
    } else if (work.guesses) {
      const slice = height / (1 + work.guesses.length);
      for (let guess = 0; guess < work.guesses.length; guess++) {
        const phase = guess < work.accepted ? "accepted" : "rejected";
        mark(this.context, phase, hex, x, y + height - (guess + 2) * slice, width, slice - (slice > 3 ? 0.5 : 0));
      }
      mark(this.context, "decode", hex, x, y + height - slice, width, slice);
    } else {
      const [top, tall] = this.span(work, height);
      mark(this.context, work.phase, hex, x, y + top, width, tall);
    }
    if (width >= 26 && work.tokens > 1 && height >= 12 && !work.guesses && !this.isTall)
      this.number(work.tokens, x, y, width, height);
  }

  // Where a cell lies in its row. One request at a time: as high as the tokens that were run for it, from the bottom up.
  span(work, height) {
    if (this.isTall) {
      const tall = Math.max(4, 0.12 * height, (height * work.tokens) / this.mostTokens);
      return [height - tall, tall];
    }
    const inset = work.phase === "decode" ? height * 0.16 : 0;
    return [inset, height - 2 * inset];
  }

  number(tokens, x, y, width, height) {
    const context = this.context;
    const { paper, ink } = inks();
    context.font = `10px ${FONT}`;
    const wide = context.measureText(tokens).width + 4;
    context.fillStyle = paper;
    context.fillRect(x + (width - wide) / 2, y + height / 2 - 6, wide, 12);
    context.fillStyle = ink;
    context.fillText(tokens, x + (width - wide) / 2 + 2, y + height / 2 + 4);
  }

  // A line through the steps that did nothing for it, from its arrival to its end: grey while it waits, in its colour
  // while another worker has it, dashed while its pages travel.
  drawWaiting(request, hex, y, height, edge) {
    if (request.arrived === null) return;
    const arrival = this.store.columnAt(request.arrived);
    const end = request.finished === null ? edge : this.store.columnAt(request.finished);
    const begin = Math.min(request.columns[0] ?? end, end);
    const bottom = this.isTall ? y + height - 8 : y; // a tall row's line lies at its bottom
    const line = (phase, from, to) => {
      [from, to] = [Math.max(this.start, from), Math.min(edge, to)];
      if (to > from)
        mark(this.context, phase, hex, this.x(from), bottom, (to - from) * this.width, this.isTall ? 8 : height);
    };
    line("waiting", arrival, begin);
    if (!this.isTall) line(this.isFleet ? "elsewhere" : "waiting", begin, end);
    for (const place of request.handoffs) line("travel", request.columns[place - 1] + 1, request.columns[place]);
  }

  drawHover() {
    if (!this.hover || this.hover.column === null || this.hover.column < this.start) return;
    const { ink } = inks();
    this.context.strokeStyle = ink;
    this.context.lineWidth = 1;
    this.context.strokeRect(this.x(this.hover.column) - 0.5, HEAD - 12, Math.max(2, this.width), this.size.height);
  }
}
