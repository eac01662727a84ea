// Stages 01 to 03: above, the tokens that the newest step ran; below, the keys and values that are kept. A square is a
// token. In 01 the upper half is full and the lower one empty; from 02 on it is the other way round.

import { count, frame, squares, write } from "inspector/dom";
import { colour, inks, mark } from "inspector/marks";

const TITLE = 28;

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
