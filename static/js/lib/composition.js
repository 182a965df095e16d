// Shows what the time of a model's requests consists of.

import { find, setText } from "./dom.js";
import { formatSeconds } from "./format.js";
import { drawSankey } from "./sankey.js";

let shown = null;
let words = null;

/** `found`: a composition as the API tells it. */
export function showComposition(found, texts) {
  [shown, words] = [found, texts];
  const isEmpty = !found.requests || found.e2e_s <= 0;
  const empty = find("[data-composition-empty]");
  empty.hidden = !isEmpty;
  setText(empty, isEmpty ? texts.empty : "");
  setText(find("[data-composition-count]"), isEmpty ? "" : countsOf(found));
  draw();
}

function countsOf({ requests, joined, joined_share: share }) {
  const counts = `${requests.toLocaleString("en")} ${words.requests}`;
  if (!joined || share === null || share >= 0.999) return counts;
  return `${counts} · ${words.estimated.replace("%s", (100 * share).toFixed(0)).replace("%%", "%")}`;
}

function draw() {
  const holder = find("[data-sankey]");
  if (!shown?.requests || shown.e2e_s <= 0) {
    holder.replaceChildren();
    return;
  }
  const parts = shown.components.map(partOf);
  const title = parts.map((part) => `${part.name}: ${part.figure}`).join("; ");
  const whole = [words.all, `${formatSeconds(shown.e2e_s / shown.requests)}`];
  holder.replaceChildren(
    drawSankey({ width: Math.max(300, holder.clientWidth - 24), whole, parts, title, markedWord: words.marked }),
  );
}

function partOf({ part, clock, share, mean_s: meanS, marked }) {
  const sign = meanS < 0 ? "−" : "";
  const short = `${sign}${Math.abs(100 * share).toFixed(1)} %`;
  const figure = `${short} · ${sign}${formatSeconds(Math.abs(meanS))}`;
  const [name, note] = [words.parts[part] ?? part, words.clocks[clock] ?? ""];
  return { name, share, figure, short, note, clock, isMarked: marked };
}

new ResizeObserver(draw).observe(find("[data-sankey]"));
