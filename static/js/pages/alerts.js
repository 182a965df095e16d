// Alerts and the control page: what cannot be undone by a reload asks first.

import { ask } from "../lib/dialog.js";
import { on } from "../lib/dom.js";

on(document, "click", "[data-take-back]", (button) => {
  ask("dialog-back", { texts: { what: button.dataset.what }, parts: { 12345: button.dataset.takeBack } });
});

on(document, "click", "[data-remove-webhook]", (button) => {
  const name = button.dataset.removeWebhook;
  ask("dialog-webhook", { texts: { name }, parts: { __name__: name } });
});

on(document, "click", "[data-end-slo]", (button) => {
  ask("dialog-end", { texts: { name: button.dataset.endSlo } });
});
