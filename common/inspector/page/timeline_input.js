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

  function hover(place) {
    timeline.hover = place;
    tell(place ? describe(timeline) : "");
    redraw();
  }

  const pointer = {
    pointerdown(event) {
      drag = { x: point(event)[0], edge: timeline.edge, moved: false };
      timeline.held = true;
      canvas.setPointerCapture(event.pointerId);
    },
    pointermove(event) {
      const [x, y] = point(event);
      if (drag) {
        drag.moved ||= Math.abs(x - drag.x) > 4;
        if (drag.moved) moveTo(drag.edge + Math.round((drag.x - x) / timeline.width));
        return;
      }
      const request = timeline.rowAt(y);
      canvas.style.cursor = x < timeline.gutter && request ? "pointer" : "grab";
      hover({ column: timeline.columnAt(x), request });
    },
    pointerup(event) {
      if (drag && !drag.moved) selection.toggle(timeline.rowAt(point(event)[1])?.n ?? null);
    },
    lostpointercapture() {
      drag = null;
      timeline.held = false;
      redraw();
    },
    pointerleave: () => hover(null),
    wheel(event) {
      event.preventDefault();
      const { deltaX, deltaY } = event;
      if (event.shiftKey || Math.abs(deltaX) > Math.abs(deltaY)) {
        moveTo(timeline.edge + Math.sign(deltaX || deltaY) * Math.ceil(30 / timeline.width));
      } else if (timeline.hidden && point(event)[0] < timeline.gutter) {
        timeline.scroll -= Math.sign(deltaY);
        redraw();
      } else zoom(deltaY < 0 ? 1.15 : 1 / 1.15);
    },
    keydown(event) {
      if (!(event.key in keys)) return;
      event.preventDefault();
      keys[event.key](event.shiftKey ? 20 : 1);
      const request = selection.number === null ? null : store.request(selection.number);
      hover({ column: Math.max(store.first, timeline.edge - 1), request });
    },
  };
  const keys = {
    ArrowLeft: (steps) => moveTo(timeline.edge - steps),
    ArrowRight: (steps) => moveTo(timeline.edge + steps),
    Home: () => moveTo(store.first + 1),
    End: () => moveTo(store.columns),
    "+": () => zoom(1.25),
    "-": () => zoom(0.8),
    ArrowUp: () => pick(timeline, -1),
    ArrowDown: () => pick(timeline, 1),
  };
  for (const [name, listener] of Object.entries(pointer)) canvas.addEventListener(name, listener, { passive: false });
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
function describe({ hover: { column, request }, store }) {
  const step = column === null ? null : store.step(column);
  const parts = [];
  if (request) parts.push(`${request.letter}: ${request.promptTokens} prompt tokens`);
  if (!step) return parts.join();
  const whole = `${count(step.tokens)} tokens of ${step.works.length} requests`;
  parts.push(`step ${count(step.i)}, ${milliseconds(1000 * (step.e - step.s))}, ${whole}`);
  if (store.hello.kind === "fleet") parts.push(`worker ${step.worker}`);
  const place = request?.place(column);
  if (request?.columns[place] === column) {
    const { phase, tokens, draftTokens, accepted } = request.works[place];
    parts.push(`${request.letter}: ${PHASES[phase]}, ${count(tokens)} tokens`);
    if (draftTokens) parts.push(`${accepted} of ${draftTokens.length} draft tokens accepted`);
  }
  if (request?.preemptions.includes(column)) parts.push(`${request.letter} is preempted`);
  return parts.join(" · ");
}
