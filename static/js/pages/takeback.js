// The one click back, wherever a model stands: a confirmation that names the model and what will happen.

import { ask } from "../lib/dialog.js";
import { find, on } from "../lib/dom.js";

on(document, "click", "[data-take-back]", (button) => {
  const { model, words, action } = button.dataset;
  const form = find("#dialog-take-back form");
  if (!form || !action.startsWith("/")) return;
  form.setAttribute("action", action);
  ask("dialog-take-back", { texts: { model, words } });
});
