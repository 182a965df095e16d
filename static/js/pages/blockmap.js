// A replica's memory page: the live block map, its requests, and runs of free blocks.

import { colourOf, drawMap, layOut, ownerOf, readColours, readMap, STATES } from "../lib/blockmap.js";
import { find, make, on, readJson, setText } from "../lib/dom.js";
import { formatAge } from "../lib/format.js";
import { openFrames } from "../lib/framesocket.js";
import { showSegments } from "../lib/segments.js";
import { onThemeChange, watchCells } from "../lib/gridmap.js";

const MOST_LISTED = 12;

const words = readJson("map-words");
const card = find("[data-map]");
const canvas = find("[data-map-canvas]");
const note = find("[data-map-note]");
const reading = find("[data-map-reading]");
let map = null;
let chosen = null;
let colours = readColours(card);
let turn = 0;

const number = (value) => value.toLocaleString("en-US");

function layout() {
  return layOut(map.head.blocks, canvas.clientWidth);
}

async function take(buffer) {
  const mine = (turn += 1);
  try {
    const found = await readMap(buffer);
    if (mine !== turn) return;
    map = found;
    note.hidden = true;
    show();
  } catch {
    if (mine === turn) tell(words.unreadable);
  }
}

function tell(text) {
  map = null;
  chosen = null;
  note.hidden = false;
  setText(note, text);
  setText(find("[data-map-age]"), "");
  for (const name of STATES) setText(find(`[data-map-count="${name}"]`), "—");
}

function show() {
  paint();
  const { head } = map;
  setText(find("[data-map-size]"), words.size.replace("%s", number(head.blocks)).replace("%t", head.block_tokens));
  for (const [index, name] of STATES.entries()) setText(find(`[data-map-count="${name}"]`), number(head.counts[index]));
  paintAge();
  listRequests();
  listRuns();
  readBlock();
}

function paint() {
  const byRequest = find("input[name=colour]:checked", card).value === "request";
  drawMap(canvas, map, { colours, byRequest, chosen });
}

function paintAge() {
  if (!map) return;
  const age = formatAge(map.head.at, "for");
  setText(find("[data-map-age]"), map.head.stale ? words.stale.replace("%s", age) : words.scanned.replace("%s", age));
}

function linkOf(id) {
  return card.dataset.requestLink.replace("__id__", encodeURIComponent(id));
}

function listRequests() {
  const body = find("[data-map-requests]");
  const rows = [...map.head.requests].sort((one, other) => other[1] - one[1]);
  const listed = rows.slice(0, MOST_LISTED);
  // Focus and selection stay where the rows are the same.
  while (body.rows.length > listed.length) body.deleteRow(-1);
  while (body.rows.length < listed.length) body.append(makeRow());
  listed.forEach(([id, blocks, tokens, tail], index) => {
    const [name, ...figures] = body.rows[index].cells;
    const link = find("a", name);
    if (link.textContent !== id) {
      link.textContent = id;
      link.href = linkOf(id);
    }
    find(".swatch", name).style.background = `rgb(${colourOf(id, colours).join(" ")})`;
    [blocks, tokens, tail].forEach((value, place) => setText(figures[place], value === null ? "—" : number(value)));
  });
  const none = find("[data-map-no-requests]");
  none.hidden = rows.length > 0;
  setText(none, words.no_requests);
  setText(find("[data-map-more]"), rows.length > MOST_LISTED ? words.more.replace("%s", number(rows.length - MOST_LISTED)) : "");
}

function makeRow() {
  const row = make("tr");
  const name = make("td");
  name.append(make("i", { className: "swatch" }), make("a", { className: "mono break" }));
  row.append(name, ...[0, 1, 2].map(() => make("td", { className: "num" })));
  return row;
}

function listRuns() {
  if (!map.head.runs.length) {
    find("[data-map-runs]").replaceChildren(make("p", { className: "dim", text: words.no_runs }));
    return;
  }
  const most = Math.max(1, ...map.head.runs.map(([, count]) => count));
  find("[data-map-runs]").replaceChildren(...map.head.runs.flatMap(([length, count]) => {
    const bar = make("i");
    bar.style.width = `${count / most * 100}%`;
    const name = length === 1 ? words.one_block : words.blocks.replace("%s", `${number(length)} – ${number(length * 2 - 1)}`);
    return [make("span", { text: name }), bar, make("b", { text: words.runs.replace("%s", number(count)) })];
  }));
}

function readBlock() {
  if (!map || chosen === null || chosen >= map.head.blocks) {
    reading.replaceChildren("\u00a0");
    return;
  }
  const state = find(`[data-map-count="${STATES[map.states[chosen]]}"]`).previousSibling.textContent.trim();
  const owner = ownerOf(map, chosen);
  const parts = [`${words.block.replace("%s", number(chosen))}, ${state}`];
  if (owner === null) parts.push(words.nobody);
  else {
    const [id, blocks, tokens, tail] = owner;
    parts.push(id, words.blocks.replace("%s", number(blocks)), words.tokens.replace("%s", number(tokens)));
    parts.push(tail === null ? words.tail_unknown : words.tail.replace("%s", number(tail)));
  }
  reading.replaceChildren(make("b", { text: parts[0] }), ` · ${parts.slice(1).join(" · ")}`);
}

watchCells(canvas, () => (map ? [layout().rows, layout().columns] : [0, 0]), (cell) => {
  const before = chosen;
  chosen = null;
  if (map && cell) {
    const { cell: size, columns } = layout();
    // The last column of the canvas may be wider than the blocks are.
    const block = cell[0] * columns + Math.min(columns - 1, cell[1]);
    chosen = size && block < map.head.blocks ? block : null;
  }
  if (map && chosen !== before) paint();
  readBlock();
});
on(card, "change", "input", () => { if (map) paint(); });
onThemeChange(() => {
  colours = readColours(card);
  if (map) show();
});
window.addEventListener("resize", () => { if (map) paint(); });
window.setInterval(paintAge, 1000);
// The place of a map that is still to come, so that nothing jumps.
const expected = Number(card.dataset.mapBlocks) + 1;
if (expected > 1) {
  const { cell, rows } = layOut(expected, canvas.clientWidth);
  canvas.style.height = `${cell * rows}px`;
}

const feed = openFrames(card.dataset.map, {
  onBytes: take,
  onText: (frame) => {
    if (frame.type === "segments") showSegments(frame, words);
    if (frame.type !== "state") return;
    turn += 1;
    tell(frame.reason || words[frame.state] || words.missing);
  },
  onLost: () => {
    turn += 1;
    if (!map) tell(words.lost);
  },
});
on(document, "click", "[data-segments-ask]", () => {
  feed.send({ type: "segments" });
  setText(find("[data-segments-note]"), words.asked);
});
