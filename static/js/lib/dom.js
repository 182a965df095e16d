// Small tools for the page. Text enters by textContent only.

export function find(selector, root = document) {
  return root.querySelector(selector);
}

export function findAll(selector, root = document) {
  return [...root.querySelectorAll(selector)];
}

/** Delegated events: one listener, works for elements that come later. */
export function on(root, event, selector, action) {
  root.addEventListener(event, (happening) => {
    const target = happening.target instanceof Element ? happening.target.closest(selector) : null;
    if (target && root.contains(target)) action(target, happening);
  });
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** An element with a class and text; never parses HTML. */
export function make(tag, { className = "", text = "", attributes = {} } = {}) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** JSON that the page carries in a `json_script` block. */
export function readJson(id) {
  const element = document.getElementById(id);
  return element ? JSON.parse(element.textContent) : null;
}

export function isTyping(element) {
  return element instanceof HTMLElement && (element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName));
}
