// One row of the timeline: a request's letter and prompt, and a mark for each step that did something for it.

import { FONT } from "inspector/dom";
import { colour, inks, mark } from "inspector/marks";

const SAME = 8; // characters: prompts that begin alike for longer are told without them

export function drawRow(timeline, request, y, edge) {
  const context = timeline.context;
  const height = timeline.rowHeight - (timeline.rowHeight > 14 ? 4 : 2);
  const hex = colour(request.hue);
  const { ink, soft, faint } = inks();
  if (timeline.selection.number === request.n) {
    context.fillStyle = faint;
    context.fillRect(0, y, timeline.size.width, timeline.rowHeight);
  }
  context.globalAlpha = timeline.selection.dims(request.n) ? 0.3 : 1;
  context.fillStyle = hex;
  const badge = Math.min(18, timeline.rowHeight - 2);
  context.fillRect(0, y + 1, request.letter.length > 1 ? badge * 1.4 : badge, badge);
  context.fillStyle = inks().on;
  context.font = `600 ${Math.min(12, badge - 1)}px ${FONT}`;
  context.textAlign = "center";
  context.fillText(request.letter, (request.letter.length > 1 ? badge * 1.4 : badge) / 2, y + 1 + badge / 2 + 4.2);
  context.textAlign = "left";
  context.font = `${Math.min(12, timeline.rowHeight - 1)}px ${FONT}`;
  context.fillStyle = request.finished === null ? ink : soft;
  context.save();
  context.beginPath();
  context.rect(0, y, timeline.gutter - 8, timeline.rowHeight);
  context.clip();
  context.fillText(name(timeline, request), 29, y + badge / 2 + 5);
  context.restore();
  drawCells(timeline, request, hex, y + (timeline.rowHeight - height) / 2, height, edge);
  context.globalAlpha = 1;
}

// Its prompt, without what another row's begins with, too: "Tell me a story about" tells no two apart.
function name(timeline, { prompt }) {
  const same = Math.max(
    0,
    ...timeline.rows.map((other) => (other.prompt === prompt ? 0 : common(prompt, other.prompt))),
  );
  const words = prompt.lastIndexOf(" ", same) + 1;
  return words > SAME ? `… ${prompt.slice(words)}` : prompt;
}

function drawCells(timeline, request, hex, y, height, edge) {
  const context = timeline.context;
  drawWaiting(timeline, request, hex, y, height, edge);
  const gap = timeline.width > 5 ? 1 : 0;
  let from = request.place(timeline.start);
  while (from < request.columns.length && request.columns[from] < edge) {
    const work = request.works[from];
    let to = from + 1;
    // Narrow columns of the same kind become one rectangle: a thousand steps are a few.
    if (!gap && !work.draftTokens) {
      while (
        to < request.columns.length &&
        request.columns[to] < edge &&
        request.columns[to] === request.columns[to - 1] + 1 &&
        request.works[to].phase === work.phase &&
        !request.works[to].draftTokens
      )
        to++;
    }
    const width = (request.columns[to - 1] - request.columns[from] + 1) * timeline.width - gap;
    drawCell(timeline, request, from, hex, timeline.x(request.columns[from]), y, width, height);
    from = to;
  }
  for (const column of request.preemptions) {
    if (column >= timeline.start && column < edge)
      mark(context, "preempted", hex, timeline.x(column), y, Math.max(9, timeline.width), height);
  }
}

function drawCell(timeline, request, place, hex, x, y, width, height) {
  const work = request.works[place];
  timeline.drawn[work.phase] = (timeline.drawn[work.phase] ?? 0) + 1;
  if (place === 0 && request.cached) {
    const share = request.cached / (request.cached + work.tokens);
    mark(timeline.context, "cached", hex, x, y, width, height * share);
    mark(timeline.context, work.phase, hex, x, y + height * share, width, height * (1 - share));
  } else if (work.draftTokens) {
    const slice = height / (1 + work.draftTokens.length);
    for (let place = 0; place < work.draftTokens.length; place++) {
      const phase = place < work.accepted ? "accepted" : "rejected";
      mark(timeline.context, phase, hex, x, y + height - (place + 2) * slice, width, slice - (slice > 3 ? 0.5 : 0));
    }
    mark(timeline.context, "decode", hex, x, y + height - slice, width, slice);
  } else {
    const [top, tall] = span(timeline, work, height);
    mark(timeline.context, work.phase, hex, x, y + top, width, tall);
  }
  if (width >= 26 && work.tokens > 1 && height >= 12 && !work.draftTokens && !timeline.isTall)
    tellTokens(timeline, work.tokens, x, y, width, height);
}

// Where a cell lies in its row. One request at a time: as high as the tokens that were run, from the bottom up.
function span(timeline, work, height) {
  if (timeline.isTall) {
    const tall = Math.max(4, 0.12 * height, (height * work.tokens) / timeline.mostTokens);
    return [height - tall, tall];
  }
  const inset = work.phase === "decode" ? height * 0.16 : 0;
  return [inset, height - 2 * inset];
}

function tellTokens(timeline, tokens, x, y, width, height) {
  const context = timeline.context;
  const { paper, ink } = inks();
  context.font = `10px ${FONT}`;
  const wide = context.measureText(tokens).width + 4;
  context.fillStyle = paper;
  context.fillRect(x + (width - wide) / 2, y + height / 2 - 6, wide, 12);
  context.fillStyle = ink;
  context.fillText(tokens, x + (width - wide) / 2 + 2, y + height / 2 + 4);
}

// A line through the steps that did nothing for it, from its arrival to its end: grey while it waits, in its colour
// while another worker has it, dashed while its pages travel.
function drawWaiting(timeline, request, hex, y, height, edge) {
  if (request.arrived === null) return;
  const arrival = timeline.store.columnAt(request.arrived);
  const end = request.finished === null ? edge : timeline.store.columnAt(request.finished);
  const begin = Math.min(request.columns[0] ?? end, end);
  const bottom = timeline.isTall ? y + height - 8 : y; // a tall row's line lies at its bottom
  const line = (phase, from, to) => {
    [from, to] = [Math.max(timeline.start, from), Math.min(edge, to)];
    const [wide, tall] = [(to - from) * timeline.width, timeline.isTall ? 8 : height];
    if (to > from) mark(timeline.context, phase, hex, timeline.x(from), bottom, wide, tall);
  };
  line("waiting", arrival, begin);
  if (!timeline.isTall) line(timeline.isFleet ? "elsewhere" : "waiting", begin, end);
  for (const place of request.handoffs) line("travel", request.columns[place - 1] + 1, request.columns[place]);
}

// The number of characters with which both begin.
function common(one, other) {
  let same = 0;
  while (same < 60 && same < one.length && one[same] === other[same]) same += 1;
  return same;
}
