// Pictures of the browser: its camera or a video file -> JPEG files, one after another, never more than the line takes.

import { VERSION } from "./protocol.js";

const SHOT = 4; // first byte of a picture message
const HEADER = 16;
const FASTEST = 1000 / 30; // milliseconds between two pictures
const BACKLOG = 200_000; // bytes that may wait in the socket
const QUALITY = 0.85;
const KEPT = 90; // pictures that wait for their swap

export class Capture {
  /** video: the element that plays. send(bytes) sends a message; backlog(): bytes that wait to leave. */
  constructor(video, send, backlog) {
    this.video = video;
    this.send = send;
    this.backlog = backlog;
    this.canvas = document.createElement("canvas");
    this.width = 640;
    this.mirror = false;
    this.kept = new Map(); // number -> {bitmap, at}
    this.number = 0;
    this.skipped = 0; // pictures that were not sent
    this.run = 0; // counts the starts: what belongs to an older one stops
  }

  /** Ask for the camera. Throws what the browser says against it. */
  async camera() {
    if (!navigator.mediaDevices) throw new Error("the browser gives its camera only to pages on this machine (127.0.0.1) or over HTTPS");
    this.stop();
    const run = this.run;
    const stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 }, height: { ideal: 720 }, facingMode: "user" } });
    if (run !== this.run) return stream.getTracks().forEach((track) => track.stop());
    this.video.srcObject = stream;
    await this.#play();
  }

  /** Play a video file, again and again. Throws if it cannot be played. */
  async file(file) {
    this.stop();
    this.url = URL.createObjectURL(file);
    this.video.src = this.url;
    this.video.loop = true;
    await this.#play();
  }

  stop() {
    this.run++;
    this.video.pause();
    this.video.srcObject?.getTracks().forEach((track) => track.stop());
    this.video.srcObject = null;
    this.video.removeAttribute("src");
    this.video.load();
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = null;
    for (const { bitmap } of this.kept.values()) bitmap.close();
    this.kept.clear();
  }

  /** The picture of a number and when it was taken; those before it are forgotten. */
  take(number) {
    const found = this.kept.get(number) ?? null;
    for (const [older, { bitmap }] of this.kept) {
      if (older > number) break;
      if (older < number) bitmap.close();
      this.kept.delete(older);
    }
    return found;
  }

  async #play() {
    const run = this.run, video = this.video;
    await video.play();
    let last = 0;
    const next = (work) => (video.requestVideoFrameCallback ? video.requestVideoFrameCallback(work) : setTimeout(work, FASTEST));
    const step = async () => {
      if (run !== this.run) return;
      const now = performance.now();
      if (now - last >= FASTEST - 4) {
        last = now;
        await this.#shoot(now, run);
      }
      if (run === this.run) next(step);
    };
    next(step);
  }

  async #shoot(now, run) {
    const { videoWidth, videoHeight } = this.video;
    if (!videoWidth) return;
    if (this.backlog() > BACKLOG) { this.skipped++; return; }
    const width = Math.min(this.width, videoWidth), height = Math.round((width * videoHeight) / videoWidth);
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const context = this.canvas.getContext("2d", { alpha: false });
    context.setTransform(this.mirror ? -1 : 1, 0, 0, 1, this.mirror ? width : 0, 0);
    context.drawImage(this.video, 0, 0, width, height);
    const [blob, bitmap] = await Promise.all([
      new Promise((done) => this.canvas.toBlob(done, "image/jpeg", QUALITY)), createImageBitmap(this.canvas),
    ]);
    if (run !== this.run || !blob) return bitmap.close();
    const number = ++this.number;
    this.kept.set(number, { bitmap, at: now });
    if (this.kept.size > KEPT) this.take(this.kept.keys().next().value);
    this.send(message(number, now, await blob.arrayBuffer()));
  }
}

function message(number, now, file) {
  const bytes = new Uint8Array(HEADER + file.byteLength), view = new DataView(bytes.buffer);
  view.setUint8(0, SHOT);
  view.setUint8(1, VERSION);
  view.setUint32(4, number, true);
  view.setBigUint64(8, BigInt(Math.round(1000 * now)), true);
  bytes.set(new Uint8Array(file), HEADER);
  return bytes;
}
