// The step profile: draws the flame graph of the newest result, also when another one comes.

import { find, make, readJson, setText } from "../lib/dom.js";
import { Flame, pathOf } from "../lib/flame.js";
import { formatSeconds } from "../lib/format.js";

const words = readJson("flame-words") ?? {};
const root = find("[data-flame]");
const reading = find("[data-flame-reading]");
const reset = find("[data-flame-reset]");
let steps = 1;
let wanted = "";

const nameOf = (node) => (node.parent ? words.parts[node.name] ?? node.name : words.whole);

const flame = new Flame(root, {
  nameOf,
  onRead: (node) => setText(reading, node ? describe(node) : "\u00a0"),
  onZoom: (isInside) => { reset.hidden = !isInside; },
});

function describe(node) {
  const way = pathOf(node);
  const share = way[0].value > 0 ? (100 * node.value) / way[0].value : 0;
  const name = way.length > 1 ? way.slice(1).map(nameOf).join(" › ") : words.whole;
  const time = words.reading.replace("%s", formatSeconds(node.value / steps)).replace("%t", `${share.toFixed(share < 10 ? 1 : 0)} %`);
  return `${name} · ${time}`;
}

function say(text) {
  flame.clear();
  root.append(make("p", { className: "flame-note", text }));
  setText(reading, "\u00a0");
}

async function load(id) {
  wanted = id;
  if (!id) return;
  say(words.loading);
  try {
    const answer = await fetch(`${root.dataset.flame}${encodeURIComponent(id)}/`, { headers: { accept: "application/json" } });
    if (!answer.ok) throw new Error(String(answer.status));
    const view = await answer.json();
    if (wanted === id) paint(view);
  } catch (error) {
    if (wanted === id) say(words.failed.replace("%s", error.message));
  }
}

function paint(view) {
  steps = view.steps.length || 1;
  if (!view.flame?.children.length) {
    say(words.empty);
    return;
  }
  flame.show(view.flame);
}

reset.addEventListener("click", () => {
  flame.zoom(flame.tree);
  root.focus();
});

document.addEventListener("sluice:cells", ({ detail }) => {
  const id = detail.set.result_id;
  if (id !== undefined && id !== wanted) load(id);
});

load(root.dataset.flameId);
