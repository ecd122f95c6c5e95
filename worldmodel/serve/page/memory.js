// What the memory holds, as a strip below the picture: the first frames, the chosen ones with picture and age, the newest.
//
// No picture comes twice: those that have come are kept until they leave the memory's ring, and longer if chosen.

import { decode } from "./protocol.js";

const SIDE = 96; // pixels of a thumbnail at most
const BARS = 16; // more frames than this are one bar
const LATE = 8; // chunks that a message may be ahead of the pictures
const WAITING = 16; // messages that wait for their pictures; one more shows the oldest early

export class MemoryStrip {
  /** place: holds the elements of class sink, slow and ring. onChange(visible): called when it appears or goes. */
  constructor(place, onChange) {
    this.place = place;
    this.onChange = onChange;
    [this.sink, this.slow, this.ring] = ["sink", "slow", "ring"].map((name) => place.querySelector(`.${name}`));
    this.fps = 24;
    this.open = false;
    this.stream = 0;
    this.#clear();
  }

  #clear() {
    this.pictures = new Map(); // index -> picture message, of all that may be asked for
    this.reach = 0; // newest pictures that are kept in any case
    this.chosen = new Map(); // index -> element on the page
    this.empty = []; // elements of places that hold nothing
    this.waiting = []; // messages whose newest picture is not on the screen yet
    this.now = null; // message that is shown
    this.index = 0; // of the picture on the screen
    this.slow.replaceChildren();
    this.#show();
  }

  /** A stream begins, or goes on: then what it holds is no news. */
  begin(stream) {
    if (stream !== this.stream) this.#clear();
    this.stream = stream;
    this.known = false;
  }

  /** A picture of the dream has come. */
  keep(frame) {
    this.pictures.set(frame.index, frame);
    this.reach = Math.max(this.reach, LATE * frame.size);
    this.#forget(frame.index);
  }

  /** A message of what the memory holds has come; it is shown with the pictures that it knows. */
  tell(message) {
    if (message.stream !== this.stream) return;
    this.waiting.push(message);
    if (this.waiting.length > WAITING) this.#apply(this.waiting.shift());
    const size = this.pictures.get(message.index)?.size ?? 1;
    this.reach = Math.max(this.reach, message.ring * message.pictures + LATE * size);
    this.shown(this.index);
  }

  /** The picture of this index is on the screen. */
  shown(index) {
    this.index = index;
    while (this.waiting.length && this.waiting[0].index <= index) this.#apply(this.waiting.shift());
    if (!this.place.hidden) for (const [at, element] of this.chosen) this.#age(at, element);
  }

  /** Show it, if there is something to show, or hide it. */
  toggle(open) {
    this.open = open;
    this.#show();
    this.shown(this.index);
  }

  #show() {
    const visible = this.open && !!this.now?.places;
    if (this.place.hidden !== visible) return;
    this.place.hidden = !visible;
    this.onChange(visible);
  }

  /** Drop pictures that nobody can ask for any more. */
  #forget(newest) {
    const named = new Set([this.now, ...this.waiting].flatMap((message) => message?.slow ?? []));
    for (const index of this.pictures.keys()) {
      if (index <= newest - this.reach && !named.has(index)) this.pictures.delete(index);
    }
  }

  #apply(message) {
    this.now = message;
    const held = new Set(message.slow), read = new Set(message.read);
    for (const [index, element] of this.chosen) {
      if (!held.has(index)) { element.remove(); this.chosen.delete(index); }
    }
    for (const index of message.slow) {
      if (this.chosen.has(index)) continue;
      for (const other of this.known ? this.chosen.values() : []) other.classList.remove("fresh");
      this.chosen.set(index, this.#place(index));
    }
    const empty = message.places - message.slow.length;
    while (this.empty.length > empty) this.empty.pop().remove();
    while (this.empty.length < empty) this.empty.push(box("empty"));
    const order = [...this.empty, ...message.slow.map((index) => this.chosen.get(index))];
    order.forEach((element, i) => {
      const there = this.slow.children[i];
      if (there !== element) this.slow.insertBefore(element, there ?? null); // what stays is not touched: it may glow
    });
    for (const [index, element] of this.chosen) {
      element.classList.toggle("unread", !read.has(index));
      this.#age(index, element);
    }
    bars(this.sink, message.sink, "first");
    bars(this.ring, message.ring, "newest");
    this.known = true;
    this.#show();
  }

  /** A place that holds the frame of a picture, which we may not have. */
  #place(index) {
    const element = box(this.known ? "fresh" : "");
    element.dataset.index = index;
    const frame = this.pictures.get(index);
    element.classList.toggle("unseen", !frame);
    if (frame) draw(frame, element);
    else element.title = index < 0 ? "given before the stream began" : "this picture did not come";
    return element;
  }

  #age(index, element) {
    const seconds = Math.max(0, this.index - index) / this.fps;
    const text = seconds < 60 ? `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`
      : `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
    if (element.lastElementChild.textContent !== text) element.lastElementChild.textContent = text;
  }
}

function box(name) {
  const element = document.createElement("div"), image = document.createElement("canvas"), age = document.createElement("span");
  element.className = `kept ${name}`.trim();
  image.width = image.height = 1;
  element.append(image, age);
  return element;
}

async function draw(frame, element) {
  const bitmap = await decode(frame).catch(() => null), canvas = element.firstElementChild;
  if (!bitmap) return element.classList.add("unseen");
  const scale = Math.min(1, SIDE / Math.max(frame.width, frame.height));
  canvas.width = Math.max(1, Math.round(scale * frame.width));
  canvas.height = Math.max(1, Math.round(scale * frame.height));
  canvas.getContext("2d", { alpha: false }).drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
}

/** So many frames as bars, with their number and name below. */
function bars(place, count, name) {
  if (place.dataset.count === String(count)) return;
  place.dataset.count = count;
  place.classList.toggle("many", count > BARS);
  place.firstElementChild.replaceChildren(...Array.from({ length: count > BARS ? 1 : count }, () => document.createElement("i")));
  place.lastElementChild.textContent = `${name} ${count}`;
}
