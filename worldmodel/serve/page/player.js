// Shows pictures in their order and evenly in time, as early as it can.
//
// Pictures arrive a chunk at a time. They are spread over the time that a chunk takes to arrive, which is measured; a
// growing backlog is played a little faster, a large one is skipped.

import { decode } from "./protocol.js";

export class Player {
  /** onShow(frame): called for every picture that was drawn. */
  constructor(canvas, fps, onShow = () => {}) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.onShow = onShow;
    this.nominal = 1000 / fps;
    this.skipped = 0;
    this.restart();
  }

  restart() {
    this.queue?.forEach((entry) => entry.bitmap?.close());
    this.queue = [];
    this.nextAt = 0;
    this.gap = 0; // measured milliseconds between chunks
    this.lastChunk = 0;
  }

  get waiting() { return this.queue.length; }

  push(frame, now) {
    if (frame.place === 0) {
      const gap = now - this.lastChunk;
      if (this.lastChunk && gap < 1500) this.gap = this.gap ? 0.8 * this.gap + 0.2 * gap : gap;
      this.lastChunk = now;
    }
    const entry = { frame, bitmap: null };
    this.queue.push(entry);
    decode(frame).then((bitmap) => (entry.bitmap = bitmap), () => (entry.broken = true));
    if (this.queue.length > 4 * frame.size) this.#skip(this.queue.length - frame.size);
  }

  /** Draw what is due. Call it on every animation frame. */
  tick(now) {
    let shown = null;
    while (this.queue.length && now >= this.nextAt) {
      const entry = this.queue[0];
      if (!entry.bitmap && !entry.broken) break;
      this.queue.shift();
      if (shown) { this.skipped++; shown.bitmap?.close(); }
      shown = entry;
      this.nextAt = Math.max(this.nextAt, now - 20) + this.#interval(entry.frame.size);
    }
    if (shown) this.#draw(shown);
    return shown?.frame ?? null;
  }

  /** Draw everything up to a presentation time: for a player that follows another one. */
  follow(pts) {
    let shown = null;
    while (this.queue.length && this.queue[0].frame.pts <= pts && (this.queue[0].bitmap || this.queue[0].broken)) {
      shown?.bitmap?.close();
      shown = this.queue.shift();
    }
    if (shown) this.#draw(shown);
  }

  #interval(size) {
    const even = this.gap ? this.gap / size : this.nominal;
    const backlog = this.queue.length > size + 2;
    return Math.min(even, 4 * this.nominal) * (backlog ? 0.8 : 1);
  }

  #skip(count) {
    for (const entry of this.queue.splice(0, count)) entry.bitmap?.close();
    this.skipped += count;
  }

  #draw({ frame, bitmap }) {
    if (!bitmap) return;
    if (this.canvas.width !== frame.width || this.canvas.height !== frame.height) {
      this.canvas.width = frame.width;
      this.canvas.height = frame.height;
    }
    this.context.drawImage(bitmap, 0, 0);
    bitmap.close();
    this.onShow(frame);
  }
}
