// The page of the robot demo: pictures as they come, what is counted, and the wishes of whoever watches.

import { Connection } from "./connection.js";
import { Player } from "./player.js";

const $ = (id) => document.getElementById(id);
const NOTES = {
  "nominal": "The robot is as the policy knows it.",
  "actuation-bias": "The hand ends up beside where it is told to be. The robot feels where it is, and was never taught what to do about it.",
  "encoder-offset": "The robot misreads where its hand is. Its joints look fine to it: only the cameras can tell.",
};
const view = {
  facts: null, state: null, kind: "nominal", direction: [1, 0, 0], hidden: false,
  seen: -1, // number of the newest trial whose end was shown
};

const player = new Player($("picture"), 15, (frame) => ($("progress").style.width = `${(100 * frame.index) / view.facts.horizon}%`));
const connection = new Connection(() => ({}), { open: opened, message: received, frame: (frame) => player.push(frame, performance.now()), lost, ended });

// -- the connection ----------------------------------------------------------------------------------------------------

function opened(facts) {
  view.facts = facts;
  view.seen = -1;
  player.restart();
  document.title = $("title").textContent = `robot: ${facts.task}`;
  $("correct").disabled = !facts.encoder;
  for (const button of $("ways").children) button.disabled = !facts.encoder;
  $("goal").hidden = facts.task !== "reach";
  $("about").textContent = `A trial ends when the task is solved, or after ${facts.horizon} steps. Bars are success rates, lines their 95 % intervals (Wilson).`;
  $("veil").hidden = true;
}

function received(message) {
  if (message.type === "error") return toast(message.message);
  if (message.type === "state") show(message);
}

function lost(seconds) {
  setStatus("lost", "connection lost");
  veil(`The connection is lost. Next try in ${Math.ceil(seconds)} s.`);
}

function ended(line) {
  setStatus("lost", "ended");
  veil(`${line} Click to connect again.`);
}

function veil(text) {
  $("veil").hidden = false;
  $("veil-text").textContent = text;
}

function setStatus(state, text) {
  $("status").dataset.state = state;
  $("status").textContent = text;
}

function toast(text) {
  const line = document.createElement("div");
  line.className = "toast bad";
  line.textContent = text;
  $("toasts").append(line);
  setTimeout(() => line.remove(), 6000);
}

// -- what the server says ----------------------------------------------------------------------------------------------

function show(state) {
  view.state = state;
  setStatus(state.paused ? "paused" : "live", state.paused ? "paused" : "live");
  showTrial(state);
  showShift(state.shift);
  $("correct").checked = state.correct;
  check($("ways"), (button) => button.dataset.way === state.way);
  check($("speeds"), (button) => Number(button.dataset.speed) === state.speed);
  $("pause").textContent = state.paused ? "go on" : "pause";
  $("pause").setAttribute("aria-pressed", state.paused);
  $("correct-note").textContent = correctionNote(state);
  $("facts").textContent = `round ${state.round + 1} · ${state.outcomes.length ? `trial ${state.outcomes.at(-1).number + 1}` : "no trial yet"}`;
  drawChart(state);
  drawStrip(state.outcomes);
}

function showTrial({ trial, outcomes }) {
  const last = outcomes.at(-1);
  if (trial) {
    $("said").textContent = `trial ${trial.number + 1} · ${known(trial.tokens)}`;
    $("result").hidden = true;
  } else if (last) {
    $("result").hidden = false;
    $("result").className = `result ${last.success ? "good" : "bad"}`;
    $("result").textContent = last.success ? `solved in ${last.steps} steps` : "not solved";
  }
}

function known(tokens) {
  return tokens ? `corrected by ${tokens} failed ${tokens === 1 ? "trial" : "trials"}` : "knows nothing of this robot";
}

function correctionNote(state) {
  if (!view.facts.encoder) return "No context encoder was given: start with --encoder FOLDER.";
  if (!state.correct) return "Off: every trial begins knowing nothing.";
  return `Every failed trial becomes one token, which corrects the next trial. After ${view.facts.trials} more trials a new round begins knowing nothing.`;
}

function drawChart({ table, trial }) {
  const chart = $("chart"), width = chart.clientWidth || 700, height = chart.clientHeight || 178;
  const left = 40, top = 12, bottom = height - 40, each = (width - left) / table.length;
  const y = (rate) => bottom - rate * (bottom - top), parts = [];
  for (const rate of [0, 0.5, 1]) {
    parts.push(`<line class="grid" x1="${left}" x2="${width}" y1="${y(rate)}" y2="${y(rate)}"/>`);
    parts.push(`<text class="scale" x="${left - 8}" y="${y(rate) + 4}">${100 * rate}%</text>`);
  }
  table.forEach((row, i) => {
    const x = left + each * (i + 0.5), half = Math.min(20, each * 0.28);
    const name = each > 52 ? row.name : row.after ? `+${row.after}` : row.name.replace("as ", "");
    const kind = row.name === "as built" ? "built" : row.after ? "after" : "broken";
    const now = trial && trial.shift === row.shift && trial.after === row.after;
    parts.push(`<g class="${kind}${now ? " now" : ""}" data-name="${row.name}">`);
    if (row.trials) {
      parts.push(`<rect class="bar" x="${x - half}" width="${2 * half}" y="${y(row.rate)}" height="${Math.max(1.5, bottom - y(row.rate))}"/>`);
      const [low, high] = row.interval;
      parts.push(`<path class="whisker" d="M${x} ${y(low)}V${y(high)}M${x - 5} ${y(low)}h10M${x - 5} ${y(high)}h10"/>`);
    } else {
      parts.push(`<path class="unknown" d="M${x - half} ${bottom - 1}h${2 * half}"/>`);
    }
    parts.push(`<text x="${x}" y="${bottom + 16}">${name}</text><text x="${x}" y="${bottom + 32}">${row.trials ? `${row.successes} / ${row.trials}` : "–"}</text>`);
    if (now) parts.push(`<circle class="spot" cx="${x}" cy="${bottom + 39}" r="2"/>`);
    parts.push("</g>");
  });
  chart.innerHTML = parts.join("");
}

function drawStrip(outcomes) {
  const room = Math.floor($("strip").clientWidth / 15) || 40;
  const shown = outcomes.slice(-room);
  $("strip").replaceChildren(...shown.map((each, i) => {
    const mark = document.createElement("i"), before = shown[i - 1];
    if (each.success) mark.classList.add("good");
    if (before && before.shift !== each.shift) mark.classList.add("next-robot");
    else if (before && before.round !== each.round) mark.classList.add("next-round");
    mark.title = `trial ${each.number + 1}, ${each.shift}, ${known(each.tokens)}: ${each.success ? `solved in ${each.steps} steps` : `not solved, best reward ${each.score}`}`;
    return mark;
  }));
}

function check(group, chosen) {
  for (const button of group.querySelectorAll("[role=radio]")) button.setAttribute("aria-checked", chosen(button));
}

// -- the shift ---------------------------------------------------------------------------------------------------------

function showShift(shift) {
  const [kind, numbers] = shift.split(":");
  view.kind = kind in NOTES ? kind : "";
  const delta = kind === "nominal" || !view.kind ? null : numbers.split(",").map(Number);
  const size = delta && Math.hypot(...delta);
  if (size) {
    view.direction = delta.map((each) => each / size);
    if (document.activeElement !== $("size")) $("size").value = 100 * size;
  }
  $("kind-note").textContent = NOTES[kind] ?? `This robot has the shift ${shift}.`;
  $("offset").hidden = !delta;
  check($("kinds"), (button) => button.dataset.kind === kind);
  showOffset();
}

function offset() {
  return view.direction.map((each) => (each * $("size").value) / 100);
}

function showOffset() {
  $("size-value").textContent = `${Number($("size").value).toFixed(1)} cm`;
  const [x, y, z] = offset().map((each) => `${each < 0 ? "−" : "+"}${Math.abs(100 * each).toFixed(1)}`);
  $("delta").textContent = `${x} right, ${y} far, ${z} up (cm)`;
  check($("axes"), (button) => button.dataset.axis.split(",").every((each, i) => Math.abs(each - view.direction[i]) < 1e-3));
}

function breakRobot() {
  const text = offset().map((each) => Number(each.toFixed(5))).join(",");
  connection.send({ type: "break", shift: view.kind === "nominal" ? "nominal" : `${view.kind}:${text}` });
}

function anyDirection() {
  const draw = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  const drawn = [draw(), draw(), draw()], size = Math.hypot(...drawn) || 1;
  return drawn.map((each) => each / size);
}

// -- what people do ----------------------------------------------------------------------------------------------------

const correct = (change) => connection.send({ type: "correct", on: view.state.correct, way: view.state.way, ...change });
const pause = () => view.state && connection.send({ type: "pause", on: !view.state.paused });
const again = () => connection.send({ type: "again" });

$("kinds").onclick = ({ target }) => { if (target.dataset.kind) { view.kind = target.dataset.kind; breakRobot(); } };
$("axes").onclick = ({ target }) => {
  if (target.dataset.axis) { view.direction = target.dataset.axis.split(",").map(Number); breakRobot(); }
};
$("surprise").onclick = () => { view.direction = anyDirection(); breakRobot(); };
$("size").oninput = showOffset;
$("size").onchange = breakRobot;
$("correct").onchange = ({ target }) => correct({ on: target.checked });
$("ways").onclick = ({ target }) => target.dataset.way && correct({ way: target.dataset.way });
$("speeds").onclick = ({ target }) => target.dataset.speed && connection.send({ type: "speed", times: Number(target.dataset.speed) });
$("pause").onclick = pause;
$("again").onclick = again;
$("clear").onclick = () => connection.send({ type: "clear" });
$("veil").onclick = () => connection.open();
addEventListener("keydown", ({ key, target, repeat, ctrlKey, metaKey }) => {
  if (repeat || ctrlKey || metaKey || target.tagName === "INPUT" || (key === " " && target.tagName === "BUTTON")) return;
  if (key === " ") pause();
  if (key.toLowerCase() === "r") again();
});
addEventListener("resize", () => view.state && show(view.state));

function tick(now) {
  player.tick(now);
  requestAnimationFrame(tick);
}
requestAnimationFrame(tick);
connection.open();
