// The lanes editor: lanes come and go, the ruler and the titles follow what is typed.

import { find, findAll, make, on } from "../lib/dom.js";

const HUES = 5;
const SHORTEST_TOKENS = 64;
const form = find("[data-lanes-form]");
const list = find("[data-lanes]");

function shownLanes() {
  return findAll("[data-lane]", list).filter((lane) => !lane.hidden);
}

/** From short to long, as the server sorts them; an empty edge is last. */
function readLanes() {
  const lanes = shownLanes().map((element) => {
    const edge = Number(find("[data-lane-edge]", element).value);
    return { element, name: find("[data-lane-name]", element).value, edge: edge > 0 ? edge : Infinity };
  });
  return lanes.sort((a, b) => a.edge - b.edge);
}

function show() {
  const lanes = readLanes();
  let low = 0;
  lanes.forEach((lane, index) => {
    lane.low = low;
    lane.hue = String((index % HUES) + 1);
    low = Number.isFinite(lane.edge) ? lane.edge : low;
    find("[data-lane-mark]", lane.element).dataset.hue = lane.hue;
    find("[data-lane-title]", lane.element).textContent = lane.name;
    find("[data-lane-range]", lane.element).textContent = rangeOf(lane);
    find("[data-lane-remove]", lane.element).disabled = lanes.length === 1;
  });
  showRuler(lanes);
}

function rangeOf({ low, edge }) {
  if (!Number.isFinite(edge)) return `${low.toLocaleString("en")} +`;
  return `${low.toLocaleString("en")} – ${(edge - 1).toLocaleString("en")}`;
}

function showRuler(lanes) {
  const ruler = find("[data-ruler]");
  const longest = Math.max(SHORTEST_TOKENS, ...lanes.map((lane) => (Number.isFinite(lane.edge) ? lane.edge : 0)));
  ruler.replaceChildren(...lanes.map((lane) => segment(lane, longest * 4)));
}

function segment(lane, end) {
  const low = Math.max(lane.low, SHORTEST_TOKENS);
  const high = Math.max(Math.min(lane.edge, end), low + 1);
  const part = make("div", { className: "ruler-part" });
  part.style.flexGrow = String(Math.log2(high / low) + 0.6);
  part.append(make("i", { attributes: { "data-hue": lane.hue } }), make("b", { text: lane.name }));
  part.append(make("span", { text: rangeOf(lane) }));
  return part;
}

function addLane() {
  const total = find("[name=lane-TOTAL_FORMS]", form);
  const holder = document.createElement("div");
  holder.append(find("template", list).content.cloneNode(true));
  for (const element of findAll("[name],[id],[for],[aria-describedby]", holder)) {
    for (const name of ["name", "id", "for", "aria-describedby"]) {
      const value = element.getAttribute(name);
      if (value) element.setAttribute(name, value.replaceAll("__prefix__", total.value));
    }
  }
  const lane = holder.firstElementChild;
  const longest = shownLanes().at(-1);
  if (longest) longest.before(lane);
  else list.append(lane);
  total.value = String(Number(total.value) + 1);
  find("[data-lane-name]", lane).focus();
  changed();
}

function removeLane(lane) {
  find('[name$="-DELETE"]', lane).value = "on";
  lane.hidden = true;
  // A hidden field that is required would stop the browser from sending.
  for (const input of findAll("input,select", lane)) input.required = false;
  changed();
}

function changed() {
  show();
  form.dispatchEvent(new Event("lanes-changed"));
}

if (form) {
  on(form, "click", "[data-lane-add]", addLane);
  on(form, "click", "[data-lane-remove]", (button) => removeLane(button.closest("[data-lane]")));
  on(form, "input", "[data-lane-name],[data-lane-edge]", show);
  for (const lane of findAll("[data-lane]", list)) {
    if (find('[name$="-DELETE"]', lane).value === "on") lane.hidden = true;
  }
  show();
}
