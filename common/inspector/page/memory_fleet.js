// Stage 08: a block of squares for each worker, a square a page, and between them the pages that are on their way.
// The router knows how many pages each request has on a worker, not which: squares are counted here, not placed.

import { block, count, frame, squares, write } from "inspector/dom";
import { colour, inks, mark } from "inspector/marks";

const TITLE = 24;
const LANE = 62;
const TRAVELLER = 78; // units that the pages of one request have in the lane
const ARRIVED_SECONDS = 1.5; // of the reader's: how long pages that have arrived are still shown on their way
const PREFILL = 1; // places in a flight: [phase, prefill worker, decode worker]
const DECODE = 2;

export function drawFleet(scene) {
  const { height, store, moment } = scene;
  const { workers, flights } = moment.memory;
  const roles = store.hello.sizes.workers;
  const block = Math.floor((height - LANE) / roles.length);
  const maps = [];
  let y = 0;
  for (const place of [PREFILL, DECODE]) {
    if (place === DECODE) drawLane(scene, flights, y);
    if (place === DECODE) y += LANE;
    for (const role of roles.filter((worker) => (worker.role === "prefill") === (place === PREFILL))) {
      maps.push(drawWorker(scene, role, place, y, block));
      y += block;
    }
  }
  const { handoffs, workers_lost: lost, requests_resumed: resumed } = moment.stats;
  const moved = handoffs ? `${count(handoffs)} prompts handed over` : "no prompt handed over yet";
  const gone = lost ? `, ${count(lost)} workers lost, ${count(resumed)} requests begun again` : "";
  const at = (x, y) => {
    const cell = maps.map((find) => find(x, y)).find(Boolean);
    return cell ? { words: `${store.request(cell.number).letter}’s page ${cell.page + 1}`, owner: cell.number } : null;
  };
  return { at, sums: `${workers.filter((one) => one.up).length} of ${workers.length} workers up, ${moved}${gone}.` };
}

function pagesOf({ store, time }, number, size) {
  const request = store.request(number);
  return Math.max(1, Math.ceil((request.promptTokens + request.tokensAt(time)) / (size || 16)));
}

// Returns a function that finds the page at a point.
function drawWorker(scene, { number: self, role }, place, y, height) {
  const { context, width, moment, store, selection } = scene;
  const worker = moment.memory.workers[self];
  const { ink, soft, line, alert } = inks();
  const name = `worker ${self}: ${role === "prefill" ? "runs prompts" : "writes answers"}`;
  const [top, tall] = [y + TITLE, height - TITLE - 6];
  if (!worker.up) {
    write(context, `${name} – down, a new process starts`, 0, y + 17, alert, { size: 13, bold: true });
    frame(context, alert, 0, top, width, tall);
    mark(context, "preempted", "", 0, top, width, tall);
    return () => null;
  }
  const beside = width - write(context, name, 0, y + 17, ink, { size: 13, bold: true }) - 10;
  const cells = [];
  for (const [number, flight] of moment.memory.flights) {
    const [phase] = flight;
    if (flight[place] !== self && !(place === PREFILL && flight[DECODE] === self)) continue;
    const texture = phase === "transfer" && place === DECODE ? "rejected" : phase === "prefill" ? "prefill" : "decode";
    for (let page = 0; page < pagesOf(scene, number, worker.page_size); page++) cells.push({ number, texture, page });
  }
  const { size, columns, shown } = squares(width, tall, worker.pages, 4, 40);
  const each = Math.ceil(worker.pages / shown); // where squares of 4 units do not fit, a square is several pages
  const used = `${count(worker.pages - worker.free)} of ${count(worker.pages)} pages in use`;
  const more = `, ${count(worker.cached)} cached${each > 1 ? `; a square is ${each}` : ""}`;
  const isWide = beside > 7 * (used + more).length;
  write(context, isWide ? used + more : used.replace("in use", ""), width, y + 17, soft, { align: "right" });
  const side = size - (size > 8 ? 2 : 1);
  for (let at = 0; at * each < worker.pages; at++) {
    const [cellX, cellY, cell] = [(at % columns) * size, top + Math.floor(at / columns) * size, cells[at * each]];
    if (cell) {
      const { hue, letter } = store.request(cell.number);
      context.globalAlpha = selection.dims(cell.number) ? 0.3 : 1;
      mark(context, cell.texture, colour(hue), cellX, cellY, side, side);
      const [font, ground] = [Math.min(14, side * 0.62), cell.texture === "decode" ? inks().on : ink];
      const middle = [cellX + side / 2, cellY + side / 2 + font * 0.36];
      if (side >= 12) write(context, letter, ...middle, ground, { size: font, bold: true, align: "center" });
      context.globalAlpha = 1;
    } else if (at * each < cells.length + worker.cached) mark(context, "cached", soft, cellX, cellY, side, side);
    else frame(context, line, cellX, cellY, side, side);
  }
  return (x, y) => {
    const [column, row] = [Math.floor(x / size), Math.floor((y - top) / size)];
    return column < columns && row >= 0 && y < top + tall ? cells[(row * columns + column) * each] : null;
  };
}

// What travels now, and what waits for room on the other side.
function drawLane(scene, flights, y) {
  const { context, width, store } = scene;
  const { soft, line } = inks();
  write(context, "pages on", 0, y + 18, soft);
  write(context, "their way ↓", 0, y + 33, soft);
  block(context, line, 0, y + LANE - 6, width, 1);
  const moving = new Map(arrivals(scene).map((number) => [number, "arrived"]));
  for (const [number, [phase]] of flights) if (phase === "ready" || phase === "transfer") moving.set(number, phase);
  const fitting = Math.floor((width - TRAVELLER) / TRAVELLER);
  [...moving].slice(0, fitting).forEach(([number, phase], at) => {
    const x = (at + 1) * TRAVELLER + 8;
    const { hue, letter } = store.request(number);
    const pages = pagesOf(scene, number, 16);
    for (let page = 0; page < Math.min(pages, 10); page++) {
      const [cellX, cellY] = [x + (page % 5) * 13, y + 3 + Math.floor(page / 5) * 13];
      mark(context, phase === "ready" ? "prefill" : "decode", colour(hue), cellX, cellY, 12, 12);
    }
    const words = { ready: "wait", transfer: "travel", arrived: "arrived" }[phase];
    const wide = write(context, `${letter} `, x, y + 47, colour(hue), { size: 13, bold: true });
    write(context, words, x + wide, y + 47, soft);
  });
}

// The requests whose pages arrived a moment ago: their first decode step there has just ended.
function arrivals({ store, time, speed }) {
  const isNew = (t) => t <= time && t > time - ARRIVED_SECONDS * speed;
  const all = [...store.requests.values()];
  return all.filter((one) => one.handoffs.some((place) => isNew(one.works[place].t))).map((one) => one.n);
}
