// The keys' page: revoking asks first.

import { ask } from "../lib/dialog.js";
import { on } from "../lib/dom.js";

on(document, "click", "[data-revoke]", (button) => {
  const name = button.dataset.revoke;
  ask("dialog-revoke", { texts: { name }, parts: { __name__: name } });
});
