// Golden prompts: what cannot be undone is confirmed first.

import { ask } from "../lib/dialog.js";
import { on } from "../lib/dom.js";

on(document, "click", "[data-golden]", (button) => {
  const { golden, prompt } = button.dataset;
  ask(golden, { texts: { name: prompt }, inputs: { prompt } });
});
