// The pictures of the run so far, of every world, so that one can be seen beside the other under the same keys.

import { decode } from "./protocol.js";

const LIMIT = 128e6; // bytes of all films

export class Films {
  constructor() { this.clear(); }

  clear() {
    this.films = new Map(); // world -> frames by index
    this.bytes = 0;
  }

  /** A picture of a world has come. The same keys give the same picture, so the first one is kept. */
  add(world, frame) {
    if (!this.films.has(world)) this.films.set(world, []);
    const film = this.films.get(world);
    if (film[frame.index] || this.bytes > LIMIT) return;
    film[frame.index] = frame;
    this.bytes += frame.payload.byteLength;
  }

  length(world) { return this.films.get(world)?.length ?? 0; }

  get(world, index) { return this.films.get(world)?.[index] ?? null; }

  /** Forget the pictures after one: from there on the keys are others. */
  cut(index) {
    for (const film of this.films.values()) {
      for (const frame of film.splice(index + 1)) this.bytes -= frame?.payload.byteLength ?? 0;
    }
  }
}

/** Draws single frames on a canvas, the newest one that was asked for. */
export class Still {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.asked = 0;
  }

  async draw(frame) {
    const asked = ++this.asked, bitmap = await decode(frame).catch(() => null);
    if (bitmap && asked === this.asked) {
      if (this.canvas.width !== frame.width) this.canvas.width = frame.width;
      if (this.canvas.height !== frame.height) this.canvas.height = frame.height;
      this.context.drawImage(bitmap, 0, 0);
    }
    bitmap?.close();
  }
}
