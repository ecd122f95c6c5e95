// What lies over the picture: numbers, the little latency curve, and the arrow of what is pressed.

const KEEP = 90; // chunks in the curve

export class Overlay {
  constructor(numbers, spark) {
    this.numbers = numbers;
    this.spark = spark.getContext("2d");
    this.latencies = [];
    this.reactions = []; // milliseconds from an input to its first picture on the screen
    this.shownAt = [];
    this.asked = [];
  }

  /** An input was sent. */
  sent(seq, now) { this.asked = [...this.asked, { seq, now }].slice(-64); }

  /** A picture is on the screen. */
  shown(frame, now) {
    this.shownAt = [...this.shownAt.slice(-200), now];
    if (frame.place === 0 && frame.size > 1) this.latencies = [...this.latencies, frame.latency].slice(-KEEP);
    const answered = this.asked.filter(({ seq }) => seq <= frame.input);
    if (answered.length) {
      this.reactions = [...this.reactions, ...answered.map((input) => now - input.now)].slice(-40);
      this.asked = this.asked.filter(({ seq }) => seq > frame.input);
    }
  }

  get rate() {
    const now = performance.now(), recent = this.shownAt.filter((at) => now - at < 2000);
    return recent.length > 1 ? (1000 * (recent.length - 1)) / (recent.at(-1) - recent[0]) : 0;
  }

  get reaction() { return median(this.reactions); }

  draw(stats, skipped) {
    const ms = (value) => (value ? `${value.toFixed(value < 10 ? 1 : 0)} ms` : "–");
    const { chunk, stages } = stats;
    const rows = [
      ["made", `${stats.fps.toFixed(1)} frames/s`],
      ["shown", `${this.rate.toFixed(1)} frames/s`],
      ["key to picture", ms(this.reaction)],
      ["chunk p50 · 95 · 99", `${[chunk.p50, chunk.p95, chunk.p99].map((v) => v.toFixed(0)).join(" · ")} ms`],
      ["· sample", ms(stages.sample)],
      ["· remember", ms(stages.remember)],
      ["· decode", ms(stages.decode)],
      ["· encode", ms(stages.encode)],
      ["· send", ms(stages.send)],
      ["queue", `${stats.queue} / ${stats.queue_limit}`],
      ["drops", `${stats.drops + skipped}`],
      ["memory", `${stats.memory} frames, ${(stats.memory_bytes / 1e6).toFixed(1)} MB`],
      ["frame", stats.frames.toLocaleString("en")],
      ["viewers", stats.clients],
    ];
    const passed = Object.entries(stats.fallbacks ?? {}), times = passed.reduce((sum, [, count]) => sum + count, 0);
    rows.push(["kernels", `${stats.backend}${times ? `, ${times} fallbacks` : ""}`]);
    if (stats.held) rows.push(["not finite", `${stats.held} chunks held`]);
    this.numbers.replaceChildren(...rows.flatMap(([name, value]) => {
      const term = document.createElement("dt"), data = document.createElement("dd");
      term.textContent = name;
      data.textContent = value;
      data.dataset.name = name;
      if (name === "kernels") data.title = passed.map(([why, count]) => `${count} × ${why}`).join("\n");
      return [term, data];
    }));
    this.#curve();
  }

  #curve() {
    const { canvas } = this.spark, { width, height } = canvas;
    const top = Math.max(1, ...this.latencies) * 1.15;
    this.spark.clearRect(0, 0, width, height);
    const step = width / KEEP;
    this.latencies.forEach((value, i) => {
      const tall = (value / top) * height;
      this.spark.fillStyle = i === this.latencies.length - 1 ? "#ffb454" : "rgba(255,180,84,.45)";
      this.spark.fillRect(i * step, height - tall, Math.max(1, step - 0.6), tall);
    });
  }
}

export class Hud {
  /** A compass for worlds that one walks through, bars for all others. */
  constructor(place, controls) {
    this.place = place;
    this.controls = controls;
    const named = (name) => controls.bindings.find((binding) => binding.name.toLowerCase() === name);
    this.turn = named("turn") ?? named("yaw");
    this.forward = named("forward") ?? named("throttle") ?? named("speed");
    this.strafe = named("strafe") ?? named("sideways");
    place.replaceChildren();
    if (this.turn || this.forward) {
      place.innerHTML = `<svg viewBox="-50 -50 100 100"><circle class="ring" r="34"/><circle class="rest" r="3"/>
        <path class="arrow"/><path class="arc"/></svg>`;
      this.arrow = place.querySelector(".arrow");
      this.arc = place.querySelector(".arc");
    } else {
      const bars = document.createElement("div");
      bars.className = "bars";
      this.bars = controls.bindings.map((binding) => {
        const row = document.createElement("div"), bar = document.createElement("i");
        row.append(binding.name, bar);
        bars.append(row);
        return bar;
      });
      place.append(bars);
    }
    this.draw();
  }

  draw() {
    const share = (binding) => (binding ? this.controls.share(binding) : 0);
    if (this.bars) return this.bars.forEach((bar, i) => bar.style.setProperty("--v", share(this.controls.bindings[i])));
    const x = -26 * share(this.strafe), y = -26 * share(this.forward), length = Math.hypot(x, y);
    this.arrow.setAttribute("d", length < 1 ? "" : arrow(x, y, length));
    this.arc.setAttribute("d", arc(-share(this.turn)));
  }
}

function arrow(x, y, length) {
  const [ux, uy] = [x / length, y / length], head = 9;
  const [ax, ay] = [x - head * ux, y - head * uy];
  return `M0 0L${x} ${y}M${ax - head * uy} ${ay + head * ux}L${x} ${y}L${ax + head * uy} ${ay - head * ux}`;
}

/** An arc outside the ring from the top, clockwise for a positive share, with an arrow head. */
function arc(share) {
  if (Math.abs(share) < 0.02) return "";
  const r = 42, angle = share * 1.25, s = Math.sign(share);
  const [x, y] = [r * Math.sin(angle), -r * Math.cos(angle)];
  const along = (a, d) => `${x + d * Math.cos(a)} ${y + d * Math.sin(a)}`;
  const back = angle + (s > 0 ? Math.PI : 0);
  return `M0 ${-r}A${r} ${r} 0 0 ${s > 0 ? 1 : 0} ${x} ${y}M${along(back - 0.65, 9)}L${x} ${y}L${along(back + 0.65, 9)}`;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}
