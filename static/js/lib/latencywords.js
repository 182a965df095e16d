// What the tip of a latency picture says of a cell. Text only: names may hold anything.

import { readArray } from "./chart.js";
import { formatClock, formatSeconds } from "./format.js";

const percent = (share, places = 1) => `${(100 * share).toFixed(places)} %`;
const count = (value) => Math.round(value).toLocaleString("en");

/** Lines, the first one is the title. `hit`: {column, row, plane}. */
export function describeCell(hit, view, words) {
  const { column, row, plane } = hit;
  const [first] = plane.cells;
  const times = `${formatClock(first.edges[column])} – ${formatClock(first.edges[column + 1])} UTC`;
  const tell = { heatmap: ofHeatmap, difference: ofDifference, regions: ofRegions }[view];
  const rows = view === "regions" ? plainText(first.trace.y[row]) : span(first.trace.y, row);
  return [`${rows}`, times, ...tell(hit, first.columns * row + column, words), ...eventsIn(plane, column)];
}

function span(edges, row) {
  return `${formatSeconds(edges[row])} – ${formatSeconds(edges[row + 1])}`;
}

function ofHeatmap({ column, plane }, place, words) {
  const [{ trace, values, custom }] = plane.cells;
  const [shown, other] = [values[place], custom[place]];
  if (Number.isNaN(shown)) return [words.noData];
  const [samples, share] = trace.name === "share" ? [other, shown] : [shown, other];
  const lines = plane.figure.data.filter((one) => one.type === "scatter" && one.mode === "lines+markers");
  const quantiles = lines.map((one) => `${one.name.toUpperCase()} ${formatSeconds(readArray(one.y)[column])}`);
  return [`${count(samples)} ${words.samples} · ${percent(share)}`, quantiles.join(" · ")];
}

function ofDifference({ plane }, place, words) {
  const { base, release } = plane.figure.layout.meta;
  const found = plane.cells.find((cells) => !Number.isNaN(cells.values[place]));
  if (!found) return [words.noData];
  const isChance = found === plane.cells[0];
  const title = words.moreIn.replace("%(release)s", release).replace("%(base)s", base);
  const samples = `${words.samples}: ${release}: ${count(found.custom[2 * place + 1])}, ${base}: ${count(found.custom[2 * place])}`;
  const sign = found.values[place] >= 0 ? "+" : "−";
  const value = isChance ? words.chance : `${sign}${percent(Math.abs(found.values[place]), 2)}`;
  return [`${title}: ${value}`, samples];
}

function ofRegions({ plane }, place, words) {
  const found = plane.cells.find((cells) => !Number.isNaN(cells.values[place]));
  if (!found) return [words.noData];
  const few = found === plane.cells[0] ? ` (${words.few})` : "";
  const quantile = `P${100 * plane.figure.layout.meta.quantile}`;
  return [`${quantile} ${formatSeconds(found.values[place])}${few}`, `${count(found.custom[place])} ${words.samples}`];
}

function eventsIn({ figure, cells }, column) {
  const events = figure.data.find((trace) => trace.name === "events");
  if (!events) return [];
  const [from, to] = [cells[0].edges[column], cells[0].edges[column + 1]];
  return events.hovertext.filter((_, place) => events.x[place] >= from && events.x[place] < to).map(plainText);
}

/** plotly's little markup, as the server wrote it, back as text. */
function plainText(text) {
  return text.replaceAll("<br>", " · ").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}
