// Stages 05 to 07: a square for each page of the pool. Its letter and colour say whose it is; its solid part is filled.

import { block, bytes, count, frame, squares, write } from "inspector/dom";
import { colour, fill, inks, mark, tint } from "inspector/marks";

const TINY = 7; // units: a smaller square has no room for a frame, a letter or a second owner
const CROSS_STEPS = 15; // how long the pages of a preempted request stay crossed out, unless they are taken
const CROSS_SECONDS = 1.5; // of the reader's: at least this long, however many steps that is
const TIERS = { host: "the host keeps", disk: "the disk keeps" }; // with `--kv-host-memory` and `--kv-disk`
const TIER_HEIGHT = 34; // units: words, and below them two rows of squares

export function drawPages({ context, width, height: whole, store, moment, time, speed, selection }) {
  const { pages, page_size: pageSize } = store.hello.sizes;
  const tiers = Object.keys(TIERS).filter((tier) => moment.stats[`kv_${tier}_tokens_capacity`]);
  const height = whole - tiers.length * TIER_HEIGHT;
  tiers.forEach((tier, row) => drawTier(context, width, height + row * TIER_HEIGHT, moment.stats, tier, pageSize));
  const { size: cell, columns, shown } = squares(width, height, pages, 3, 40);
  const owners = ownersOf(store, moment, pageSize);
  const cached = new Set(moment.memory.tree.map(([page]) => page));
  const lost = givenUp(store, time, CROSS_SECONDS * speed);
  const { line, soft } = inks();
  const side = cell - (cell > 9 ? 2 : 1);
  const free = new Path2D(); // one drawing for thousands of squares
  for (let page = 0; page < shown; page++) {
    const [x, y] = [(page % columns) * cell, Math.floor(page / columns) * cell];
    const mine = owners.get(page);
    if (mine) {
      context.globalAlpha = mine.every((one) => selection.dims(one.request.n)) ? 0.25 : 1;
      const [{ request, filled }] = mine;
      if (cell < TINY) block(context, colour(request.hue), x, y, Math.max(1, (side * filled) / pageSize), side);
      else drawOwned(context, x, y, side, mine, pageSize, cached.has(page), selection);
      context.globalAlpha = 1;
    } else if (cached.has(page)) mark(context, "cached", soft, x, y, side, side);
    else {
      free.rect(x + 0.5, y + 0.5, side - 1, side - 1);
      if (lost.has(page)) mark(context, "preempted", "", x, y, side, side);
    }
  }
  context.strokeStyle = line;
  context.lineWidth = 1;
  context.stroke(free);
  drawPath(context, cell, columns, moment.memory.pages.get(selection.number), store.requests.get(selection.number));

  const idle = [...cached].filter((page) => !owners.has(page)).length;
  const kept = store.hello.kind === "pages" ? "" : `, ${count(idle)} cached`;
  const drawn = shown < pages ? ` The first ${count(shown)} are drawn.` : "";
  const one = `A page holds ${pageSize} tokens (${bytes(store.hello.sizes.bytes_per_token * pageSize)}).`;
  const used = `${count(owners.size)} of ${count(pages)} pages in use`;
  const at = (x, y) => {
    const page = Math.floor(y / cell) * columns + Math.floor(x / cell);
    if (x >= columns * cell || page >= shown) return null;
    const text = moment.memory.texts.get(page);
    const state = cached.has(page) ? "cached, no request uses it" : "free";
    const mine = owners.get(page) ?? [];
    const parts = mine.map(
      (one) => `${one.request.letter}’s page ${one.place + 1}, ${one.filled} of ${pageSize} tokens`,
    );
    const words = `page ${page}: ${parts.join("; ") || state}${text ? ` “${text.slice(0, 60)}”` : ""}`;
    return { words, owner: mine[0]?.request.n };
  };
  const sums = `${used}${kept}, ${count(pages - owners.size - idle)} free. ${one}${drawn}`;
  return { cell, columns, owners, cached, at, sums };
}

// Evicted pages that can come back. Their owners are not known. Where there are many, a square is several pages.
function drawTier(context, width, top, stats, tier, pageSize) {
  const [kept, slots] = ["", "_capacity"].map((which) => stats[`kv_${tier}_tokens${which}`] / pageSize);
  const { size, columns } = squares(width, 16, slots, 8, 16);
  const each = Math.ceil(slots / (columns * Math.max(1, Math.floor(16 / size))));
  const { soft, line } = inks();
  const words = `${TIERS[tier]} ${count(kept)} of ${count(slots)} pages${each > 1 ? `; a square is ${each}` : ""}`;
  write(context, words, 0, top + 13, soft, { size: 11 });
  for (let at = 0; at * each < slots; at++) {
    const [x, y] = [(at % columns) * size, top + 17 + Math.floor(at / columns) * size];
    if (at * each < kept) mark(context, "cached", soft, x, y, size - 1, size - 1);
    else frame(context, line, x, y, size - 1, size - 1);
  }
}

// page -> [{request, place in its table, tokens in it, tokens of it that the draft model has read}]
function ownersOf(store, moment, pageSize) {
  const found = new Map();
  for (const [number, table] of moment.memory.pages) {
    const [computed, drafted] = ["computed", "drafted"].map((name) => moment.memory[name].get(number) ?? 0);
    table.forEach((page, place) => {
      const within = (tokens) => Math.min(pageSize, Math.max(0, tokens - place * pageSize));
      const owner = { request: store.request(number), place, filled: within(computed), read: within(drafted) };
      if (found.has(page)) found.get(page).push(owner);
      else found.set(page, [owner]);
    });
  }
  return found;
}

// The pages that preempted requests gave back a moment ago.
function givenUp(store, time, seconds) {
  const lost = new Set();
  const newest = store.columnAt(time) - 1;
  const isRecent = (column) => column > newest - CROSS_STEPS || store.step(column).e > time - seconds;
  for (let column = newest; column >= store.first && isRecent(column); column--) {
    const step = store.step(column);
    for (const number of step.preempted ?? [])
      for (const page of store.at(step.s - 1e-4)?.memory.pages.get(number) ?? []) lost.add(page);
  }
  return lost;
}

function drawOwned(context, x, y, side, mine, pageSize, isInTree, selection) {
  const { on, ink } = inks();
  const band = side / mine.length;
  mine.forEach(({ request, filled }, at) => {
    const hex = colour(request.hue);
    block(context, tint(hex, 0.2), x + at * band, y, band, side);
    block(context, hex, x + at * band, y, (band * filled) / pageSize, side);
    frame(context, hex, x + at * band, y, band, side);
  });
  const [{ request, place, filled, read }] = mine;
  if (read) {
    block(context, fill(context, "cached", ink), x + 1, y + side - 5, ((side - 2) * read) / pageSize, 4);
  }
  if (side < 12) return;
  if (isInTree) {
    context.fillStyle = on;
    context.fill(new Path2D(`M${x + side - 6} ${y + 1}h5v5z`));
  }
  const isChosen = mine.some((one) => one.request.n === selection.number);
  const text = isChosen ? String(place + 1) : mine.length > 1 ? `×${mine.length}` : request.letter;
  const size = Math.min(14, side * 0.6);
  const ground = filled * 2 > pageSize ? on : ink;
  write(context, text, x + side / 2, y + side / 2 + size * 0.36, ground, { size, bold: true, align: "center" });
}

// A chosen request's page table: its pages in order, wherever they lie.
function drawPath(context, cell, columns, table, request) {
  if (!table || table.length < 2) return;
  context.strokeStyle = tint(colour(request.hue), 0.75);
  context.lineWidth = 1.5;
  context.globalAlpha = 0.65;
  context.beginPath();
  for (const page of table) context.lineTo(((page % columns) + 0.5) * cell, (Math.floor(page / columns) + 0.5) * cell);
  context.stroke();
  context.globalAlpha = 1;
}
