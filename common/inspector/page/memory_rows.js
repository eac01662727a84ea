// What stages 01 to 04 keep: nothing, a buffer, or slots.

import { block, count, frame, squares, write } from "inspector/dom";
import { colour, inks, mark, tint } from "inspector/marks";

const LABEL = 26; // units for the letter, left of the bar
const NUMBERS = 96; // and for its numbers, right of it
const TITLE = 28;

// Stages 01 to 03: above, the tokens that the newest step ran; below, the keys and values that are kept. A square is a
// token. In 01 the upper half is full and the lower one empty; from 02 on it is the other way round.
export function drawTokens({ context, width, height, store, moment, time }) {
  const keeps = store.hello.kind === "buffers";
  // The running request; else the last one that ran.
  const request = store.requests.get(moment.running[0] ?? store.step(moment.column - 1)?.works[0]?.[0]);
  if (!request) return { sums: keeps ? "No request holds keys and values." : "Nothing is kept between two steps." };
  const work = request.works[request.place(store.columnAt(time)) - 1]; // a look may be older than the newest step
  const length = request.promptTokens + request.tokensAt(time);
  const [kept, room] = ["computed", "room"].map((name) => (keeps ? (moment.memory[name].get(request.n) ?? 0) : 0));
  const ran = work?.tokens ?? 0;
  const last = length - 1; // the newest token has been sampled, and not run
  const half = height / 2;
  const { size, columns } = squares(width, half - TITLE - 4, Math.max(length, room, 1), 4, 28);
  const hex = colour(request.hue);
  const grid = (top, tokens, phaseOf) => {
    for (let token = 0; token < tokens; token++) {
      const [x, y] = [(token % columns) * size, top + TITLE + Math.floor(token / columns) * size];
      const phase = phaseOf(token);
      if (phase) mark(context, phase, hex, x, y, size - 1, size - 1);
      else frame(context, inks().line, x, y, size - 1, size - 1);
    }
  };
  title(context, `${request.letter}: run in the last step`, `${count(ran)} of ${count(length)} tokens`, 0, width);
  grid(0, length, (token) => (token < last && token >= last - ran ? work.phase : null));
  const held = keeps ? `${count(kept)} tokens, room for ${count(room)}` : "nothing";
  title(context, "kept: keys and values", held, half, width);
  if (keeps) grid(half, room, (token) => (token < kept ? "decode" : null));
  else frame(context, inks().soft, 0, half + TITLE, width, Math.min(half - TITLE - 4, 3 * size), [4, 4]);

  const waiting = moment.waiting.length ? `, ${moment.waiting.length} waiting` : "";
  const runs = (moment.running.length ? `${request.letter} runs alone` : "No request runs") + waiting;
  if (!keeps) return { sums: `${runs}. The last step ran ${count(ran)} tokens to write one.` };
  const holds = moment.running.length ? `It holds ${count(kept)} tokens; the` : "No tokens are kept; the";
  return { sums: `${runs}. ${holds} last step ran ${count(ran)}.` };
}

function title(context, left, right, y, width) {
  write(context, left, 0, y + 18, inks().ink, { size: 13, bold: true });
  write(context, right, width, y + 18, inks().soft, { size: 13, align: "right" });
}

// Stage 04: a bar for each slot, as long as the whole context. The dark part holds tokens; the rest is reserved.
export function drawSlots({ context, width, height, store, moment, selection }) {
  const { slots, context: length } = store.hello.sizes;
  const { ink, soft, line, on } = inks();
  const owners = new Map([...moment.memory.slot].map(([number, slot]) => [slot, number]));
  const tokensOf = (number) => moment.memory.computed.get(number) ?? 0;
  const rowHeight = Math.min(38, Math.max(7, Math.floor(height / slots)));
  const bar = Math.min(26, rowHeight - 2);
  const wide = width - LABEL - NUMBERS;
  const beside = (words, y, hex) => bar > 9 && write(context, words, LABEL + wide + 8, y + bar / 2 + 4, hex);
  let held = 0;
  for (let slot = 0; slot < slots; slot++) {
    const [y, number] = [slot * rowHeight, owners.get(slot)];
    if (number === undefined) {
      frame(context, line, LABEL, y, wide, bar, [3, 3]);
      beside("free", y, soft);
      continue;
    }
    const [{ hue, letter }, tokens] = [store.request(number), tokensOf(number)];
    const hex = colour(hue);
    held += tokens;
    context.globalAlpha = selection.dims(number) ? 0.3 : 1;
    block(context, tint(hex, 0.13), LABEL, y, wide, bar);
    frame(context, tint(hex, 0.55), LABEL, y, wide, bar);
    block(context, hex, LABEL, y, Math.max(2, (wide * tokens) / length), bar);
    block(context, hex, 0, y, LABEL - 5, bar);
    if (bar > 9) write(context, letter, (LABEL - 5) / 2, y + bar / 2 + 4.5, on, { bold: true, align: "center" });
    beside(`${count(tokens)} of ${count(length)}`, y, ink);
    context.globalAlpha = 1;
  }
  const share = owners.size ? ` (${((100 * held) / (owners.size * length)).toFixed(1)} %)` : "";
  const places = `${count(owners.size * length)} places taken, ${count(held)} of them hold a token${share}`;
  const at = (x, y) => {
    const owner = owners.get(Math.floor(y / rowHeight));
    if (owner === undefined) return null;
    const rest = `${count(length - tokensOf(owner))} places for no other request`;
    return { owner, words: `${store.request(owner).letter}: ${count(tokensOf(owner))} tokens, and ${rest}` };
  };
  return { sums: `${owners.size} of ${slots} slots in use: ${places}.`, at };
}
