// Stage 04: a bar for each slot, as long as the whole context. The dark part holds tokens; the rest is reserved.

import { FONT, count } from "inspector/dom";
import { colour, inks, tint } from "inspector/marks";

const LABEL = 26; // pixels for the letter, left of the bar
const NUMBERS = 96; // and for its numbers, right of it

export function drawSlots({ context, width, height, store, moment, selection }) {
  const { slots, context: length } = store.hello.sizes;
  const owners = new Map([...moment.memory.slot].map(([number, slot]) => [slot, number]));
  const rowHeight = Math.min(34, Math.max(7, Math.floor(height / slots)));
  const bar = Math.min(22, rowHeight - 2);
  const wide = width - LABEL - NUMBERS;
  let held = 0;
  for (let slot = 0; slot < slots; slot++) {
    const [y, number] = [slot * rowHeight, owners.get(slot)];
    const { ink, soft, line, on } = inks();
    context.font = `12px ${FONT}`;
    context.textAlign = "left";
    context.lineWidth = 1;
    if (number === undefined) {
      context.strokeStyle = line;
      context.setLineDash([3, 3]);
      context.strokeRect(LABEL + 0.5, y + 0.5, wide - 1, bar - 1);
      context.setLineDash([]);
      context.fillStyle = soft;
      if (bar > 9) context.fillText("free", LABEL + wide + 8, y + bar / 2 + 4);
      continue;
    }
    const [hex, tokens] = [colour(store.request(number).hue), moment.memory.computed.get(number) ?? 0];
    held += tokens;
    context.globalAlpha = selection.dims(number) ? 0.3 : 1;
    context.fillStyle = tint(hex, 0.13);
    context.fillRect(LABEL, y, wide, bar);
    context.strokeStyle = tint(hex, 0.55);
    context.strokeRect(LABEL + 0.5, y + 0.5, wide - 1, bar - 1);
    context.fillStyle = hex;
    context.fillRect(LABEL, y, Math.max(2, (wide * tokens) / length), bar);
    context.fillRect(0, y, LABEL - 5, bar);
    context.fillStyle = on;
    context.font = `600 12px ${FONT}`;
    context.textAlign = "center";
    if (bar > 9) context.fillText(store.request(number).letter, (LABEL - 5) / 2, y + bar / 2 + 4.5);
    context.fillStyle = ink;
    context.font = `12px ${FONT}`;
    context.textAlign = "left";
    if (bar > 9) context.fillText(`${count(tokens)} of ${count(length)}`, LABEL + wide + 8, y + bar / 2 + 4);
    context.globalAlpha = 1;
  }
  const share = owners.size ? ` (${((100 * held) / (owners.size * length)).toFixed(1)} %)` : "";
  const places = `${count(owners.size * length)} places reserved, ${count(held)} hold a token${share}`;
  const at = (x, y) => {
    const number = owners.get(Math.floor(y / rowHeight));
    if (number === undefined) return null;
    const [{ letter }, tokens] = [store.request(number), moment.memory.computed.get(number) ?? 0];
    const words = `${letter}: ${count(tokens)} tokens, and ${count(length - tokens)} places for no other request`;
    return { words, owner: number };
  };
  return { sums: `${owners.size} of ${slots} slots in use: ${places}.`, at };
}
