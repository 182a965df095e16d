// The controls of the latency page, the address that says the same, and what they ask the server for.

import { find, findAll } from "./dom.js";

const SPANS_S = { "live": 300, "1h": 3600, "24h": 86400 };
const FILTERS = ["lane", "release", "replica", "tier", "label", "long"];
const SHOWN_IN = { heatmap: FILTERS, difference: FILTERS.filter((name) => name !== "release"), regions: [] };

/** Sets the controls to what the address says; unknown values are left out, another page may have written it. */
export function readAddress(form) {
  const given = new URLSearchParams(window.location.search);
  if (given.has("from") && !given.has("range")) given.set("range", "custom");
  for (const [name, value] of given) {
    for (const control of form.elements.namedItem(name) ? findAll(`[name="${CSS.escape(name)}"]`, form) : []) {
      if (control.type === "radio" || control.type === "checkbox") control.checked = control.value === value || value === "true";
      else if (control.type === "datetime-local") control.value = toLocal(value);
      else choose(control, value);
    }
  }
}

function choose(select, value) {
  // A link may name what no request has reached yet.
  if (value && ![...select.options].some((option) => option.value === value)) select.add(new Option(value, value));
  select.value = value;
}

function toLocal(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString().slice(0, 19);
}

/** All that is chosen, by name. */
export function readControls(form) {
  const chosen = Object.fromEntries(new FormData(form));
  return { ...chosen, isLive: chosen.range === "live" && chosen.view === "heatmap" };
}

export function writeAddress(form) {
  const chosen = readControls(form);
  const query = new URLSearchParams();
  const defaults = { stage: "ttft", range: "live", view: "heatmap", colouring: "count" };
  const names = ["stage", "range", "view", "colouring", ...SHOWN_IN[chosen.view]];
  if (chosen.view === "difference") names.push("against", "base");
  if (chosen.view === "regions") names.push("quantile");
  for (const name of names) if (chosen[name] && chosen[name] !== defaults[name]) query.set(name, chosen[name]);
  if (chosen.range === "custom") for (const name of ["from", "to"]) if (chosen[name]) query.set(name, `${chosen[name]}Z`);
  const text = query.toString();
  window.history.replaceState(null, "", text ? `?${text}` : window.location.pathname);
}

export function showControls(form) {
  const { view, range } = readControls(form);
  for (const part of findAll("[data-for]", form)) part.hidden = !part.dataset.for.split(" ").includes(view);
  find("[data-custom]", form).hidden = range !== "custom";
}

/** Start and end of the chosen range as instants; nulls while one of a custom range is missing. */
export function rangeOf(chosen, nowMs) {
  if (chosen.range === "custom") {
    const [from, to] = [chosen.from, chosen.to].map((text) => (text ? Date.parse(`${text}Z`) : NaN));
    return { from: Number.isNaN(from) ? null : from, to: Number.isNaN(to) ? null : to };
  }
  return { from: nowMs - SPANS_S[chosen.range] * 1000, to: nowMs };
}

/** The query of a picture, its requests or its composition. */
export function queryOf(chosen, range, more = {}) {
  const query = new URLSearchParams(more);
  if (range.from !== null) query.set("from", new Date(range.from).toISOString());
  if (range.to !== null) query.set("to", new Date(range.to).toISOString());
  for (const name of SHOWN_IN[chosen.view]) if (chosen[name]) query.set(name, chosen[name]);
  return query;
}

/** Query of the live socket. */
export function liveQuery(chosen) {
  const query = new URLSearchParams({ stage: chosen.stage });
  for (const name of FILTERS) if (chosen[name]) query.set(name, chosen[name]);
  return query;
}

/** What the picture itself needs besides range and filters; null while two releases to compare are missing. */
export function pictureQuery({ view, stage, colouring, quantile, base, against, isLive }) {
  const query = { format: "figure", stage, ...(isLive ? { step: "1" } : {}) };
  if (view === "heatmap") return { ...query, colouring };
  if (view === "regions") return { ...query, quantile };
  return base && against ? { ...query, base, release: against } : null;
}
