// The latency page: controls and address, pictures of the past from the API, the live one from its socket.

import { showRequests } from "../lib/brushed.js";
import { showComposition } from "../lib/composition.js";
import { find, on, readJson, setText } from "../lib/dom.js";
import { formatAge, formatClock, formatSeconds, setServerTime } from "../lib/format.js";
import { decodeFrame } from "../lib/frames.js";
import { openFrames } from "../lib/framesocket.js";
import { liveQuery, pictureQuery, queryOf, rangeOf, readAddress, readControls, showControls, writeAddress } from "../lib/latencyquery.js";
import { describeCell } from "../lib/latencywords.js";
import { LiveWindow } from "../lib/livewindow.js";
import { Plane } from "../lib/plane.js";
import { showTotals } from "../lib/totals.js";

const AGAIN_MS = { live: 20000, "1h": 15000, "24h": 60000 };
const PATHS = { heatmap: "", difference: "difference/", regions: "regions/" };
const REFUSED = 4401;

const setup = readJson("latency-setup");
const { words } = setup;
const form = find("[data-controls]");
const side = find("[data-side]");
const message = find("[data-message]");
const badge = find("[data-live-state]");
const plane = new Plane(find("[data-plot]"), {
  describe: (hit) => describeCell(hit, readControls(form).view, words),
  onArea: showArea,
  onClear: closeSide,
});
const page = { round: 0, skeleton: null, live: null, socket: null, again: null, pending: false, feed: null };

async function ask(path, query) {
  const answer = await fetch(`${setup.api}${path}?${query}`, { headers: { accept: "application/json" } });
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error?.message ?? `${answer.status}`);
  return body;
}

function say(text) {
  message.hidden = !text;
  setText(message, text);
}

function showTitle({ view, against, base }) {
  setText(find("[data-title]"), words.titles[view].replace("%(release)s", against ?? "—").replace("%(base)s", base ?? "—"));
  setText(find("[data-legend]"), words.legends[view]);
}

function complain(error) {
  const problem = find("[data-problem]");
  problem.hidden = !error;
  setText(problem, error ? `${words.failed} ${error.message}` : "");
}

/** Everything anew: what was chosen has changed. */
function restart() {
  showControls(form);
  showTitle(readControls(form));
  writeAddress(form);
  closeSide();
  page.socket?.close();
  window.clearTimeout(page.again);
  Object.assign(page, { socket: null, live: null, skeleton: null, round: page.round + 1 });
  plane.clear();
  showTotals(null, setup);
  say(words.loading);
  paintBadge("range");
  load(page.round);
}

async function load(round) {
  const chosen = readControls(form);
  const range = rangeOf(chosen, Date.now());
  try {
    const figure = await loadFigure(chosen, range);
    if (round !== page.round) return;
    complain(null);
    if (figure) take(figure, chosen);
    await loadComposition(chosen, range, round);
  } catch (error) {
    if (round !== page.round) return;
    complain(error);
    if (!page.skeleton) say("");
  }
  const againMs = AGAIN_MS[chosen.range];
  if (round === page.round && againMs) page.again = window.setTimeout(() => load(round), againMs);
}

async function loadFigure(chosen, range) {
  const more = pictureQuery(chosen);
  if (!more) say(words.chooseReleases);
  return more && ask(PATHS[chosen.view], queryOf(chosen, range, more));
}

function take(figure, chosen) {
  page.skeleton = figure;
  if (chosen.isLive) {
    if (!page.socket) openLive(chosen);
    return;
  }
  plane.draw(figure);
  showTotals(figure.about, setup);
  const isEmpty = figure.about.total ? figure.about.total.samples === 0 : figure.about.data?.state === "absent";
  say(isEmpty ? words.empty : "");
}

function openLive(chosen) {
  page.live = new LiveWindow({ enough: setup.enough, gamma: setup.gamma, lowestS: setup.lowest_s, formatSeconds, nowWord: words.now });
  paintBadge("connecting");
  page.socket = openFrames(`${setup.socket}?${liveQuery(chosen)}`, {
    onBytes: (buffer) => hear(decodeFrame(buffer)),
    onText: () => {},
    onLost: lose,
  });
}

function lose(code) {
  page.feed = { ...page.feed, lostAt: page.feed?.lostAt ?? Date.now() };
  paintBadge(code === REFUSED ? "refused" : "lost");
  if (code === REFUSED) window.setTimeout(() => window.location.reload(), 1500);
}

function hear(frame) {
  setServerTime(new Date(frame.nowS * 1000).toISOString());
  if (!page.live.take(frame)) {
    page.socket.send({ type: "resync" });
    return;
  }
  page.feed = { sinceS: frame.sinceS };
  paintBadge(frame.state);
  if (!page.live.isWhole) return;
  const [p50, p95, p99] = frame.quantiles;
  showTotals({ total: { samples: frame.samples, p50_s: p50, p95_s: p95, p99_s: p99 } }, setup);
  if (page.pending) return;
  page.pending = true;
  window.requestAnimationFrame(paintLive);
}

function paintLive() {
  page.pending = false;
  if (!page.live) return;
  const startedMs = performance.now();
  const hasAny = page.live.columns.size > 0;
  say(hasAny ? "" : words.empty);
  plane.draw(page.live.fill(page.skeleton, readControls(form).colouring));
  const detail = { seq: page.live.seq, samples: page.live.samples(), paintMs: performance.now() - startedMs };
  document.dispatchEvent(new CustomEvent("sluice:painted", { detail }));
}

function paintBadge(state) {
  const { sinceS, lostAt } = page.feed ?? {};
  const since = lostAt ?? (sinceS ? sinceS * 1000 : null);
  const look = { live: "live", polled: "stale", behind: "stale", stale: "stale", lost: "lost" }[state] ?? "connecting";
  badge.dataset.liveState = look;
  const age = since === null ? "" : formatAge(new Date(since).toISOString(), "for");
  setText(badge, (words[state] ?? state).replace("%s", state === "behind" ? age : since === null ? "" : formatClock(since)));
}

async function loadComposition(chosen, range, round) {
  const found = await ask("composition/", queryOf({ ...chosen, view: "heatmap" }, range));
  if (round === page.round) showComposition(found, words);
}

/** The area's requests, beside the picture. */
async function showArea(area) {
  const chosen = readControls(form);
  if (chosen.view === "regions") return;
  const [from, to] = plane.figure.layout.xaxis.range;
  const more = { stage: chosen.stage, cell_from: new Date(area.from).toISOString(), cell_to: new Date(area.to).toISOString() };
  if (!area.isLowest) more.low_s = String(area.low);
  if (!area.isHighest) more.high_s = String(area.high);
  try {
    const found = await ask("requests/", queryOf(chosen, { from, to }, more));
    const range = `${formatClock(area.from)} – ${formatClock(area.to)} UTC · ${formatSeconds(area.low)} – ${formatSeconds(area.high)}`;
    const href = (id) => setup.request.replace("__id__", encodeURIComponent(id));
    showRequests(side, found, { words, range, href, formatSeconds });
    side.hidden = false;
    find("[data-split]").dataset.open = "";
    setText(find("[data-says]"), `${words.chosen.replace("%s", found.chosen)}: ${range}`);
    complain(null);
  } catch (error) {
    complain(error);
  }
}

function closeSide() {
  side.hidden = true;
  delete find("[data-split]").dataset.open;
}

on(document, "click", "[data-side-close]", () => plane.drop());
form.addEventListener("change", restart);
form.addEventListener("submit", (event) => event.preventDefault());
readAddress(form);
restart();
