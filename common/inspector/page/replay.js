// A recording: the updates of one engine or two, packed into the page. All of them are read at once; then the clock
// runs through them, and any moment can be shown.

import { say, template } from "inspector/dom";
import { Store } from "inspector/store";

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
    this.element = template("player");
    const { play, speed, range } = (this.fields = this.element.elements);
    play.onclick = () => this.toggle();
    speed.onchange = () => this.setSpeed(Number(speed.value));
    range.oninput = () => this.seek();
    clock.show(clock.oldest);
    // A short recording plays slowly, so that it can be watched: a fast machine takes a hundred steps in a second.
    const speeds = [...speed.options].map(({ value }) => Number(value));
    this.setSpeed(speeds.find((one) => clock.newest - clock.oldest >= WATCHED_SECONDS * one) ?? speeds.at(-1));
  }

  setSpeed(speed) {
    this.clock.speed = speed;
    this.fields.speed.value = String(speed);
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
    clock.show(clock.oldest + (Number(this.fields.range.value) / 1000) * (clock.newest - clock.oldest));
  }

  draw() {
    const { clock, fields } = this;
    const [at, whole] = [clock.shown - clock.oldest, clock.newest - clock.oldest];
    fields.range.value = Math.round((1000 * at) / (whole || 1));
    say(fields.where, `${at.toFixed(2)} of ${whole.toFixed(2)} s`);
    say(fields.play, clock.running ? "Pause" : "Play");
  }
}
