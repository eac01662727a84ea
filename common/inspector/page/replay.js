// A recording: the updates of one engine or two, packed into the page. All of them are read at once; then the clock
// runs through them, and any moment can be shown.

import { button, el, say } from "inspector/dom";
import { Store } from "inspector/store";

const SPEEDS = [1, 0.5, 0.25, 0.1, 0.05];
const WATCHED_SECONDS = 15;

export async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const streams = JSON.parse(await new Response(stream).text());
  return streams.map(([hello, ...updates]) => {
    const store = new Store(hello);
    for (const update of updates) store.apply(update);
    return store;
  });
}

export class Player {
  constructor(clock) {
    this.clock = clock;
    this.play = button("Pause", () => this.toggle(), { class: "primary" });
    const seek = { oninput: () => this.seek(), "aria-label": "moment of the recording" };
    this.range = el("input", { type: "range", min: 0, max: 1000, value: 0, class: "wide", ...seek });
    this.where = el("output", { class: "where" });
    const speeds = SPEEDS.map((value) => el("option", { value }, value === 1 ? "as it was" : `${value} × speed`));
    this.speed = el(
      "select",
      { "aria-label": "speed", onchange: () => this.setSpeed(Number(this.speed.value)) },
      ...speeds,
    );
    const group = el("span", { class: "group" }, this.play, this.speed);
    this.element = el("form", { class: "controls player" }, group, this.range, this.where);
    clock.show(clock.oldest);
    // So slowly that it can be watched, if it is short: a fast machine takes a hundred steps in a second.
    this.setSpeed(SPEEDS.find((speed) => clock.newest - clock.oldest >= WATCHED_SECONDS * speed) ?? SPEEDS.at(-1));
  }

  setSpeed(speed) {
    this.clock.speed = speed;
    this.speed.value = String(speed);
    this.clock.changed();
  }

  toggle() {
    const { clock } = this;
    if (!clock.running && clock.shown >= clock.newest) clock.show(clock.oldest);
    clock.running = !clock.running;
  }

  seek() {
    const { clock } = this;
    clock.running = false;
    clock.show(clock.oldest + (Number(this.range.value) / 1000) * (clock.newest - clock.oldest));
  }

  draw() {
    const { clock } = this;
    const [at, whole] = [clock.shown - clock.oldest, clock.newest - clock.oldest];
    this.range.value = Math.round((1000 * at) / (whole || 1));
    say(this.where, `${at.toFixed(2)} of ${whole.toFixed(2)} s`);
    say(this.play, clock.running ? "Pause" : "Play");
  }
}
