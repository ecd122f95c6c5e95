// Keyboard, mouse, gamepad and touch, all turned into one thing: a value for every action.

const NAMES = {
  ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", PageUp: "PgUp", PageDown: "PgDn",
};
const AXES = { "left x": 0, "left y": 1, "right x": 2, "right y": 3 };
const DEAD = 0.15; // of a stick's way
const FULL_DRAG = 420; // pixels per second that mean the whole range
const PAD_BUTTONS = { 9: "pause", 0: "next", 1: "reset", 3: "stats" };

export const keyName = (code) => NAMES[code] ?? code.replace(/^(Key|Digit)/, "");

export class Controls {
  /** onChange(action, pressed): called with {name: value} whenever something is pressed (for one name at least, which
   * was at rest) or let go. */
  constructor(onChange, onButton) {
    this.onChange = onChange;
    this.onButton = onButton;
    this.bindings = [];
    this.held = new Set(); // codes of keys and ids of touch buttons
    this.drag = { x: 0, y: 0, at: 0, active: false };
    this.padButtons = new Set();
    this.current = {};
    this.recorded = null; // the action that is shown instead of what is pressed
    addEventListener("keydown", (event) => this.#key(event, true));
    addEventListener("keyup", (event) => this.#key(event, false));
    addEventListener("blur", () => { this.held.clear(); this.update(); });
  }

  /** Draw the keys of the world's bindings, which are buttons for fingers, too. */
  bind(bindings, place) {
    this.bindings = bindings;
    place.replaceChildren(...bindings.map((binding) => {
      const pair = document.createElement("div");
      pair.className = "pair";
      pair.append(this.#button(binding, "positive"), this.#button(binding, "negative"));
      return pair;
    }));
  }

  /** Let the mouse turn by dragging over an element. */
  dragOver(element) {
    let last = null;
    element.addEventListener("pointerdown", (event) => {
      element.setPointerCapture(event.pointerId);
      element.focus({ preventScroll: true });
      last = event;
      this.drag.active = true;
    });
    element.addEventListener("pointermove", (event) => {
      if (!last) return;
      const seconds = Math.max(0.008, (event.timeStamp - last.timeStamp) / 1000);
      for (const axis of ["x", "y"]) {
        const speed = (event[`client${axis.toUpperCase()}`] - last[`client${axis.toUpperCase()}`]) / seconds / FULL_DRAG;
        this.drag[axis] = 0.6 * this.drag[axis] + 0.4 * Math.max(-1, Math.min(1, speed));
      }
      this.drag.at = performance.now();
      last = event;
      this.update();
    });
    const end = () => { last = null; this.drag = { x: 0, y: 0, at: 0, active: false }; this.update(); };
    element.addEventListener("pointerup", end);
    element.addEventListener("pointercancel", end);
  }

  /** Poll what has no events: sticks, and a mouse that stands still. */
  poll(now) {
    if (this.drag.active && now - this.drag.at > 60 && (this.drag.x || this.drag.y)) {
      this.drag.x *= 0.7;
      this.drag.y *= 0.7;
      if (Math.abs(this.drag.x) + Math.abs(this.drag.y) < 0.03) this.drag.x = this.drag.y = 0;
    }
    const pad = this.#pad();
    if (pad) {
      for (const [i, name] of Object.entries(PAD_BUTTONS)) {
        const down = pad.buttons[i]?.pressed;
        if (down && !this.padButtons.has(i)) this.onButton(name);
        if (down) this.padButtons.add(i); else this.padButtons.delete(i);
      }
    }
    this.update();
  }

  /** The share of its way that an action is pushed, -1 to 1: for drawing. */
  share(binding) {
    const value = (this.recorded ?? this.current)[binding.name] ?? binding.rest;
    const side = value >= binding.rest === binding.positive.value >= binding.rest ? binding.positive : binding.negative;
    const way = Math.abs(side.value - binding.rest) || 1;
    return Math.min(1, Math.abs(value - binding.rest) / way) * (side === binding.positive ? 1 : -1);
  }

  /** Show a recorded action as pressed; null: what is. */
  show(recorded) {
    if (recorded === this.recorded) return;
    this.recorded = recorded;
    this.#mark();
  }

  update() {
    const action = {};
    const pad = this.#pad();
    for (const binding of this.bindings) {
      const keys = this.#down(binding, "positive") - this.#down(binding, "negative");
      const mouse = binding.mouse ? this.drag[binding.mouse] * binding.axis_sign * 1.6 : 0;
      let stick = pad && binding.axis ? pad.axes[AXES[binding.axis]] ?? 0 : 0;
      stick = Math.abs(stick) < DEAD ? 0 : stick * binding.axis_sign;
      const push = keys || mouse || stick;
      if (push) {
        const side = push > 0 ? binding.positive : binding.negative;
        const value = binding.rest + Math.abs(push) * (side.value - binding.rest);
        action[binding.name] = Math.round(value * 1e4) / 1e4;
      }
    }
    if (JSON.stringify(action) === JSON.stringify(this.current)) return;
    const pressed = Object.keys(action).some((name) => !(name in this.current));
    this.current = action;
    this.#mark();
    this.onChange(action, pressed);
  }

  #mark() {
    for (const button of document.querySelectorAll(".key")) {
      const { action, side } = button.dataset, binding = this.bindings.find(({ name }) => name === action);
      if (!binding) continue;
      const recorded = this.recorded && (side === "positive" ? 1 : -1) * this.share(binding) > 0;
      button.classList.toggle("down", recorded ?? this.#down(binding, side) > 0);
    }
  }

  #down(binding, side) {
    const id = `${binding.name} ${side}`;
    return binding[side].keys.some((code) => this.held.has(code)) || this.held.has(id) ? 1 : 0;
  }

  #pad() {
    return navigator.getGamepads?.().find((pad) => pad?.connected) ?? null;
  }

  #key(event, down) {
    const typing = event.target.matches?.("input[type=number], input[type=text], textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const bound = this.bindings.some((b) => b.positive.keys.includes(event.code) || b.negative.keys.includes(event.code));
    if (!bound) return;
    event.preventDefault();
    if (down) this.held.add(event.code); else this.held.delete(event.code);
    this.update();
  }

  #button(binding, side) {
    const button = document.createElement("button");
    button.className = "key";
    button.tabIndex = -1;
    button.dataset.action = binding.name;
    button.dataset.side = side;
    for (const code of binding[side].keys) {
      const key = document.createElement("kbd");
      key.textContent = keyName(code);
      key.className = code.startsWith("Key") ? "letter" : "";
      button.append(key);
    }
    button.append(binding[side].label);
    const id = `${binding.name} ${side}`;
    button.addEventListener("pointerdown", (event) => {
      button.setPointerCapture(event.pointerId);
      this.held.add(id);
      this.update();
    });
    const end = () => { this.held.delete(id); this.update(); };
    for (const kind of ["pointerup", "pointercancel", "lostpointercapture"]) button.addEventListener(kind, end);
    button.addEventListener("contextmenu", (event) => event.preventDefault());
    return button;
  }
}
