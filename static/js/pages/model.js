// The model's page: dialogs that tell the consequence before a scale, a plan put back, or a retirement.

import { ask, fill } from "../lib/dialog.js";
import { find, findAll, on } from "../lib/dom.js";

on(document, "click", "[data-putback]", (button) => {
  ask("dialog-putback", {
    texts: { name: button.dataset.name, weights: button.dataset.weights },
    inputs: { to_plan: button.dataset.plan },
  });
});

on(document, "click", "[data-retire]", (button) => {
  const form = find("#dialog-retire form");
  form.dataset.action = button.dataset.action;
  find("[data-when=version-back]", form).hidden = button.dataset.back !== "yes";
  ask("dialog-retire", { texts: { name: button.dataset.name }, parts: { __version__: button.dataset.name } });
});

// A card that came live has no version in its form's address yet.
document.addEventListener("submit", (event) => {
  const pattern = event.target.dataset.versionAction;
  const version = event.target.closest("[data-row]")?.dataset.row;
  if (pattern && version) event.target.setAttribute("action", fill(pattern, { __version__: version }));
}, true);

let scaled = { wanted: 0, risk: false, back: false };

on(document, "click", "[data-scale]", (button) => {
  const { release, lane, wanted, risk, back } = button.dataset;
  scaled = { wanted: Number(wanted), risk: risk === "yes", back: back === "yes" };
  ask("dialog-scale", {
    texts: { release, lane },
    inputs: { replicas: wanted, lane },
  });
  const form = find("#dialog-scale form");
  form.setAttribute("action", form.dataset.action.replace(/\/\d+\/scale\/$/, `/${Number(release)}/scale/`));
  showConsequence();
});

on(document, "input", "#scale-replicas", showConsequence);

function showConsequence() {
  const dialog = find("#dialog-scale");
  const asked = Number(find("#scale-replicas").value);
  const shown = {
    "zero-risk": asked === 0 && scaled.wanted > 0 && scaled.risk,
    zero: asked === 0 && scaled.wanted > 0 && !scaled.risk,
    down: asked > 0 && asked < scaled.wanted,
    up: asked > scaled.wanted,
    fewer: asked < scaled.wanted,
    back: asked < scaled.wanted && scaled.back,
  };
  for (const note of findAll("[data-when]", dialog)) note.hidden = !shown[note.dataset.when];
  find("[data-text=fewer]", dialog).textContent = String(scaled.wanted - asked);
  find("[data-text=more]", dialog).textContent = String(asked - scaled.wanted);
  find("[data-send]", dialog).className = asked === 0 ? "btn danger" : "btn primary";
}
