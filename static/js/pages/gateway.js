// Gateway settings: the bar of watermarks follows what is typed.

import { find, findAll, on } from "../lib/dom.js";

const WHOLE = 100;
const bar = find("[data-scale-of-marks]");

function readMark(name) {
  return Math.min(WHOLE, Math.max(0, Number(find(`#id_watermark_${name}_ratio`).value) || 0));
}

function showMarks() {
  const [warn, long, short] = ["warn", "long", "short"].map(readMark);
  const parts = { ok: warn, warn: long - warn, long: short - long, short: WHOLE - short };
  for (const part of findAll("[data-mark-part]", bar)) {
    part.style.flexGrow = String(Math.max(0.5, parts[part.dataset.markPart]));
  }
}

if (bar) {
  on(document, "input", "[id^=id_watermark_]", showMarks);
  showMarks();
}
