// The page: one connection, one player for the dream, one for the real world, and the panel's buttons.

import { Connection } from "./connection.js";
import { Controls } from "./controls.js";
import { Films, Still } from "./films.js";
import { MemoryStrip } from "./memory.js";
import { Hud, Overlay } from "./overlay.js";
import { Player } from "./player.js";
import { CONTEXT, HELD, REAL, address, upload } from "./protocol.js";
import { Tape } from "./tape.js";

const $ = (id) => document.getElementById(id);
const state = {
  world: null, stream: 0, seed: Math.floor(Math.random() * 1e6), start: 0, paused: false, hidden: false, steps: 0,
  pace: 1, seq: 0, stats: null, recordingSince: 0, seen: "", source: "", closed: false,
  name: null, // of the world that makes the stream
  before: null, // name of the world whose run is shown beside its repetition
  scripted: 0, // pictures that recorded keys decide
  at: 0, // index of the picture on the screen
  switching: 0, // switches that the server has not answered
  asked: null, // name of the world of the last of them
  fast: false, // recorded keys run as fast as they can
  window: 16, // pictures on their way
  raw: false, // small pictures come as they are: JPEG would be seen, and hardly smaller
};

const overlay = new Overlay($("numbers"), $("spark"));
const controls = new Controls(sendInput, (name) => shortcuts[name]());
const dream = new Player($("dream"), 24, dreamShown);
const real = new Player($("real"), 24);
const before = new Still($("before"));
const films = new Films();
const tape = new Tape();
const memory = new MemoryStrip($("memory"), (visible) => document.body.classList.toggle("remembering", visible));
let hud = null;

const connection = new Connection(
  () => ({
    codec: state.raw ? "raw" : "jpeg", quality: 95, policy: "latest", window: state.window,
    start: state.start, seed: state.seed, paused: state.paused, steps: state.steps || null, pace: pace(),
    world: state.name,
  }),
  { open: opened, message: received, frame: arrived, lost, ended },
);

// -- the connection ----------------------------------------------------------------------------------------------------

function opened(world) {
  state.world = world;
  state.seq = world.seq;
  dream.nominal = real.nominal = 1000 / world.fps;
  memory.fps = world.fps;
  document.title = world.title;
  $("title").textContent = world.title;
  document.body.style.setProperty("--aspect", world.width / world.height);
  showWorlds(world.worlds);
  $("about").textContent = world.starts
    ? "Every picture is made by the network, chunk by chunk, from your keys and what it remembers."
    : "Every picture is made by the network. This world begins from nothing.";
  controls.bind(world.controls, $("keys"));
  hud = new Hud($("hud"), controls);
  showStarts(world);
  $("frames").hidden = !world.frames;
  $("frame-range").max = Math.max(0, world.frames - 1);
  $("real-section").hidden = !world.real;
  state.fast = false;
  $("hint").innerHTML = "drag over the picture to look around <kbd>space</kbd> pause <kbd>R</kbd> again <kbd>N</kbd> other place <kbd>O</kbd> numbers <kbd>F</kbd> full screen";
  state.scripted = 0; // a key that is still held takes nothing over
  controls.current = {};
  controls.update();
  if (!world.resumed) {
    state.stream = state.switching = 0;
    state.asked = null;
    setReal(false);
    $("back").disabled = true;
    finishRecording();
  }
  showState();
}

function received(message) {
  switch (message.type) {
    case "started":
      if (message.stream !== state.stream && !state.switching) {
        tape.clear();
        films.clear();
      }
      if (state.switching) {
        state.switching -= 1;
        if (!state.switching) state.asked = null;
        setReal(false);
        state.before = otherFilm(message.world);
      }
      state.stream = message.stream;
      state.name = message.world;
      dream.restart();
      real.restart();
      memory.begin(message.stream);
      if (message.source === "start") state.start = message.index;
      state.source = message.source;
      state.seed = message.seed;
      $("seed").value = message.seed;
      $("replaying").hidden = message.source !== "replay";
      setScript(message.scripted);
      markStart();
      break;
    case "stats":
      state.stats = message;
      if (!$("overlay").hidden) overlay.draw(message, dream.skipped);
      if (!message.recording && state.recordingSince && performance.now() - state.recordingSince > 2500) finishRecording();
      break;
    case "memory": memory.tell(message); break;
    case "paused":
      state.paused = message.on;
      if (!message.on && scriptOver()) setScript(0);
      if (message.on && message.reason) {
        setFast(false);
        toast(message.reason);
      }
      showState();
      break;
    case "file": download(message); break;
    case "notice":
      if (message.text === "bookmark set") $("back").disabled = false;
      toast(message.text);
      break;
    case "error":
      state.switching = 0;
      state.asked = null;
      toast(message.message, true);
      break;
  }
}

function arrived(frame) {
  if (frame.stream !== state.stream) return connection.send({ type: "ack", pts: frame.pts });
  if (!state.scripted && !(frame.flags & (REAL | CONTEXT))) tape.note(frame);
  if (!(frame.flags & (REAL | HELD))) memory.keep(frame);
  if (!(frame.flags & REAL) && state.world.worlds.length > 1) films.add(state.name, frame);
  (frame.flags & REAL ? real : dream).push(frame, performance.now());
}

function dreamShown(frame) {
  const now = performance.now();
  overlay.shown(frame, now);
  memory.shown(frame.index);
  state.at = frame.index;
  showScript();
  if (frame.place === frame.size - 1 || frame.flags & CONTEXT) connection.send({ type: "ack", pts: frame.pts });
  if (now - (dreamShown.glow ?? 0) > 300) { dreamShown.glow = now; glow(); }
}

function lost(seconds) {
  veil("lost", "connection lost, trying again…");
  setStatus("lost", seconds > 1 ? `again in ${seconds} s` : "reconnecting");
}

function ended(line) {
  finishRecording();
  veil("ended", `${line} – click to connect again`);
  setStatus("lost", "ended");
  state.closed = true;
  state.name = null; // whoever listens when we connect again may know other worlds
}

// -- what a person does ------------------------------------------------------------------------------------------------

function sendInput(action, pressed) {
  state.seq += 1;
  overlay.sent(state.seq, performance.now());
  tape.sent(state.seq, action);
  connection.send({ type: "input", seq: state.seq, action });
  if (pressed && state.scripted) takeOver();
  hud?.draw();
}

function takeOver() {
  connection.send({ type: "takeover" });
  if (state.paused) pause(false);
  tape.cut(state.at);
  films.cut(state.at);
  setScript(0);
}

// Begins anew in a world, from the same beginning and under the same keys.
function switchTo(name) {
  if (!connection.live) return;
  state.switching += 1;
  state.asked = name;
  connection.send({ type: "switch", world: name });
  pause(false);
  $("dream").focus({ preventScroll: true });
}

// The world to be shown beside another: the one before, else any that has made pictures under these keys.
function otherFilm(name) {
  const others = [state.name, ...state.world.worlds.map((each) => each.name)].filter((each) => each !== name);
  return others.find((each) => films.length(each) > 1) ?? null;
}

// As fast as the machine can, as long as recorded keys are left.
function setFast(on) {
  if (on !== state.fast) connection.send({ type: "settings", pace: on ? 0 : pace() });
  state.fast = on;
  $("faster").setAttribute("aria-pressed", String(on));
}

const restart = (source, index = 0, seed = null) => connection.send({ type: "restart", source, index, seed });

// Pictures per second, 0 for as fast as possible; the protocol knows no others below 0.1 or above 1000.
function pace() {
  if (!state.world) return null;
  return state.pace === 0 ? 0 : Math.min(Math.max(state.pace * state.world.fps, 0.1), 1000);
}

function pause(on) {
  connection.send({ type: "pause", on });
}

const shortcuts = {
  pause: () => (state.closed ? connect() : pause(!state.paused)),
  reset: () => { connection.send({ type: "reset" }); pause(false); },
  next: () => {
    if (!state.world?.starts) return shortcuts.dice();
    restart("start", (state.start + 1) % state.world.starts);
    pause(false);
  },
  other: () => {
    const names = state.world?.worlds.map(({ name }) => name) ?? [];
    const at = Math.max(0, names.indexOf(state.asked ?? state.name)); // the first, as long as none has said it runs
    if (names.length > 1) switchTo(names[(at + 1) % names.length]);
  },
  dice: () => connection.send({ type: "reset", seed: Math.floor(Math.random() * 1e6) }),
  stats: () => {
    $("overlay").hidden = !$("overlay").hidden;
    $("stats").setAttribute("aria-pressed", String(!$("overlay").hidden));
    memory.toggle(!$("overlay").hidden);
    if (state.stats) overlay.draw(state.stats, dream.skipped);
  },
  look: () => {
    const smooth = document.body.classList.toggle("smooth");
    $("look").setAttribute("aria-pressed", String(smooth));
  },
  full: () => (document.fullscreenElement ? document.exitFullscreen() : document.body.requestFullscreen()),
  bookmark: () => connection.send({ type: "bookmark" }),
  back: () => { restart("bookmark"); pause(false); },
  record: () => {
    const on = !state.recordingSince;
    connection.send({ type: "record", on });
    if (on) { state.recordingSince = performance.now(); showRecording(); } else finishRecording();
  },
};
const CODES = {
  Space: "pause", KeyR: "reset", KeyN: "next", KeyO: "stats", KeyL: "look", KeyF: "full", KeyB: "bookmark", KeyV: "back",
  KeyC: "record", KeyT: "other",
};

addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input[type=number]");
  const pressing = event.code === "Space" && event.target.matches?.("button, input");
  if (typing || pressing || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  const name = CODES[event.code];
  if (!name || (name === "back" && $("back").disabled)) return;
  event.preventDefault();
  shortcuts[name]();
});

for (const name of ["pause", "reset", "next", "look", "full", "stats", "dice", "bookmark", "back", "record"]) {
  $(name).addEventListener("click", () => { shortcuts[name](); $("dream").focus({ preventScroll: true }); });
}
$("veil").addEventListener("click", () => shortcuts.pause());
$("worlds").addEventListener("click", ({ target }) => { if (target.dataset.world) switchTo(target.dataset.world); });
$("faster").addEventListener("click", () => { setFast(!state.fast); $("dream").focus({ preventScroll: true }); });
$("save").addEventListener("click", () => connection.send({ type: "save" }));
$("load").addEventListener("click", () => $("replay-file").click());
$("upload").addEventListener("click", () => $("picture-file").click());
$("replay-file").addEventListener("change", (event) => sendFile(3, event.target));
$("picture-file").addEventListener("change", (event) => sendFile(2, event.target));
$("seed").addEventListener("change", () => {
  const seed = Math.floor(Number($("seed").value));
  if (seed >= 0 && Number.isSafeInteger(seed)) connection.send({ type: "reset", seed });
  else $("seed").value = state.seed;
  $("seed").blur();
});
$("steps").addEventListener("input", () => ($("steps-value").textContent = $("steps").value));
$("steps").addEventListener("change", () => {
  state.steps = Number($("steps").value);
  connection.send({ type: "settings", steps: state.steps });
  $("steps").blur();
});
$("speed").addEventListener("click", ({ target }) => {
  if (!target.dataset.pace) return;
  state.pace = Number(target.dataset.pace);
  for (const button of $("speed").children) button.setAttribute("aria-checked", String(button === target));
  state.fast = false;
  connection.send({ type: "settings", pace: pace() });
  showFaster();
});
$("frame-range").addEventListener("input", () => ($("frame-number").textContent = $("frame-range").value));
$("frame-range").addEventListener("change", () => restart("frame", Number($("frame-range").value)));
$("real-on").addEventListener("change", () => {
  setReal($("real-on").checked);
  connection.send({ type: "real", on: $("real-on").checked });
  $("dream").focus({ preventScroll: true });
});
for (const [id, seed] of [["real-match", () => null], ["real-new", () => Math.floor(Math.random() * 1e6)]]) {
  $(id).addEventListener("click", () => { restart("real", 0, seed()); $("dream").focus({ preventScroll: true }); });
}

controls.dragOver($("dream"));
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    $("dropzone").hidden = kind === "dragleave" || kind === "drop";
    if (kind === "drop" && event.dataTransfer.files[0]) sendBlob(event.dataTransfer.files[0]);
  });
}
addEventListener("paste", (event) => { if (event.clipboardData.files[0]) sendBlob(event.clipboardData.files[0]); });
document.addEventListener("visibilitychange", () => {
  if (document.hidden && !state.paused) { state.hidden = true; pause(true); }
  else if (!document.hidden && state.hidden) { state.hidden = false; pause(false); }
});

async function sendFile(kind, input) {
  const [file] = input.files;
  input.value = "";
  if (file) await sendBlob(file, kind);
}

async function sendBlob(file, kind = file.name.endsWith(".safetensors") ? 3 : 2) {
  const limit = state.world?.limits.upload ?? 0;
  if (file.size > limit - 16) return toast(`${file.name} is larger than ${Math.floor(limit / 2 ** 20)} MB`, true);
  connection.send(upload(kind, await file.arrayBuffer()));
  pause(false);
}

// -- what a person sees ------------------------------------------------------------------------------------------------

function setStatus(kind, text) {
  $("status").dataset.state = kind;
  $("status").textContent = text;
}

function showState() {
  setStatus(state.paused ? "paused" : "live", state.paused ? "paused" : "live");
  if (state.paused) veil(scriptOver() ? "over" : "paused", scriptOver() ? "the end of these keys: drive on" : "paused");
  else $("veil").hidden = true;
  $("pause-icon").setAttribute("d", state.paused ? "M7 4l13 8-13 8z" : "M7 5h4v14H7zM13 5h4v14h-4z");
}

function veil(kind, text) {
  $("veil").hidden = false;
  $("veil").dataset.kind = kind;
  $("veil-text").textContent = text;
}

const ACCENTS = ["#ffb454", "#b9a2ff", "#6ee7a8", "#ff8fa3"];

function showWorlds(worlds) {
  $("switcher").hidden = $("worlds").hidden = $("world-name").hidden = worlds.length < 2;
  document.body.classList.toggle("several", worlds.length > 1);
  $("worlds").replaceChildren(...worlds.map(({ name, title }, i) => {
    const button = document.createElement("button");
    button.dataset.world = button.textContent = name;
    button.title = `${title}: begin again in it, under the same keys`;
    button.setAttribute("role", "radio");
    button.style.setProperty("--accent", ACCENTS[i % ACCENTS.length]);
    return button;
  }));
  showWorld();
}

function showWorld() {
  const { world } = state, at = Math.max(0, world.worlds.findIndex(({ name }) => name === state.name));
  const { name, parameters, steps } = world.worlds[at], beside = [...$("worlds").children].find((each) => each.dataset.world === state.before);
  for (const [i, button] of [...$("worlds").children].entries()) button.setAttribute("aria-checked", String(i === at));
  document.body.style.setProperty("--accent", ACCENTS[at % ACCENTS.length]);
  $("world-name").textContent = name;
  if (beside) {
    $("before-name").textContent = `${state.before}, before`;
    $("before-screen").style.setProperty("--accent", beside.style.getPropertyValue("--accent"));
  }
  const millions = (parameters / 1e6).toFixed(1);
  $("facts").textContent = `${world.width} × ${world.height} · ${world.fps} frames/s · ${world.chunk} frames a chunk · ${millions} M parameters`;
  $("steps-setting").hidden = !steps;
  $("steps").value = $("steps-value").textContent = state.steps || steps;
}

const scriptOver = () => state.scripted > 0 && state.at >= state.scripted;
const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

// So many pictures of the stream are made under recorded keys.
function setScript(pictures) {
  state.scripted = pictures;
  state.at = 0;
  setFast(false);
  if (!pictures) state.before = null;
  $("before-screen").hidden = !state.before;
  $("screens").classList.toggle("two", !!state.before || $("real-on").checked);
  $("script").hidden = !pictures;
  $("switch-hint").hidden = pictures > 0;
  $("switcher").hidden = !pictures && state.world.worlds.length < 2;
  $("script-what").textContent = state.source === "replay" ? "replay" : "same keys again";
  showFaster();
  showWorld();
  if (!pictures) controls.show(null);
  showScript();
  hud?.draw();
}

function showFaster() { $("faster").hidden = state.pace === 0; }

// Where the stream is in its recorded keys.
function showScript() {
  if (!state.scripted) return;
  const { fps } = state.world, index = Math.min(state.at, state.scripted);
  const text = state.scripted < 60 * fps ? (seconds) => seconds.toFixed(1) : clock;
  $("script-time").textContent = `${text(index / fps)} / ${text(state.scripted / fps)}`;
  $("script-done").style.width = `${(100 * index) / state.scripted}%`;
  controls.show(tape.at(index));
  const frame = films.get(state.before, index);
  if (frame) before.draw(frame);
  $("before").classList.toggle("gone", index >= films.length(state.before));
  hud?.draw();
  if (scriptOver()) showState();
}

function showStarts(world) {
  if (state.seen === `${world.title} ${world.starts}`) return;
  state.seen = `${world.title} ${world.starts}`;
  $("starts").replaceChildren(...Array.from({ length: world.starts }, (_, i) => {
    const button = document.createElement("button"), image = new Image();
    image.src = address(`api/starts/${i}.jpg`);
    image.alt = `beginning ${i + 1}`;
    image.loading = "lazy";
    button.title = `begin here (${i + 1})`;
    button.append(image);
    button.addEventListener("click", () => { restart("start", i); pause(false); $("dream").focus({ preventScroll: true }); });
    return button;
  }));
}

function markStart() {
  [...$("starts").children].forEach((button, i) =>
    button.setAttribute("aria-pressed", String(state.source === "start" && i === state.start)));
}

function setReal(on) {
  $("real-on").checked = on;
  $("real-screen").hidden = $("dream-caption").hidden = !on;
  $("screens").classList.toggle("two", on);
  $("real-match").disabled = $("real-new").disabled = !on;
}

function showRecording() {
  $("recording").hidden = !state.recordingSince;
  $("record").setAttribute("aria-pressed", String(!!state.recordingSince));
  $("record").lastElementChild.textContent = state.recordingSince ? "stop recording" : "record video";
  $("recording-time").textContent = clock((performance.now() - state.recordingSince) / 1000);
}

function finishRecording() {
  state.recordingSince = 0;
  showRecording();
}

function download(file) {
  const link = document.createElement("a");
  link.href = address(file.url);
  link.download = file.name;
  link.click();
  toast(`${file.name}, ${(file.bytes / 1e6).toFixed(2)} MB`);
}

function toast(text, bad = false) {
  const note = document.createElement("div");
  note.className = bad ? "toast bad" : "toast";
  note.textContent = text;
  $("toasts").append(note);
  setTimeout(() => note.remove(), bad ? 7000 : 4000);
}

const dot = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
function glow() {
  dot.imageSmoothingEnabled = true;
  dot.drawImage($("dream"), 0, 0, 1, 1);
  const [r, g, b] = dot.getImageData(0, 0, 1, 1).data;
  $("frame").style.setProperty("--glow", `${r}, ${g}, ${b}`);
}

function connect() {
  state.closed = false;
  veil("wait", "connecting…");
  connection.open();
}

function tick(now) {
  controls.poll(now);
  const frame = dream.tick(now);
  if (frame) tick.pts = frame.pts;
  if (!$("real-screen").hidden) real.follow(tick.pts ?? 0);
  if (state.recordingSince) showRecording();
  requestAnimationFrame(tick);
}

async function begin() {
  const answer = await fetch(address("api/info")).catch(() => null);
  if (answer?.status === 403) return ended((await answer.json()).detail);
  const world = answer?.ok ? await answer.json() : null;
  if (world) {
    state.raw = world.width * world.height <= 96 * 96;
    state.window = Math.max(6, 3 * world.chunk);
  }
  connect();
  requestAnimationFrame(tick);
}
begin();
