// The plan form: the sum moves while weights are typed, and a wrong sum cannot be sent.

import { find, findAll, on } from "../lib/dom.js";

const WHOLE = 100;
const form = find("[data-plan-form]");

function showSum() {
  const total = findAll("[data-weight]", form).reduce((sum, input) => sum + (Number(input.value) || 0), 0);
  const line = find("[data-sum]", form);
  find("output", line).textContent = `${total} %`;
  line.dataset.state = total === WHOLE ? "" : "bad";
  find("[data-plan-send]", form).disabled = total !== WHOLE;
}

if (form) {
  on(form, "input", "[data-weight]", showSum);
  // htmx sends previews of this form; sending it for good is the browser's own submit.
  showSum();
}
