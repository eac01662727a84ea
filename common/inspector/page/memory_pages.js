// Stages 05 to 07: a square for each page of the pool. Its letter and colour say whose it is; its solid part is filled.

import { FONT, bytes, count } from "inspector/dom";
import { colour, fill, inks, mark, tint } from "inspector/marks";

const TINY = 7; // units: a smaller square has no room for a frame, a letter or a second owner
const CROSS_STEPS = 15; // how long the pages of a preempted request stay crossed out, unless they are taken
const CROSS_SECONDS = 1.5; // of the reader's, and at least

export function drawPages({ context, width, height, store, moment, time, speed, selection }) {
  const { pages, page_size: pageSize } = store.hello.sizes;
  const layout = {
    ...arrange(width, height, pages),
    pages,
    pageSize,
    owners: owners(store, moment, pageSize),
    cached: new Map(),
  };
  for (const [page, , references] of moment.memory.tree) layout.cached.set(page, references);
  layout.texts = moment.memory.texts;
  const lost = givenUp(store, time, CROSS_SECONDS * speed);
  const { line, soft } = inks();
  const side = layout.cell - (layout.cell > 9 ? 2 : 1);
  const free = new Path2D(); // one drawing for thousands of squares
  for (let page = 0; page < layout.shown; page++) {
    const [x, y] = [(page % layout.columns) * layout.cell, Math.floor(page / layout.columns) * layout.cell];
    const mine = layout.owners.get(page);
    if (mine) {
      context.globalAlpha = selection.number !== null && mine.every((one) => selection.dims(one.request.n)) ? 0.25 : 1;
      if (layout.cell < TINY) drawTiny(context, x, y, side, mine[0], pageSize);
      else drawOwned(context, x, y, side, mine, pageSize, layout.cached.has(page), selection);
      context.globalAlpha = 1;
    } else if (layout.cached.has(page)) mark(context, "cached", soft, x, y, side, side);
    else free.rect(x + 0.5, y + 0.5, side - 1, side - 1);
  }
  context.strokeStyle = line;
  context.lineWidth = 1;
  context.stroke(free);
  for (const page of lost) {
    if (layout.owners.has(page) || layout.cached.has(page)) continue;
    const [x, y] = [(page % layout.columns) * layout.cell, Math.floor(page / layout.columns) * layout.cell];
    mark(context, "preempted", "", x, y, side, side);
  }
  drawPath(context, layout, moment.memory.pages.get(selection.number), store.requests.get(selection.number));
  layout.at = (x, y) => pageAt(layout, x, y);
  layout.sums = sums(layout, store.hello.sizes, store.hello.kind);
  return layout;
}

function sums({ owners, cached, shown }, { pages, page_size: pageSize, bytes_per_token: perToken }, kind) {
  const used = owners.size;
  const idle = [...cached.keys()].filter((page) => !owners.has(page)).length;
  const kept = kind === "pages" ? "" : `, ${count(idle)} cached`;
  const drawn = shown < pages ? ` The first ${count(shown)} are drawn.` : "";
  const one = `A page holds ${pageSize} tokens (${bytes(perToken * pageSize)}).`;
  return `${count(used)} of ${count(pages)} pages in use${kept}, ${count(pages - used - idle)} free. ${one}${drawn}`;
}

// The largest squares that fit.
function arrange(width, height, pages) {
  let cell = Math.max(3, Math.min(40, Math.floor(Math.sqrt((width * height) / pages)) + 1));
  while (cell > 3 && Math.ceil(pages / Math.floor(width / cell)) * cell > height) cell -= 1;
  const columns = Math.max(1, Math.floor(width / cell));
  return { cell, columns, shown: Math.min(pages, columns * Math.ceil(height / cell)) };
}

// page -> [{request, place in its table, tokens in it, tokens of it that the draft model has read}]
function owners(store, moment, pageSize) {
  const found = new Map();
  for (const [number, table] of moment.memory.pages) {
    const computed = moment.memory.computed.get(number) ?? 0;
    const drafted = moment.memory.drafted.get(number) ?? 0;
    const within = (tokens, place) => Math.min(pageSize, Math.max(0, tokens - place * pageSize));
    table.forEach((page, place) => {
      const owner = {
        request: store.request(number),
        place,
        filled: within(computed, place),
        read: within(drafted, place),
      };
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
    for (const number of step.preempted ?? []) {
      for (const page of store.at(step.s - 1e-4)?.memory.pages.get(number) ?? []) lost.add(page);
    }
  }
  return lost;
}

function drawTiny(context, x, y, side, { request, filled }, pageSize) {
  context.fillStyle = colour(request.hue);
  context.fillRect(x, y, Math.max(1, (side * filled) / pageSize), side);
}

function drawOwned(context, x, y, side, mine, pageSize, isInTree, selection) {
  const { on, ink } = inks();
  const band = side / mine.length;
  mine.forEach(({ request, filled }, at) => {
    const hex = colour(request.hue);
    context.fillStyle = tint(hex, 0.2);
    context.fillRect(x + at * band, y, band, side);
    context.fillStyle = hex;
    context.fillRect(x + at * band, y, (band * filled) / pageSize, side);
    context.strokeStyle = hex;
    context.lineWidth = 1;
    context.strokeRect(x + at * band + 0.5, y + 0.5, band - 1, side - 1);
  });
  const [{ request, place, filled, read }] = mine;
  if (read) {
    context.fillStyle = fill(context, "cached", ink);
    context.fillRect(x + 1, y + side - 5, ((side - 2) * read) / pageSize, 4);
  }
  if (isInTree && side >= 12) {
    context.fillStyle = on;
    context.beginPath();
    context.moveTo(x + side - 6, y + 1);
    context.lineTo(x + side - 1, y + 1);
    context.lineTo(x + side - 1, y + 6);
    context.fill();
  }
  if (side < 12) return;
  const isChosen = selection.number !== null && mine.some((one) => one.request.n === selection.number);
  const text = isChosen ? String(place + 1) : mine.length > 1 ? `×${mine.length}` : request.letter;
  context.font = `600 ${Math.min(13, side * 0.55)}px ${FONT}`;
  context.textAlign = "center";
  context.fillStyle = filled * 2 > pageSize ? on : ink;
  context.fillText(text, x + side / 2, y + side / 2 + Math.min(13, side * 0.55) * 0.36);
  context.textAlign = "left";
}

// A chosen request's page table: its pages in order, wherever they lie.
function drawPath(context, layout, table, request) {
  if (!table || table.length < 2) return;
  const { cell, columns } = layout;
  context.strokeStyle = tint(colour(request.hue), 0.75);
  context.lineWidth = 1.5;
  context.globalAlpha = 0.65;
  context.beginPath();
  for (const page of table) context.lineTo(((page % columns) + 0.5) * cell, (Math.floor(page / columns) + 0.5) * cell);
  context.stroke();
  context.globalAlpha = 1;
}

function pageAt(layout, x, y) {
  const page = Math.floor(y / layout.cell) * layout.columns + Math.floor(x / layout.cell);
  if (x >= layout.columns * layout.cell || page >= layout.pages) return null;
  return { words: pageWords(layout, page), owner: layout.owners.get(page)?.[0].request.n };
}

function pageWords(layout, page) {
  const mine = layout.owners.get(page);
  const text = layout.texts?.get(page);
  const shown = text ? ` “${text.slice(0, 60)}”` : "";
  if (!mine) return layout.cached.has(page) ? `page ${page}: cached, no request uses it${shown}` : `page ${page}: free`;
  const each = mine.map(
    ({ request, place, filled }) => `${request.letter}’s page ${place + 1}, ${filled} of ${layout.pageSize} tokens`,
  );
  return `page ${page}: ${each.join("; ")}${shown}`;
}
