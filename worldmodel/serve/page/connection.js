// The WebSocket: says hello, hands messages on, connects again when the line breaks, and goes on with the same dream.

import { VERSION, address, readFrame } from "./protocol.js";

const FINAL = new Set([4400, 4408, 4409, 4429, 4500]); // the server meant it: a person decides whether to try again
const BAD_TOKEN = 4404; // another server listens there by now, or the token was used: begin anew

export class Connection {
  /** hello: () -> fields of the hello message. on: {message, frame, open, lost(seconds), ended(line)}. */
  constructor(hello, on) {
    this.hello = hello;
    this.on = on;
    this.tries = 0;
    this.timer = 0;
    this.resume = null; // token of the session that goes on when we connect again
  }

  open() {
    clearTimeout(this.timer);
    const url = address("ws");
    url.protocol = url.protocol.replace("http", "ws");
    const socket = (this.socket = new WebSocket(url));
    socket.binaryType = "arraybuffer";
    this.lastError = "";
    socket.onopen = () => this.send({ type: "hello", version: VERSION, ...(this.resume && { resume: this.resume }), ...this.hello() });
    socket.onmessage = ({ data }) => {
      if (socket !== this.socket) return;
      if (typeof data !== "string") return this.on.frame(readFrame(data));
      const message = JSON.parse(data);
      if (message.type === "welcome") { this.tries = 0; this.resume = message.resume; this.on.open(message); }
      else if (message.type === "error" && message.fatal) this.lastError = message.message;
      else this.on.message(message);
    };
    socket.onclose = ({ code }) => {
      if (socket !== this.socket) return;
      if (FINAL.has(code) || code === BAD_TOKEN) this.resume = null;
      if (code === BAD_TOKEN) return this.open();
      if (FINAL.has(code)) return this.on.ended(this.lastError || `the server closed the stream (${code})`);
      const seconds = Math.min(5, 0.5 * 2 ** this.tries++);
      this.on.lost(seconds);
      this.timer = setTimeout(() => this.open(), 1000 * seconds);
    };
  }

  get live() { return this.socket?.readyState === WebSocket.OPEN; }

  send(message) {
    if (this.live) this.socket.send(message instanceof Uint8Array ? message : JSON.stringify(message));
  }
}
