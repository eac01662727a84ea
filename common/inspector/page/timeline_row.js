// One row of the timeline: a request's letter and prompt, and a mark for each step that did something for it.

import { write } from "inspector/dom";
import { colour, inks, mark } from "inspector/marks";

const SAME = 8; // characters: prompts that begin alike for longer are told without them

export function drawRow(timeline, request, y, edge) {
  const { context, rowHeight, gutter, selection } = timeline;
  const height = rowHeight - (rowHeight > 14 ? 4 : 2);
  const hex = colour(request.hue);
  const { ink, soft, faint, on } = inks();
  context.fillStyle = faint;
  if (selection.number === request.n) context.fillRect(0, y, timeline.size.width, rowHeight);
  context.globalAlpha = selection.dims(request.n) ? 0.3 : 1;
  const badge = Math.min(18, rowHeight - 2);
  const wide = badge * (request.letter.length > 1 ? 1.4 : 1);
  context.fillStyle = hex;
  context.fillRect(0, y + 1, wide, badge);
  const centred = { size: Math.min(12, badge - 1), bold: true, align: "center" };
  write(context, request.letter, wide / 2, y + 1 + badge / 2 + 4.2, on, centred);
  context.save();
  context.beginPath();
  context.rect(0, y, gutter - 8, rowHeight);
  context.clip();
  const size = Math.min(12, rowHeight - 1);
  write(context, name(timeline, request), 29, y + badge / 2 + 5, request.finished === null ? ink : soft, { size });
  context.restore();
  const top = y + (rowHeight - height) / 2;
  drawWaiting(timeline, request, hex, top, height, edge);
  drawCells(timeline, request, hex, top, height, edge);
  context.globalAlpha = 1;
}

// Its prompt, without what another row's begins with, too: "Tell me a story about" tells no two apart.
function name({ rows }, { prompt }) {
  const same = Math.max(0, ...rows.map((other) => (other.prompt === prompt ? 0 : common(prompt, other.prompt))));
  const words = prompt.lastIndexOf(" ", same) + 1;
  return words > SAME ? `… ${prompt.slice(words)}` : prompt;
}

// The number of characters with which both begin.
function common(one, other) {
  let same = 0;
  while (same < 60 && same < one.length && one[same] === other[same]) same += 1;
  return same;
}

// Narrow columns of the same kind become one rectangle: a thousand steps are a few.
function drawCells(timeline, request, hex, y, height, edge) {
  const { columns, works } = request;
  const gap = timeline.width > 5 ? 1 : 0;
  const joins = (at) =>
    columns[at] < edge && columns[at] === columns[at - 1] + 1 && works[at].phase === works[at - 1].phase;
  for (let from = request.place(timeline.start), to; columns[from] < edge; from = to) {
    to = from + 1;
    if (!gap && !works[from].draftTokens) while (joins(to) && !works[to].draftTokens) to += 1;
    const width = (columns[to - 1] - columns[from] + 1) * timeline.width - gap;
    drawCell(timeline, request, from, hex, timeline.x(columns[from]), y, width, height);
  }
  for (const column of request.preemptions.filter((one) => one >= timeline.start && one < edge))
    mark(timeline.context, "preempted", hex, timeline.x(column), y, Math.max(9, timeline.width), height);
}

function drawCell(timeline, request, place, hex, x, y, width, height) {
  const { context, drawn, isTall } = timeline;
  const { phase, tokens, draftTokens, accepted } = request.works[place];
  drawn[phase] = (drawn[phase] ?? 0) + 1;
  if (draftTokens) {
    const slice = height / (1 + draftTokens.length);
    draftTokens.forEach((_, at) => {
      const top = y + height - (at + 2) * slice;
      mark(context, at < accepted ? "accepted" : "rejected", hex, x, top, width, slice - (slice > 3 ? 0.5 : 0));
    });
    mark(context, "decode", hex, x, y + height - slice, width, slice);
    return;
  }
  if (place === 0 && request.cached) {
    const share = (height * request.cached) / (request.cached + tokens);
    mark(context, "cached", hex, x, y, width, share);
    mark(context, phase, hex, x, y + share, width, height - share);
  } else if (isTall) {
    // One request at a time: as high as the tokens that were run, from the bottom up.
    const tall = Math.max(4, 0.12 * height, (height * tokens) / timeline.mostTokens);
    mark(context, phase, hex, x, y + height - tall, width, tall);
  } else {
    const inset = phase === "decode" ? height * 0.16 : 0;
    mark(context, phase, hex, x, y + inset, width, height - 2 * inset);
  }
  if (width < 26 || tokens < 2 || height < 12 || isTall) return;
  const { paper, ink } = inks();
  const wide = 6 * String(tokens).length + 4;
  context.fillStyle = paper;
  context.fillRect(x + (width - wide) / 2, y + height / 2 - 6, wide, 12);
  write(context, tokens, x + width / 2, y + height / 2 + 4, ink, { size: 10, align: "center" });
}

// A line through the steps that did nothing for it, from its arrival to its end: grey while it waits, in its colour
// while another worker has it, dashed while its pages travel.
function drawWaiting(timeline, request, hex, y, height, edge) {
  const { context, store, isTall, isFleet } = timeline;
  const { columns, arrived, finished, handoffs } = request;
  if (arrived === null) return;
  const end = finished === null ? edge : store.columnAt(finished);
  const begin = Math.min(columns[0] ?? end, end);
  const [top, tall] = isTall ? [y + height - 8, 8] : [y, height]; // a tall row's line lies at its bottom
  const line = (phase, first, last) => {
    const [from, to] = [Math.max(timeline.start, first), Math.min(edge, last)];
    if (to > from) mark(context, phase, hex, timeline.x(from), top, (to - from) * timeline.width, tall);
  };
  line("waiting", store.columnAt(arrived), begin);
  if (!isTall) line(isFleet ? "elsewhere" : "waiting", begin, end);
  for (const place of handoffs) line("travel", columns[place - 1] + 1, columns[place]);
}
