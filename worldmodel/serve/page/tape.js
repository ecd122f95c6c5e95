// The keys of the run so far, by picture, so that they can be seen again while the server repeats them.

const REST = {};

export class Tape {
  constructor() {
    this.actions = new Map(); // of inputs whose first picture is still to come, by seq
    this.clear();
  }

  clear() { this.notes = []; } // {index, action}, where the action changed

  /** An input was sent. */
  sent(seq, action) { this.actions.set(seq, action); }

  /** A picture that obeys live keys has come. */
  note({ index, input, place }) {
    if (place !== 0) return;
    for (const seq of this.actions.keys()) if (seq < input) this.actions.delete(seq);
    const action = this.actions.get(input) ?? REST;
    if (this.notes.at(-1)?.action !== action) this.notes.push({ index, action });
  }

  /** What was held at a picture, null if that is not known. */
  at(index) { return this.notes.findLast((note) => note.index <= index)?.action ?? null; }

  /** Forget what was held after a picture. */
  cut(index) { this.notes = this.notes.filter((note) => note.index <= index); }
}
