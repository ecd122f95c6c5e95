// The numbers of the stream with the curve of its latency, and where the faces are. Nothing of it lies over the swapped
// pictures, whose label stays in sight.

const KEEP = 90; // pictures in the curve
const NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

export class Numbers {
  /** place(id): an element of the page. */
  constructor(place) {
    [this.rates, this.latency, this.stages] = ["rates", "latency", "stages"].map(place);
    this.spark = place("spark").getContext("2d");
    this.restart();
  }

  restart() {
    this.latencies = [];
    this.delays = []; // milliseconds from the camera to the screen
    this.shownAt = [];
    this.tracks = [];
  }

  /** A picture is on the screen; delay: milliseconds since it was taken here, or null. */
  shown(frame, delay, now) {
    this.shownAt = [...this.shownAt.slice(-100), now];
    this.latencies = [...this.latencies, frame.latency].slice(-KEEP);
    if (delay !== null) this.delays = [...this.delays, delay].slice(-60);
  }

  get rate() {
    const now = performance.now(), recent = this.shownAt.filter((at) => now - at < 2000);
    return recent.length > 1 ? (1000 * (recent.length - 1)) / (recent.at(-1) - recent[0]) : 0;
  }

  /** stats: the server's message. here: pictures that this page dropped. faces: how many the server swaps at once. */
  draw(stats, here, faces) {
    const { latency, stages } = stats, lost = stats.dropped + stats.not_sent + here;
    const rate = (value) => `${value.toFixed(1)} /s`;
    list(this.rates, [
      ["in", rate(stats.came)],
      ["swapped", rate(stats.made)],
      ["shown", rate(this.rate)],
      ["dropped", `${stats.dropped} · ${stats.not_sent} · ${here}`, "before the swap · on the way to this page · by this page", lost > 0],
      ["pictures", stats.pictures.toLocaleString("en")],
      ...(stats.held ? [["not finite", `${stats.held} held`, "chunks that the generator spoilt: the last good face was shown again", true]] : []),
      ["faces", `${this.tracks.map(said).join(", ") || "none"} of ${faces}`],
    ]);
    list(this.latency, [
      ["p50", ms(latency.p50), "from a picture's arrival at the server until it is ready to be sent"],
      ["p95", ms(latency.p95)],
      ["p99", ms(latency.p99)],
      ["to screen", this.delays.length ? ms(median(this.delays)) : "–", "from this browser's camera to this screen, median"],
    ]);
    const most = Math.max(0.1, ...Object.values(stages));
    this.stages.replaceChildren(...Object.entries(stages).flatMap(([name, value]) => {
      const [term, bar, data] = ["span", "i", "b"].map((kind) => document.createElement(kind));
      term.textContent = name;
      bar.style.setProperty("--share", value / most);
      data.textContent = ms(value);
      data.dataset.name = name;
      return [term, bar, data];
    }));
    this.#curve();
  }

  #curve() {
    const { canvas } = this.spark, { width, height } = canvas;
    const top = Math.max(1, ...this.latencies) * 1.15, step = width / KEEP;
    this.spark.clearRect(0, 0, width, height);
    this.latencies.forEach((value, i) => {
      const tall = (value / top) * height;
      this.spark.fillStyle = i === this.latencies.length - 1 ? "#ffb454" : "rgba(255,180,84,.45)";
      this.spark.fillRect(i * step, height - tall, Math.max(1, step - 0.6), tall);
    });
  }
}

/** Frames around the faces of a picture. tracks: as the server tells them, corners in pixels of [width, height]. */
export function drawTracks(canvas, tracks, width, height) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d"), unit = Math.max(1, width / 640);
  context.clearRect(0, 0, width, height);
  for (const track of tracks) {
    const [first, ...rest] = track.corners, colour = track.why ? "#ff6b6b" : "#6cc7ff";
    context.globalAlpha = 0.45 + 0.55 * track.weight;
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.6 * unit;
    context.setLineDash(track.weight < 1 ? [5 * unit, 4 * unit] : []);
    context.beginPath();
    context.moveTo(...first);
    for (const corner of rest) context.lineTo(...corner);
    context.closePath();
    context.stroke();
    context.font = `600 ${12 * unit}px system-ui, sans-serif`;
    context.shadowColor = "#000";
    context.shadowBlur = 4 * unit;
    context.fillText(said(track), first[0] + 3 * unit, Math.max(14 * unit, first[1] - 5 * unit));
    context.shadowBlur = 0;
  }
  context.globalAlpha = 1;
}

/** A track in words: its letter, and why it is not swapped. */
export function said({ name, why }) {
  return `${NAMES[name % 26]}${name >= 26 ? Math.floor(name / 26) : ""}${why ? ` (${why})` : ""}`;
}

function ms(value) {
  return value ? `${value.toFixed(value < 10 ? 1 : 0)} ms` : "–";
}

function list(place, rows) {
  place.replaceChildren(...rows.flatMap(([name, value, title, bad]) => {
    const term = document.createElement("dt"), data = document.createElement("dd");
    term.textContent = name;
    data.textContent = value;
    data.dataset.name = name;
    term.title = data.title = title ?? "";
    data.classList.toggle("bad", !!bad);
    return [term, data];
  }));
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}
