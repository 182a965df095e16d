// The memory page's heatmap: replica by time of one ratio, fetched anew as long as somebody looks.

import { find, findAll, make, on, readJson, setText } from "../lib/dom.js";
import { formatAge, serverNow } from "../lib/format.js";
import { drawGrid, onThemeChange, readShades, watchCells } from "../lib/gridmap.js";

const TOPS = { kv_use: 1, kv_tail: 0.5, allocator: 0.4 };
const FEWEST_MS = 2000;
const RETRY_MS = 5000;
const AXIS_MARKS = 5;

const words = readJson("grid-words");
const card = find("[data-grid]");
const canvas = find("[data-grid-canvas]");
const reading = find("[data-grid-reading]");
const state = find("[data-grid-state]");
let map = null;
let chosen = null;
let shades = readShades(card);
let timer = null;
let asked = 0;

function choiceOf(name) {
  return find(`input[name="${name}"]:checked`, card).value;
}

function readAddress() {
  const given = new URLSearchParams(window.location.search);
  for (const name of ["kind", "minutes"]) {
    const input = findAll(`input[name="${name}"]`, card).find((one) => one.value === given.get(name));
    if (input) input.checked = true;
  }
}

function writeAddress() {
  const address = new URL(window.location.href);
  for (const name of ["kind", "minutes"]) address.searchParams.set(name, choiceOf(name));
  window.history.replaceState(null, "", address);
}

async function load() {
  window.clearTimeout(timer);
  const turn = (asked += 1);
  const query = new URLSearchParams({ kind: choiceOf("kind"), minutes: choiceOf("minutes"), model: card.dataset.gridModel });
  let next = RETRY_MS;
  try {
    const answer = await fetch(`${card.dataset.grid}?${query}`, { headers: { accept: "application/json" } });
    if (!answer.ok) throw new Error(String(answer.status));
    const found = await answer.json();
    if (turn !== asked) return;
    map = found;
    next = Math.max(FEWEST_MS, map.column_s * 1000);
    show();
  } catch (problem) {
    if (turn !== asked) return;
    setText(state, words.failed.replace("%s", problem.message));
  }
  timer = window.setTimeout(() => (document.hidden ? wait() : load()), next);
}

function wait() {
  document.addEventListener("visibilitychange", load, { once: true });
}

function show() {
  paint();
  paintLabels();
  paintAxis();
  paintState();
  readCell();
}

function paint() {
  drawGrid(canvas, {
    rows: map.rows.map((row) => row.means),
    columns: map.columns,
    top: TOPS[map.kind],
    shades,
    rowPx: rowHeight(),
    chosen,
  });
  setText(find("[data-scale-high]"), `${TOPS[map.kind] * 100} %${TOPS[map.kind] < 1 ? " +" : ""}`);
}

function rowHeight() {
  return map.rows.length > 60 ? 14 : map.rows.length > 16 ? 18 : 24;
}

function paintLabels() {
  const labels = find("[data-grid-labels]");
  labels.replaceChildren(...map.rows.map((row) => {
    const href = card.dataset.gridLink.replace("__id__", encodeURIComponent(row.replica));
    const label = make("a", { text: row.replica, className: "mono", attributes: { href, title: rowWords(row) } });
    label.append(make("small", { text: ` ${row.lane || words.all_lanes}` }));
    label.style.height = `${rowHeight()}px`;
    label.style.lineHeight = `${rowHeight()}px`;
    return label;
  }));
}

function rowWords(row) {
  return [row.replica, row.model, words.release.replace("%s", row.release), row.lane || words.all_lanes, row.node]
    .filter(Boolean).join(" · ");
}

function timeOf(column) {
  return Date.parse(map.start) + column * map.column_s * 1000;
}

function clockOf(ms, { seconds = false } = {}) {
  return new Date(ms).toISOString().slice(11, seconds ? 19 : 16);
}

function paintAxis() {
  const marks = Array.from({ length: AXIS_MARKS }, (_, index) => clockOf(timeOf(index * map.columns / (AXIS_MARKS - 1))));
  find("[data-grid-axis]").replaceChildren(...marks.map((text, index) => make("span", {
    text: index === AXIS_MARKS - 1 ? `${text} UTC` : text,
  })));
}

function paintState() {
  if (!map.rows.length) {
    setText(state, map.kind === "allocator" ? words.empty_allocator : words.empty);
    return;
  }
  const parts = [];
  if (map.newest.state !== "measured") {
    parts.push(words.stale.replace("%s", formatAge(new Date(serverNow() - map.newest.age_s * 1000).toISOString(), "for")));
  }
  if (map.left_out) parts.push(words.left_out.replace("%s", map.left_out));
  setText(state, parts.join(" · "));
}

function readCell() {
  if (!map || !chosen || !map.rows[chosen[0]]) {
    reading.replaceChildren("\u00a0");
    return;
  }
  const row = map.rows[chosen[0]];
  const column = chosen[1];
  const mean = row.means[column];
  const span = `${clockOf(timeOf(column), { seconds: true })} – ${clockOf(timeOf(column + 1), { seconds: true })} UTC`;
  const figures = mean === null || mean === undefined
    ? words.none
    : `${percent(mean)}, ${words.peak.replace("%s", percent(row.highs[column]))}, ${words.samples.replace("%s", row.samples[column])}`;
  reading.replaceChildren(make("b", { text: figures }), ` · ${span} · ${rowWords(row)}`);
}

function percent(ratio) {
  return `${(ratio * 100).toFixed(ratio < 0.1 && ratio > 0 ? 1 : 0)} %`;
}

watchCells(canvas, () => (map ? [map.rows.length, map.columns] : [0, 0]), (cell) => {
  chosen = cell;
  if (map) paint();
  readCell();
});
on(card, "change", "input", () => {
  writeAddress();
  setText(state, words.loading);
  load();
});
onThemeChange(() => {
  shades = readShades(card);
  if (map) paint();
});
window.addEventListener("resize", () => { if (map) paint(); });
readAddress();
load();
