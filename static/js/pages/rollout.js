// The rollout's pictures: evidence of its gates, drawn by plotly, and the difference of the two releases.
/* global Plotly */

import { Palette, readArray } from "../lib/chart.js";
import { find, on, readJson, setText } from "../lib/dom.js";
import { describeCell } from "../lib/latencywords.js";
import { Plane } from "../lib/plane.js";

const EVIDENCE_MS = 10_000;
const DIFFERENCE_MS = 30_000;
const LONGEST_MS = 6 * 3_600_000;
const SHORTEST_MS = 60_000;
const NARROW_PX = 620;
const CONFIG = { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false };

const setup = readJson("rollout-setup");
const { words } = setup;
const pictures = find("[data-pictures]");
const holder = find("[data-evidence]");
const stage = find("[data-stage]");
const state = { until: setup.until, since: setup.since, evidence: null, palette: null, width: 0 };
const plane = new Plane(find("[data-plot]"), {
  describe: (hit) => describeCell(hit, "difference", words),
  onArea: () => {},
  onClear: () => {},
});

async function ask(path, query) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`, { headers: { accept: "application/json" } });
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error?.message ?? `${answer.status}`);
  return body;
}

function say(name, text) {
  const message = find(`[data-${name}-message]`);
  message.hidden = !text;
  setText(message, text);
}

/** Runs now, and again while the rollout does and somebody looks. */
function keep(load, name, pauseMs) {
  let timer = null;
  const run = async () => {
    window.clearTimeout(timer);
    if (!pictures.hidden && !document.hidden) {
      try {
        await load();
      } catch (error) {
        say(name, `${words.failed} ${error.message}`);
      }
    }
    if (!state.until) timer = window.setTimeout(run, pauseMs);
  };
  run();
  return run;
}

async function loadEvidence() {
  state.width = holder.clientWidth;
  const columns = state.width < NARROW_PX ? 2 : 3;
  state.evidence = await ask(setup.evidence, { format: "figure", columns });
  say("evidence", state.evidence.data.length ? "" : words.noEvidence);
  await drawEvidence();
}

function drawEvidence() {
  if (!state.evidence) return null;
  if (!state.evidence.data.length) return Plotly.purge(holder);
  state.palette ??= new Palette(holder);
  const { width, height } = holder.getBoundingClientRect();
  const { data, layout } = state.palette.resolve(state.evidence);
  return Plotly.react(holder, data, { ...layout, width, height }, CONFIG);
}

async function loadDifference() {
  const end = state.until ? new Date(state.until).getTime() : Date.now();
  const begun = new Date(state.since).getTime();
  const start = Math.max(Math.min(begun, end - SHORTEST_MS), end - LONGEST_MS);
  const figure = await ask(setup.difference, {
    base: setup.stable, release: setup.candidate, stage: stage.value, format: "figure",
    from: new Date(start).toISOString(), to: new Date(end).toISOString(),
  });
  const isEmpty = figure.data.every(({ z }) => readArray(z).every(Number.isNaN));
  say("difference", isEmpty ? words.noDifference : "");
  await plane.draw(thin(figure));
}

/** The picture is low: a label for each power of ten. */
function thin(figure) {
  const { yaxis } = figure.layout;
  const kept = yaxis.tickvals.map((value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-6);
  yaxis.ticktext = yaxis.ticktext.filter((_, place) => kept[place]);
  yaxis.tickvals = yaxis.tickvals.filter((_, place) => kept[place]);
  return figure;
}

const reloadEvidence = keep(loadEvidence, "evidence", EVIDENCE_MS);
const reloadDifference = keep(loadDifference, "difference", DIFFERENCE_MS);
on(document, "change", "[data-stage]", reloadDifference);

document.addEventListener("sluice:cells", ({ detail: { set } }) => {
  if (set.weighted_at) state.since = set.weighted_at;
  if (set.ended_at) state.until = set.ended_at;
  if (set.had_weight || set.ended_at) window.setTimeout(() => { reloadEvidence(); reloadDifference(); }, 0);
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !state.until) reloadEvidence();
});
new ResizeObserver(() => {
  const isNarrow = (width) => width < NARROW_PX;
  if (holder.clientWidth === state.width) return;
  if (isNarrow(holder.clientWidth) !== isNarrow(state.width)) reloadEvidence();
  else drawEvidence();
  state.width = holder.clientWidth;
}).observe(holder);
const renew = () => { state.palette = null; drawEvidence(); };
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", renew);
new MutationObserver(renew).observe(document.documentElement, { attributeFilter: ["data-theme"] });
