// The list beside a heatmap: requests of an area, and what is unusual about them.

import { find, make } from "./dom.js";
import { formatInstant } from "./format.js";

/** Fills the list and shows it. `found` as the API tells it; `href(id)` of a request's page. */
export function showRequests(side, found, { words, range, href, formatSeconds }) {
  const text = (template, value) => template.replace("%s", value);
  find("[data-side-count]", side).textContent = text(words.chosen, found.chosen.toLocaleString("en"))
    + (found.chosen_share < 1 ? ` · ${text(words.sampled, (100 * found.chosen_share).toPrecision(2)).replace("%%", "%")}` : "");
  find("[data-side-range]", side).textContent = range;
  find("[data-lifts]", side).replaceChildren(...liftsOf(found, words));
  find("[data-brushed]", side).replaceChildren(
    ...(found.requests.length
      ? found.requests.map((one) => requestOf(one, { href, formatSeconds }))
      : [make("li", { className: "dim", text: words.noRequests })]),
  );
}

function liftsOf({ lifts, chosen }, words) {
  if (!lifts.length) return [make("li", { className: "plain", text: words.nothingUnusual })];
  return lifts.map((lift) => {
    const item = make("li");
    const strength = lift.lift === null ? words.only : `${lift.lift.toFixed(lift.lift < 10 ? 1 : 0)} ${words.more}`;
    const share = `${(100 * lift.chosen_share).toFixed(0)} % ${words.support} (${lift.support} / ${chosen}), `;
    item.append(
      make("span", { text: `${words.attributes[lift.attribute] ?? lift.attribute} ` }),
      make("b", { text: strength }),
      make("small", { text: `${share}${(100 * lift.rest_share).toFixed(1)} %` }),
    );
    item.firstChild.append(make("b", { text: lift.value }));
    return item;
  });
}

function requestOf(one, { href, formatSeconds }) {
  const item = make("li");
  const facts = [
    formatInstant(one.at).slice(11, 19), one.lane, one.release === null ? "" : `r${one.release}`, one.replica, one.tier,
    one.outcome === "ok" ? "" : `${one.outcome} ${one.status}`,
    one.prompt_tokens === null ? "" : `${one.prompt_tokens.toLocaleString("en")} → ${(one.output_tokens ?? 0).toLocaleString("en")}`,
  ];
  item.append(
    make("a", { className: "mono", text: one.request_id, attributes: { href: href(one.request_id) } }),
    make("b", { text: formatSeconds(one.value_s) }),
    make("span", { className: "dim", text: facts.filter(Boolean).join(" · ") }),
  );
  return item;
}
