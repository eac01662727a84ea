// The request that is followed everywhere: chosen with a click in any panel.

export class Selection {
  constructor(changed) {
    this.number = null;
    this.changed = changed;
  }

  select(number) {
    if (number === this.number) return;
    this.number = number;
    this.changed();
  }

  toggle(number) {
    this.select(number === this.number ? null : number);
  }

  // Whether a request steps back because another one is followed.
  dims(number) {
    return this.number !== null && this.number !== number;
  }
}
