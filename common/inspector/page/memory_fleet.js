// Stage 08: a block of squares for each worker, a square a page, and between them the pages that are on their way.
// The router knows how many pages each request has on a worker, not which: squares are counted here, not placed.

import { FONT, count } from "inspector/dom";
import { colour, inks, mark } from "inspector/marks";

const TITLE = 26;
const LANE = 78;
const ARRIVED_SECONDS = 1.5; // of the reader's: how long pages that have arrived are still shown on their way
const PREFILL = 1; // places in a flight: [phase, prefill worker, decode worker]
const DECODE = 2;

export function drawFleet({ context, width, height, store, moment, time, speed, selection }) {
  const { workers, flights } = moment.memory;
  const roles = store.hello.sizes.workers;
  const prefill = roles.filter((worker) => worker.role === "prefill");
  const decode = roles.filter((worker) => worker.role !== "prefill");
  const block = Math.floor((height - LANE) / (roles.length || 1));
  const scene = { context, width, store, workers, flights, time, speed, selection, maps: [] };
  const lane = prefill.length * block;
  prefill.forEach((worker, at) => drawWorker(scene, worker, PREFILL, at * block, block));
  drawLane(scene, lane);
  decode.forEach((worker, at) => drawWorker(scene, worker, DECODE, lane + LANE + at * block, block));
  const up = workers.filter((worker) => worker.up).length;
  const stats = moment.stats;
  const moved = stats.handoffs ? `${count(stats.handoffs)} prompts handed over` : "no prompt handed over yet";
  const lost = stats.workers_lost
    ? `, ${count(stats.workers_lost)} workers lost, ${count(stats.requests_resumed)} requests begun again`
    : "";
  const at = (x, y) => ownerAt(scene, x, y);
  return { at, sums: `${up} of ${workers.length} workers up, ${moved}${lost}.` };
}

function pagesOf(scene, number, size) {
  const request = scene.store.request(number);
  return Math.max(1, Math.ceil((request.promptTokens + request.tokensAt(scene.time)) / (size || 16)));
}

function drawWorker(scene, role, place, y, height) {
  const { context, width, workers, flights } = scene;
  const worker = workers[role.number];
  const { ink, soft, line, alert } = inks();
  context.font = `600 13px ${FONT}`;
  context.fillStyle = worker.up ? ink : alert;
  context.textAlign = "left";
  const name = `worker ${role.number}: ${role.role === "prefill" ? "runs prompts" : "writes answers"}`;
  context.fillText(worker.up ? name : `${name} – down, a new process starts`, 0, y + 17);
  context.strokeStyle = worker.up ? line : alert;
  context.lineWidth = worker.up ? 1 : 2;
  context.strokeRect(1, y + TITLE - 2, width - 2, height - TITLE - 4);
  if (!worker.up) {
    mark(context, "preempted", "", 0, y + TITLE, width, height - TITLE - 8);
    return;
  }
  const held = [...flights].filter(
    ([, flight]) => flight[place] === role.number || (place === PREFILL && flight[DECODE] === role.number),
  );
  const cells = [];
  for (const [number, [phase]] of held) {
    const texture = phase === "transfer" && place === DECODE ? "rejected" : phase === "prefill" ? "prefill" : "decode";
    for (let page = 0; page < pagesOf(scene, number, worker.page_size); page++) cells.push({ number, texture, page });
  }
  const { size, columns, each } = squares(width - 12, height - TITLE - 14, worker.pages);
  const used = `${count(worker.pages - worker.free)} of ${count(worker.pages)} pages`;
  const more = ` in use, ${count(worker.cached)} cached${each > 1 ? `; a square is ${each}` : ""}`;
  const beside = width - context.measureText(name).width - 10; // the name
  context.font = `12px ${FONT}`;
  context.fillStyle = soft;
  context.textAlign = "right";
  const fitting = [used + more, used].find((words) => context.measureText(words).width <= beside) ?? "";
  context.fillText(fitting, width, y + 17);
  context.textAlign = "left";
  const [left, top] = [6, y + TITLE + 4];
  for (let at = 0; at * each < worker.pages; at++) {
    const [cellX, cellY] = [left + (at % columns) * size, top + Math.floor(at / columns) * size];
    const isCached = at * each < cells.length + worker.cached;
    drawCell(scene, cells[at * each], isCached, cellX, cellY, size - (size > 8 ? 2 : 1));
  }
  scene.maps.push({ left, top, size, columns, each, cells });
}

// The largest squares that fit; where squares of 4 units do not, a square is several pages.
function squares(width, height, pages) {
  let size = Math.max(4, Math.floor(Math.sqrt((width * height) / pages)) + 1);
  while (size > 4 && Math.ceil(pages / Math.floor(width / size)) * size > height) size -= 1;
  const columns = Math.floor(width / size);
  return { size, columns, each: Math.max(1, Math.ceil(pages / (columns * Math.max(1, Math.floor(height / size))))) };
}

function ownerAt({ maps, store }, x, y) {
  for (const { left, top, size, columns, each, cells } of maps) {
    const [column, row] = [Math.floor((x - left) / size), Math.floor((y - top) / size)];
    const cell = column >= 0 && column < columns && row >= 0 ? cells[(row * columns + column) * each] : null;
    if (cell) return { words: `${store.request(cell.number).letter}’s page ${cell.page + 1}`, owner: cell.number };
  }
  return null;
}

function drawCell({ context, store, selection }, cell, isCached, x, y, side) {
  const { line, soft, on, ink } = inks();
  if (!cell) {
    if (isCached) mark(context, "cached", soft, x, y, side, side);
    else {
      context.strokeStyle = line;
      context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    }
    return;
  }
  context.globalAlpha = selection.dims(cell.number) ? 0.3 : 1;
  mark(context, cell.texture, colour(store.request(cell.number).hue), x, y, side, side);
  if (side >= 12) {
    context.font = `600 ${Math.min(12, side * 0.6)}px ${FONT}`;
    context.textAlign = "center";
    context.fillStyle = cell.texture === "decode" ? on : ink;
    context.fillText(store.request(cell.number).letter, x + side / 2, y + side / 2 + 4);
    context.textAlign = "left";
  }
  context.globalAlpha = 1;
}

// What travels now, and what waits for room on the other side.
function drawLane(scene, y) {
  const { context, width, store, flights } = scene;
  const { soft, line } = inks();
  context.font = `12px ${FONT}`;
  context.fillStyle = soft;
  context.fillText("pages on their", 0, y + 16);
  context.fillText("way ↓", 0, y + 32);
  context.strokeStyle = line;
  context.setLineDash([2, 4]);
  context.beginPath();
  context.moveTo(0, y + LANE - 6);
  context.lineTo(width, y + LANE - 6);
  context.stroke();
  context.setLineDash([]);
  const moving = [...flights]
    .map(([number, [phase]]) => [number, phase])
    .filter(([, phase]) => phase === "ready" || phase === "transfer");
  const known = moving.map(([number]) => number);
  for (const number of arrivals(scene)) if (!known.includes(number)) moving.push([number, "arrived"]);
  moving.slice(0, Math.floor((width - 108) / 72)).forEach(([number, phase], at) => {
    const x = 108 + at * 72;
    const hex = colour(store.request(number).hue);
    const pages = pagesOf(scene, number, 16);
    for (let page = 0; page < Math.min(pages, 12); page++) {
      const [cellX, cellY] = [x + (page % 4) * 11, y + 6 + Math.floor(page / 4) * 11];
      mark(context, phase === "ready" ? "prefill" : "decode", hex, cellX, cellY, 10, 10);
    }
    context.fillStyle = hex;
    context.font = `600 12px ${FONT}`;
    context.fillText(`${store.request(number).letter}: ${pages}`, x, y + 54);
    context.fillStyle = soft;
    context.font = `11px ${FONT}`;
    context.fillText({ ready: "wait", transfer: "travel", arrived: "arrived" }[phase], x, y + 68);
  });
}

// The requests whose pages arrived a moment ago: their first decode step there has just been.
function arrivals({ store, time, speed }) {
  const found = [];
  for (const request of store.requests.values()) {
    const times = request.handoffs.map((place) => request.works[place].t);
    if (times.some((t) => t <= time && t > time - ARRIVED_SECONDS * speed)) found.push(request.n);
  }
  return found;
}
