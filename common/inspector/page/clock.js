// Which moment the page shows. Times are on the wall clock, so that two engines share one.

const ROUNDING = 1e-6; // seconds

export class Clock {
  constructor(stores, recorded, changed) {
    Object.assign(this, { stores, recorded, changed }); // `stores` grows as engines connect.
    this.live = true; // follows the newest
    this.shown = 0;
    this.speed = 1; // seconds of the engine per second of the reader: times for reading are multiplied by it
    this.running = recorded; // a recording plays by itself
  }

  get newest() {
    return Math.max(0, ...this.stores.filter(Boolean).map((store) => store.hello.began + store.now));
  }

  get oldest() {
    const known = this.stores.filter((store) => store?.moments.length);
    return known.length ? Math.min(...known.map((store) => store.hello.began + store.moments[0].t)) : 0;
  }

  // The moment shown, on one engine's own clock. Seconds since 1970 are exact to a microsecond at best: ROUNDING keeps
  // what has just happened in view.
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
    const next = this.shown + seconds * this.speed;
    if (next >= this.newest) this.running = false;
    this.show(next);
  }
}
