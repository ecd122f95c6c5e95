// The stream protocol, version 2, as docs/guide/stream-protocol.md describes it.

export const VERSION = 2;
export const REAL = 1, HELD = 2, CONTEXT = 4;
const HEADER = 40, FRAME = 1;
const MIME = { 1: "image/jpeg", 2: "image/webp" };

export const token = new URLSearchParams(location.search).get("token");

/** An address of this server with the page's token. */
export function address(path) {
  const url = new URL(path, location.href.split("?")[0]);
  if (token) url.searchParams.set("token", token);
  return url;
}

/** A picture message -> its header's fields and `payload`. */
export function readFrame(buffer) {
  const view = new DataView(buffer);
  if (view.byteLength < HEADER || view.getUint8(0) !== FRAME) throw new Error("not a picture message");
  if (view.getUint8(1) !== VERSION) throw new Error(`protocol version ${view.getUint8(1)}`);
  return {
    codec: view.getUint8(2), flags: view.getUint8(3),
    width: view.getUint16(4, true), height: view.getUint16(6, true),
    stream: view.getUint32(8, true), input: view.getUint32(12, true),
    index: Number(view.getBigUint64(16, true)), pts: Number(view.getBigUint64(24, true)),
    latency: view.getUint32(32, true) / 1000, place: view.getUint16(36, true), size: view.getUint16(38, true),
    payload: new Uint8Array(buffer, HEADER),
  };
}

/** Decode a frame's picture to something that a canvas draws. */
export async function decode(frame) {
  if (frame.codec) return createImageBitmap(new Blob([frame.payload], { type: MIME[frame.codec] }));
  const pixels = new Uint8ClampedArray(frame.width * frame.height * 4);
  for (let i = 0, j = 0; i < pixels.length; i += 4, j += 3) {
    pixels[i] = frame.payload[j]; pixels[i + 1] = frame.payload[j + 1]; pixels[i + 2] = frame.payload[j + 2]; pixels[i + 3] = 255;
  }
  return createImageBitmap(new ImageData(pixels, frame.width, frame.height));
}

/** An upload message. kind: 2 picture, 3 replay. */
export function upload(kind, bytes) {
  const message = new Uint8Array(4 + bytes.byteLength);
  message.set([kind, VERSION, 0, 0]);
  message.set(new Uint8Array(bytes), 4);
  return message;
}
