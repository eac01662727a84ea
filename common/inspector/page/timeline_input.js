// What a pointer and keys do in the timeline: drag or arrows move through time, the wheel zooms (over the names it
// scrolls them), a click picks a request.

import { PHASES } from "inspector/marks";
import { count, milliseconds, point } from "inspector/dom";
import { ZOOM } from "inspector/timeline";

export function listen(timeline, { redraw, tell }) {
  const { canvas, clock, store, selection } = timeline;
  let drag = null;

  function moveTo(edge) {
    if (edge >= store.columns && !clock.recorded) clock.follow();
    else clock.show(store.hello.began + store.endOf(Math.max(store.first + 1, Math.min(edge, store.columns))));
  }

  function zoom(factor) {
    timeline.zoomed = true;
    timeline.width = Math.min(ZOOM.most, Math.max(ZOOM.least, timeline.width * factor));
    redraw();
  }

  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: point(event)[0], edge: timeline.edge, moved: false };
    timeline.held = true;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = point(event);
    if (drag) {
      const columns = Math.round((drag.x - x) / timeline.width);
      drag.moved ||= Math.abs(x - drag.x) > 4;
      if (drag.moved) moveTo(drag.edge + columns);
      return;
    }
    timeline.hover = { column: timeline.columnAt(x), request: timeline.rowAt(y) };
    canvas.style.cursor = x < timeline.gutter && timeline.hover.request ? "pointer" : "grab";
    tell(describe(timeline));
    redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) selection.toggle(timeline.rowAt(point(event)[1])?.n ?? null);
  });
  canvas.addEventListener("lostpointercapture", () => {
    drag = null;
    timeline.held = false;
    redraw();
  });
  canvas.addEventListener("pointerleave", () => {
    timeline.hover = null;
    tell("");
    redraw();
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        moveTo(timeline.edge + Math.sign(event.deltaX || event.deltaY) * Math.ceil(30 / timeline.width));
      } else if (timeline.hidden && point(event)[0] < timeline.gutter) {
        timeline.scroll -= Math.sign(event.deltaY);
        redraw();
      } else zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15);
    },
    { passive: false },
  );
  const keys = {
    ArrowLeft: (event) => moveTo(timeline.edge - (event.shiftKey ? 20 : 1)),
    ArrowRight: (event) => moveTo(timeline.edge + (event.shiftKey ? 20 : 1)),
    Home: () => moveTo(store.first + 1),
    End: () => moveTo(store.columns),
    "+": () => zoom(1.25),
    "-": () => zoom(0.8),
    ArrowUp: () => pick(timeline, -1),
    ArrowDown: () => pick(timeline, 1),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key](event);
    const request = selection.number === null ? null : store.request(selection.number);
    timeline.hover = { column: Math.max(store.first, timeline.edge - 1), request };
    tell(describe(timeline));
  });
}

// The next request or the one before, with its row in view.
function pick(timeline, by) {
  const { alive, rows, selection } = timeline;
  const at = alive.findIndex((request) => request.n === selection.number);
  const next = at < 0 ? rows[0] : alive[Math.min(Math.max(0, at + by), alive.length - 1)];
  selection.select(next?.n ?? null);
  const behind = alive.length - 1 - alive.indexOf(next); // rows below it
  timeline.scroll = Math.min(behind, Math.max(timeline.scroll, behind - rows.length + 1));
}

// What is under the pointer, in words and numbers.
export function describe(timeline) {
  const { column, request } = timeline.hover ?? {};
  const step = column === null || column === undefined ? null : timeline.store.step(column);
  const parts = [];
  if (request) parts.push(`${request.letter}: ${request.promptTokens} prompt tokens`);
  if (step) {
    const whole = `${count(step.tokens)} tokens of ${step.works.length} requests`;
    parts.push(`step ${count(step.i)}, ${milliseconds(1000 * (step.e - step.s))}, ${whole}`);
    if (timeline.store.hello.kind === "fleet") parts.push(`worker ${step.worker}`);
    const place = request ? request.place(column) : -1;
    if (request && request.columns[place] === column) {
      const work = request.works[place];
      parts.push(`${request.letter}: ${PHASES[work.phase]}, ${count(work.tokens)} tokens`);
      if (work.draftTokens) parts.push(`${work.accepted} of ${work.draftTokens.length} draft tokens accepted`);
    }
    if (request?.preemptions.includes(column)) parts.push(`${request.letter} is preempted`);
  }
  return parts.join(" · ");
}
