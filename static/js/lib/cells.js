// Keeps a server-rendered page current: cells are patched, rows come and go from a <template>.
//
// data-cell="phase"            text of the cell (in <time data-age>: its instant)
// data-set="data-state:tone"   attributes, several with spaces between
// data-show="has_reason"       hidden unless true
// data-rows="replicas"         a list; each child row has data-row="<id>"; its cells' keys begin "replicas/<id>/"
// data-scope="tiles"           a prefix for the keys below it

import { find, setText } from "./dom.js";
import { formatAge, formatInstant } from "./format.js";

const ATTRIBUTES = /^(data-[a-z-]+|width|x|points|title|value|aria-label|href)$/;

export class LiveCells {
  constructor(root) {
    this.root = root;
    this.values = new Map();
    this.bindings = new Map();
    this.bindTree(root, "");
  }

  /** Applies changes; `full` replaces all that was known. */
  apply({ set, gone, full }) {
    const changed = new Set(Object.keys(set));
    if (full) {
      for (const key of this.values.keys()) if (!changed.has(key)) this.values.delete(key);
    }
    for (const key of gone) this.values.delete(key);
    for (const [key, value] of Object.entries(set)) this.values.set(key, value);
    // Outer lists first: their rows bring the cells of the inner ones.
    const lists = [...changed].filter((key) => key.endsWith("#")).sort((a, b) => a.length - b.length);
    for (const key of lists) this.paint(key);
    for (const key of changed) if (!key.endsWith("#")) this.paint(key);
  }

  paint(key) {
    for (const binding of this.bindings.get(key) ?? []) binding(this.values.get(key));
  }

  bind(key, binding) {
    if (!this.bindings.has(key)) this.bindings.set(key, []);
    this.bindings.get(key).push(binding);
    if (this.values.has(key)) binding(this.values.get(key));
  }

  bindTree(element, prefix) {
    this.bindElement(element, prefix);
    if (element.dataset?.rows !== undefined) {
      this.bindRows(element, prefix + element.dataset.rows);
      return;
    }
    const inner = element.dataset?.scope ? `${prefix}${element.dataset.scope}/` : prefix;
    for (const child of element.children) if (child.tagName !== "TEMPLATE") this.bindTree(child, inner);
  }

  bindElement(element, prefix) {
    const { cell, set, show } = element.dataset ?? {};
    if (cell) this.bind(prefix + cell, (value) => paintText(element, value));
    if (show) this.bind(prefix + show, (value) => { element.hidden = !value; });
    for (const pair of set ? set.split(" ") : []) {
      const [name, key] = pair.split(":");
      if (ATTRIBUTES.test(name)) this.bind(prefix + key, (value) => paintAttribute(element, name, value));
    }
  }

  bindRows(container, path) {
    for (const row of rowsOf(container)) this.bindTree(row, `${path}/${row.dataset.row}/`);
    this.bind(`${path}#`, (ids) => this.arrange(container, path, ids ?? []));
  }

  arrange(container, path, ids) {
    const present = new Map(rowsOf(container).map((row) => [row.dataset.row, row]));
    for (const [id, row] of present) {
      if (ids.includes(id)) continue;
      row.remove();
      this.forget(`${path}/${id}/`);
    }
    const template = find(":scope > template", container);
    let after = template;
    for (const id of ids) {
      let row = present.get(id);
      const isNew = !row;
      if (isNew) {
        row = template.content.firstElementChild.cloneNode(true);
        row.dataset.row = id;
      }
      if (after.nextElementSibling !== row) after.after(row);
      if (isNew) this.bindTree(row, `${path}/${id}/`);
      after = row;
    }
  }

  forget(prefix) {
    for (const key of this.bindings.keys()) if (key.startsWith(prefix)) this.bindings.delete(key);
    for (const key of this.values.keys()) if (key.startsWith(prefix)) this.values.delete(key);
  }
}

function rowsOf(container) {
  return [...container.children].filter((child) => child.dataset.row !== undefined);
}

function paintText(element, value) {
  if (element.dataset.age !== undefined) {
    element.setAttribute("datetime", value ?? "");
    element.title = value ? formatInstant(value) : "";
    setText(element, formatAge(value, element.dataset.age));
    return;
  }
  setText(element, value === null || value === undefined || value === "" ? "" : String(value));
}

function paintAttribute(element, name, value) {
  const text = value === null || value === undefined ? "" : String(value);
  if (name === "href" && !text.startsWith("/")) return;
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}
