// Stages 01 to 03: above, the tokens that the newest step ran; below, the keys and values that are kept. A square is a
// token. In 01 the upper half is full and the lower one empty; from 02 on it is the other way round.

import { FONT, count } from "inspector/dom";
import { colour, inks, mark } from "inspector/marks";

export function drawTokens({ context, width, height, store, moment, time }) {
  const keeps = store.hello.kind === "buffers";
  const request = store.requests.get(shownRequest(store, moment));
  if (!request) return { sums: keeps ? "No request holds keys and values." : "Nothing is kept between two steps." };
  const place = request.place(store.columnAt(time)) - 1; // a look may be older than the newest step
  const work = request.works[Math.max(0, place)];
  const length = request.promptTokens + request.tokensAt(time);
  const kept = keeps ? (moment.memory.computed.get(request.n) ?? 0) : 0;
  const room = keeps ? (moment.memory.room.get(request.n) ?? 0) : 0;
  const ran = work && place >= 0 ? work.tokens : 0;
  const last = length - 1; // the newest token has been sampled, and not run
  const half = height / 2;
  const most = Math.max(length, room, 1);
  const size = squareSize(width, half - 34, most);
  const columns = Math.max(1, Math.floor(width / size));
  const ink = inks();
  const hex = colour(request.hue);

  title(context, `${request.letter}: run in the last step`, `${count(ran)} of ${count(length)} tokens`, 0, width);
  grid(
    context,
    columns,
    size,
    30,
    length,
    (token) => {
      const isRun = token < last && token >= last - ran;
      return isRun ? work.phase : "none";
    },
    hex,
    ink,
  );
  const held = keeps ? `${count(kept)} tokens, room for ${count(room)}` : "nothing";
  title(context, "kept: keys and values", held, half, width);
  if (keeps) {
    grid(context, columns, size, half + 30, room, (token) => (token < kept ? "decode" : "room"), hex, ink);
  } else {
    context.strokeStyle = ink.soft;
    context.setLineDash([4, 4]);
    context.strokeRect(0.5, half + 30.5, width - 1, half - 40);
    context.setLineDash([]);
  }
  const waiting = moment.waiting.length;
  const runs = moment.running.length ? `${request.letter} runs alone` : "No request runs";
  const others = waiting ? `, ${waiting} waiting` : "";
  if (!keeps) return { sums: `${runs}${others}. The last step ran ${count(ran)} tokens to write one.` };
  const holds = moment.running.length ? `It holds ${count(kept)} tokens; the` : "No tokens are kept; the";
  return { sums: `${runs}${others}. ${holds} last step ran ${count(ran)}.` };
}

// The running request; else the last one that ran.
function shownRequest(store, moment) {
  if (moment.running.length) return moment.running[0];
  const step = store.step(moment.column - 1);
  return step?.works[0]?.[0];
}

function squareSize(width, height, most) {
  let size = 22;
  while (size > 4 && Math.ceil(most / Math.floor(width / size)) * size > height) size -= 1;
  return size;
}

function title(context, left, right, y, width) {
  const { ink, soft } = inks();
  context.font = `600 13px ${FONT}`;
  context.fillStyle = ink;
  context.textAlign = "left";
  context.fillText(left, 0, y + 18);
  context.font = `13px ${FONT}`;
  context.fillStyle = soft;
  context.textAlign = "right";
  context.fillText(right, width, y + 18);
  context.textAlign = "left";
}

function grid(context, columns, size, top, tokens, phaseOf, hex, ink) {
  for (let token = 0; token < tokens; token++) {
    const [x, y] = [(token % columns) * size, top + Math.floor(token / columns) * size];
    const phase = phaseOf(token);
    if (phase === "room" || phase === "none") {
      context.strokeStyle = phase === "none" ? ink.faint : ink.line;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, size - 2, size - 2);
    } else mark(context, phase, hex, x, y, size - 1, size - 1);
  }
}
