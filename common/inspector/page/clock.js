// Which moment the page shows. Times are on the wall clock, so that two engines share one.

const ROUNDING = 1e-6; // seconds

export class Clock {
  constructor(stores, recorded) {
    this.stores = stores; // grows as engines connect
    this.recorded = recorded;
    this.live = true; // follows the newest
    this.shown = 0;
    this.speed = 1; // engine's seconds in one of the reader's: what is shown for a while is shown as long at any speed
    this.running = recorded; // a recording plays by itself
    this.listeners = new Set();
  }

  // Those that have connected.
  get known() {
    return this.stores.filter(Boolean);
  }

  get newest() {
    return Math.max(0, ...this.known.map((store) => store.hello.began + store.now));
  }

  get oldest() {
    const begins = this.known
      .filter((store) => store.moments.length)
      .map((store) => store.hello.began + store.moments[0].t);
    return begins.length ? Math.min(...begins) : 0;
  }

  // The moment shown, on one engine's own clock. Since 1970 a number counts microseconds at best: what has just been is
  // not to be missed by one.
  of(store) {
    return (this.live ? this.newest : this.shown) - store.hello.began + ROUNDING;
  }

  follow() {
    this.live = true;
    this.changed();
  }

  show(time) {
    this.live = false;
    this.shown = Math.min(Math.max(time, this.oldest), this.newest);
    this.changed();
  }

  // A recording goes on by `seconds` real seconds.
  tick(seconds) {
    if (!this.recorded || !this.running) return;
    const next = (this.live ? this.oldest : this.shown) + seconds * this.speed;
    if (next >= this.newest) this.running = false;
    this.show(next);
  }

  changed() {
    for (const listener of this.listeners) listener();
  }
}
