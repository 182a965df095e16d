// The large figures above a latency picture, each with what it is worth.

import { find, findAll, setText } from "./dom.js";
import { formatSeconds } from "./format.js";

const ENOUGH_OF = { p50: "0.5", p95: "0.95", p99: "0.99" };

/** `about`: what goes with a figure (`total`, `summaries`, `data`), null while it loads; live figures have no `data`. */
export function showTotals(about, { enough, words }) {
  for (const tile of findAll("[data-tile=quantile]")) tile.hidden = Boolean(about?.regions);
  // Of a difference the newer release's own figures.
  const total = about?.total ?? about?.summaries?.[1] ?? null;
  for (const [name, quantile] of Object.entries(ENOUGH_OF)) {
    const beyond = total?.beyond_top && name === "p99" ? "> " : "";
    setText(find(`[data-figure=${name}]`), total ? `${beyond}${formatSeconds(total[`${name}_s`])}` : "—");
    const isFew = total && total.samples > 0 && total.samples < enough[quantile];
    setText(find(`[data-note=${name}]`), isFew ? words.few : "");
  }
  const samples = about?.regions ? about.requests.reduce((sum, one) => sum + one, 0) : total?.samples;
  setText(find("[data-figure=samples]"), samples?.toLocaleString("en") ?? "—");
  setText(find("[data-note=samples]"), about ? noteOf(about, words) : "");
}

function noteOf({ data, release, total, unknown_requests: unknown }, words) {
  if (unknown !== undefined) return words.unknownRegion.replace("%s", unknown.toLocaleString("en"));
  if (!total && release) return words.ofRelease.replace("%s", release);
  if (!data) return total ? words.minute : "";
  if (data.facts_dropped > 0) return words.dropped.replace("%s", data.facts_dropped.toLocaleString("en"));
  if (data.state === "stale" && data.age_s !== null) return words.staleData.replace("%s", formatSeconds(data.age_s));
  return words.wholeRange;
}
