// Stage 04: a bar for each slot, as long as the whole context. The dark part holds tokens; the rest is reserved.

import { count, frame, write } from "inspector/dom";
import { colour, inks, tint } from "inspector/marks";

const LABEL = 26; // units for the letter, left of the bar
const NUMBERS = 96; // and for its numbers, right of it

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
    context.fillStyle = tint(hex, 0.13);
    context.fillRect(LABEL, y, wide, bar);
    frame(context, tint(hex, 0.55), LABEL, y, wide, bar);
    context.fillStyle = hex;
    context.fillRect(LABEL, y, Math.max(2, (wide * tokens) / length), bar);
    context.fillRect(0, y, LABEL - 5, bar);
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
