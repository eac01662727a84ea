// A recording: the updates of one engine or two, packed into the page. All of them are read at once; then the clock
// runs through them, and any moment can be shown.

import { el, say } from "inspector/dom";
import { Store } from "inspector/store";

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

const SPEEDS = [1, 0.5, 0.25, 0.1, 0.05];
const WATCHED_SECONDS = 15;

export class Player {
  constructor(clock) {
    this.clock = clock;
    this.play = el("button", { type: "button", class: "primary", onclick: () => this.toggle() }, "Pause");
    this.range = el("input", {
      type: "range",
      min: 0,
      max: 1000,
      value: 0,
      class: "wide",
      "aria-label": "moment of the recording",
      oninput: () => this.seek(),
    });
    this.where = el("output", { class: "where" });
    this.speed = el("select", {
      "aria-label": "speed",
      onchange: () => {
        clock.speed = Number(this.speed.value);
        clock.changed();
      },
    });
    for (const speed of SPEEDS)
      this.speed.append(el("option", { value: speed }, speed === 1 ? "as it was" : `${speed} × speed`));
    this.element = el(
      "form",
      { class: "controls player" },
      el("span", { class: "group" }, this.play, this.speed),
      this.range,
      this.where,
    );
    // So slowly that it can be watched, if it is short: a fast machine takes a hundred steps in a second.
    clock.speed = SPEEDS.find((speed) => clock.newest - clock.oldest >= WATCHED_SECONDS * speed) ?? SPEEDS.at(-1);
    this.speed.value = String(clock.speed);
    clock.listeners.add(() => this.show());
    clock.show(clock.oldest);
  }

  toggle() {
    const { clock } = this;
    if (!clock.running && clock.shown >= clock.newest) clock.show(clock.oldest);
    clock.running = !clock.running;
    this.show();
  }

  seek() {
    const { clock } = this;
    clock.running = false;
    clock.show(clock.oldest + (Number(this.range.value) / 1000) * (clock.newest - clock.oldest));
  }

  show() {
    const { clock } = this;
    const [at, whole] = [clock.shown - clock.oldest, clock.newest - clock.oldest];
    this.range.value = Math.round((1000 * at) / (whole || 1));
    say(this.where, `${at.toFixed(2)} of ${whole.toFixed(2)} s`);
    say(this.play, clock.running ? "Pause" : "Play");
  }
}
