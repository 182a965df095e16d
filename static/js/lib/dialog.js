// Fills a confirmation with what it is about and opens it. Values enter as text and as URL parts only.

import { find, findAll } from "./dom.js";

/** `texts` fills `[data-text]`, `parts` replaces placeholders in the form's `data-action`, `inputs` sets fields. */
export function ask(id, { texts = {}, parts = {}, inputs = {} } = {}) {
  const dialog = document.getElementById(id);
  if (!(dialog instanceof HTMLDialogElement)) return null;
  for (const element of findAll("[data-text]", dialog)) element.textContent = texts[element.dataset.text] ?? "";
  const form = find("form", dialog);
  if (form.dataset.action) form.setAttribute("action", fill(form.dataset.action, parts));
  for (const [name, value] of Object.entries(inputs)) form.elements[name].value = value;
  dialog.showModal();
  return dialog;
}

export function fill(path, parts) {
  return Object.entries(parts).reduce((done, [mark, value]) => done.replace(mark, encodeURIComponent(value)), path);
}
