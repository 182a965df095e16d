// Segments of torch's allocator: a bar each, as long as it is large, with its blocks in the order of addresses.

import { find, make, setText } from "./dom.js";

const UNITS = ["B", "KiB", "MiB", "GiB"];
const SVG = "http://www.w3.org/2000/svg";

/** `frame.segments`: [bytes, kind, [[bytes, is in use], …]], largest first; none: `frame.absent` says why. */
export function showSegments(frame, words) {
  const place = find("[data-segments]");
  const note = find("[data-segments-note]");
  if (!place || !note) return;
  if (!frame.segments.length) {
    setText(note, frame.absent || words.no_segments);
    place.replaceChildren();
    return;
  }
  const text = frame.more ? words.segments_more.replace("%t", frame.more) : words.segments;
  setText(note, text.replace("%s", frame.segments.length));
  const largest = frame.segments[0][0];
  place.replaceChildren(...frame.segments.map((segment) => barOf(segment, largest, words)));
}

function barOf([size, kind, blocks], largest, words) {
  const used = blocks.reduce((sum, [bytes, inUse]) => sum + (inUse ? bytes : 0), 0);
  const row = make("div");
  const label = words.segment.replace("%s", sizeOf(size)).replace("%t", sizeOf(used));
  row.append(drawBlocks(size, blocks, size / largest), make("span", { text: kind ? `${label} · ${kind}` : label }));
  return row;
}

function drawBlocks(size, blocks, share) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" })) {
    svg.setAttribute(name, value);
  }
  svg.style.width = `${Math.max(2, share * 100)}%`;
  let from = 0;
  for (const [bytes, inUse] of blocks) {
    const part = document.createElementNS(SVG, "rect");
    part.setAttribute("class", inUse ? "part-weights" : "part-kv_tail");
    part.setAttribute("x", (from / size * 1000).toFixed(2));
    part.setAttribute("width", (bytes / size * 1000).toFixed(2));
    part.setAttribute("height", "10");
    svg.append(part);
    from += bytes;
  }
  return svg;
}

function sizeOf(bytes) {
  const unit = Math.min(UNITS.length - 1, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  const value = bytes / 1024 ** unit;
  return `${value.toFixed(value < 10 && unit ? 1 : 0)} ${UNITS[unit]}`;
}
