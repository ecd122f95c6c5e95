// The page of live face swapping: pictures go out, come back swapped, and are shown beside those that went.

import { Capture } from "./camera.js";
import { Connection } from "./connection.js";
import { Numbers, drawTracks } from "./numbers.js";
import { Player } from "./player.js";
import { REAL, address } from "./protocol.js";

const $ = (id) => document.getElementById(id);
const SOURCES = { camera: "camera of this browser", file: "video file of this browser" };
const view = { facts: null, source: null, file: null, stats: null, method: null, reference: null, record: null, tracks: new Map(), run: 0 };

const after = new Player($("after"), 25, shown);
const before = new Player($("before"), 25); // the server's own pictures, which follow those that are shown
const numbers = new Numbers($);
const connection = new Connection(greeting, { open: opened, message: received, frame: arrived, lost, ended });
const capture = new Capture($("video"), (bytes) => connection.send(bytes), () => connection.socket?.bufferedAmount ?? 0);

function greeting() {
  return { source: view.source === "server" ? "server" : "client", method: view.method, reference: view.reference };
}

// -- the connection ----------------------------------------------------------------------------------------------------

function opened() {
  after.restart();
  before.restart();
  numbers.restart();
  view.tracks.clear();
  $("veil").hidden = true;
  $("stop").disabled = false;
  setStatus("connecting", "waiting for pictures");
}

function received(message) {
  if (message.type === "error") return toast(message.message);
  if (message.type === "state") show(message);
  if (message.type === "stats") { view.stats = message; tell(); }
  if (message.type === "tracks") remember(message);
}

function arrived(frame) {
  (frame.flags & REAL ? before : after).push(frame, performance.now());
}

function lost(seconds) {
  setStatus("lost", "connection lost");
  veil(`The connection is lost. Next try in ${Math.ceil(seconds)} s.`);
}

function ended(line) {
  stop();
  setStatus("lost", "ended");
  veil(`${line} Click to begin again.`);
}

function veil(text) {
  $("veil").hidden = false;
  $("veil-text").textContent = text;
}

function setStatus(state, text) {
  if ($("status").dataset.state === state && $("status").textContent === text) return;
  $("status").dataset.state = state;
  $("status").textContent = text;
}

function toast(text) {
  const line = document.createElement("div");
  line.className = "toast bad";
  line.textContent = text;
  $("toasts").replaceChildren(...[...$("toasts").children].slice(-3).filter((each) => each.textContent !== text), line);
  setTimeout(() => line.remove(), 6000);
}

// -- what is shown -----------------------------------------------------------------------------------------------------

function show({ method, reference, chunk, size, record }) {
  Object.assign(view, { method, reference, record });
  check($("methods"), ({ dataset }) => dataset.method === method);
  check($("people"), ({ dataset }) => dataset.reference === reference);
  const { person, statement, date } = record.consent;
  $("agreed").replaceChildren(bold(person), ` agreed on ${date}: “${statement}”`);
  $("signed").replaceChildren("Signed by key ", bold(record.signed.public_key.slice(0, 12)), `…, watermark ${record.watermark.toString(16).padStart(4, "0")}`);
  $("save-record").disabled = false;
  $("held-face").src = picture(reference);
  $("held-face").hidden = false;
  $("facts").textContent = `${method} · regions of ${size} pixels · ${chunk === 1 ? "picture by picture" : `chunks of ${chunk}`}`;
}

/** A swapped picture is on the screen: the one it was made of goes beside it. */
function shown(frame) {
  const now = performance.now();
  let delay = null;
  if (view.source === "server") before.follow(frame.pts);
  else {
    const kept = capture.take(frame.input);
    if (kept) {
      const canvas = $("before");
      if (canvas.width !== frame.width || canvas.height !== frame.height) Object.assign(canvas, { width: frame.width, height: frame.height });
      canvas.getContext("2d", { alpha: false }).drawImage(kept.bitmap, 0, 0, frame.width, frame.height);
      kept.bitmap.close();
      delay = now - kept.at;
    }
  }
  document.body.style.setProperty("--aspect", (frame.width / frame.height).toFixed(4));
  $("begin").hidden = true;
  document.body.classList.remove("off");
  setStatus("live", "live");
  numbers.shown(frame, delay, now);
  const seen = view.tracks.get(frame.index);
  if (seen) {
    numbers.tracks = seen.tracks;
    drawTracks($("marks"), $("show-tracks").checked ? seen.tracks : [], seen.width, seen.height);
  }
  for (const index of view.tracks.keys()) if (index <= frame.index) view.tracks.delete(index);
}

function remember({ index, tracks, width, height }) {
  tracks.forEach((seen, k) => view.tracks.set(index + k, { tracks: seen, width, height }));
  while (view.tracks.size > 200) view.tracks.delete(view.tracks.keys().next().value);
}

function tell() {
  const here = after.skipped + capture.skipped;
  numbers.draw(view.stats, here, view.facts.faces);
  const { references, newest, places, bytes } = view.stats.memory;
  const reference = references > 1 ? `${references} references` : "the reference";
  $("held-text").textContent = places ? `${reference} and the newest ${newest} of ${places} frames: ${(bytes / 1e6).toFixed(1)} MB` : `${reference}, nothing of the past`;
  const bars = Array.from({ length: places }, (_, i) => {
    const bar = document.createElement("i");
    bar.classList.toggle("full", i < newest);
    return bar;
  });
  $("held-newest").replaceChildren(...bars);
}

function bold(text) {
  const element = document.createElement("b");
  element.textContent = text;
  return element;
}

function check(group, chosen) {
  for (const button of group.querySelectorAll("[role=radio]")) button.setAttribute("aria-checked", chosen(button));
}

function picture(reference) {
  return address(`api/references/${encodeURIComponent(reference)}.jpg`);
}

// -- what people do ----------------------------------------------------------------------------------------------------

async function begin(source) {
  if (source === "file" && !view.file) return $("file").click();
  stop();
  const run = view.run;
  view.source = source;
  check($("sources"), ({ dataset }) => dataset.source === source);
  $("veil").hidden = true;
  $("own").hidden = source === "server";
  $("mirror-setting").hidden = source !== "camera";
  capture.mirror = source === "camera" && $("mirror").checked;
  setStatus("connecting", source === "camera" ? "asking for the camera" : "connecting");
  try {
    if (source === "camera") await capture.camera();
    if (source === "file") await capture.file(view.file);
  } catch (error) {
    if (run !== view.run) return;
    stop();
    return toast(`No pictures: ${error.message}`);
  }
  if (run !== view.run) return;
  $("before-caption").textContent = source === "server" ? view.facts.source.name : source === "file" ? view.file.name : SOURCES[source];
  connection.tries = 0;
  connection.open();
}

function stop() {
  clearTimeout(connection.timer);
  const socket = connection.socket;
  connection.socket = null;
  socket?.close(1000);
  capture.stop();
  after.restart(); // what waits belongs to a stream that is over
  before.restart();
  view.source = null;
  view.run++;
  document.body.classList.add("off");
  check($("sources"), () => false);
  $("stop").disabled = true;
  $("begin").hidden = false;
  $("before-caption").textContent = "nothing yet";
  drawTracks($("marks"), [], 640, 360);
  setStatus("off", "off");
}

function change(wish) {
  Object.assign(view, wish);
  connection.send({ type: "change", ...wish });
  check($("methods"), ({ dataset }) => dataset.method === view.method);
  check($("people"), ({ dataset }) => dataset.reference === view.reference);
}

function saveRecord() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(view.record, null, 2)], { type: "application/json" }));
  link.download = "swap.provenance.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const chosenSource = ({ target }) => {
  const { source } = target.dataset;
  if (source === "file") view.file = null; // another one may be chosen
  if (source) begin(source);
};
$("begin-buttons").onclick = chosenSource;
$("sources").onclick = chosenSource;
$("file").onchange = ({ target }) => {
  view.file = target.files[0] ?? null;
  target.value = "";
  if (view.file) begin("file");
};
$("stop").onclick = stop;
$("veil").onclick = () => { $("veil").hidden = true; stop(); };
$("methods").onclick = ({ target }) => target.dataset.method && change({ method: target.dataset.method });
$("people").onclick = ({ target }) => {
  const { reference } = target.closest("button")?.dataset ?? {};
  if (reference) change({ reference });
};
$("widths").onclick = ({ target }) => {
  if (!target.dataset.width) return;
  capture.width = Number(target.dataset.width);
  check($("widths"), (button) => button === target);
};
$("mirror").onchange = ({ target }) => (capture.mirror = view.source === "camera" && target.checked);
$("show-numbers").onchange = ({ target }) => ($("meters").hidden = !target.checked);
$("show-tracks").onchange = () => drawTracks($("marks"), [], 640, 360);
$("save-record").onclick = saveRecord;
addEventListener("pagehide", stop);
addEventListener("keydown", ({ key, target, repeat, ctrlKey, metaKey }) => {
  if (repeat || ctrlKey || metaKey || target.tagName === "INPUT") return;
  const toggled = { t: "show-tracks", o: "show-numbers" }[key.toLowerCase()];
  if (toggled) $(toggled).click();
});

// -- the beginning -----------------------------------------------------------------------------------------------------

async function meet() {
  const answer = await fetch(address("api/info"));
  if (!answer.ok) {
    $("begin-buttons").hidden = true;
    $("begin-text").textContent = (await answer.json()).detail ?? `the server answers ${answer.status}`;
    return;
  }
  const facts = (view.facts = await answer.json());
  view.method = facts.methods[0].name;
  view.reference = facts.references[0].name;
  $("methods").replaceChildren(...facts.methods.map(({ name, parameters, chunk }) => {
    const button = document.createElement("button");
    Object.assign(button, { textContent: name, title: parameters ? `${(parameters / 1e6).toFixed(1)} M parameters, chunks of ${chunk}` : "a baseline without weights" });
    button.dataset.method = name;
    button.setAttribute("role", "radio");
    button.setAttribute("aria-checked", name === view.method);
    return button;
  }));
  $("people").replaceChildren(...facts.references.map(({ name, person }) => {
    const button = document.createElement("button"), image = document.createElement("img"), text = document.createElement("span");
    Object.assign(image, { src: picture(name), alt: "" });
    text.textContent = name;
    button.title = person;
    button.dataset.reference = name;
    button.setAttribute("role", "radio");
    button.setAttribute("aria-checked", name === view.reference);
    button.append(image, text);
    return button;
  }));
  const { person, statement, date } = facts.references[0];
  $("agreed").replaceChildren(bold(person), ` agreed on ${date}: “${statement}”`);
  for (const button of document.querySelectorAll('[data-source="server"]')) button.hidden = !facts.source;
  if (facts.source) begin("server");
}

function tick(now) {
  after.tick(now);
  requestAnimationFrame(tick);
}
requestAnimationFrame(tick);
meet();
