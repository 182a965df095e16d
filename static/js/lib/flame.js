// A flame graph in SVG: outer operations above, inner ones below, as wide as they took long. Hover or arrow keys read
// it, a click or Enter zooms, Escape goes back. Names enter as text only.

const SVG = "http://www.w3.org/2000/svg";
const ROW_PX = 19;
const SMALLEST_PX = 0.6;
const LETTER_PX = 6.7;
const PADDING_PX = 5;

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

/** Tells each node its parent, so that a way leads back up. */
export function link(node, parent = null) {
  node.parent = parent;
  for (const child of node.children) link(child, node);
  return node;
}

export function pathOf(node) {
  return node.parent ? [...pathOf(node.parent), node] : [node];
}

/** Boxes in pixels, outer first: what leads to `focus` takes the whole width, `focus` and what is inside it their share. */
export function layOut(focus, width) {
  const way = pathOf(focus);
  const boxes = way.map((node, depth) => ({ node, depth, x: 0, width, isOuter: node !== focus }));
  place(focus, way.length, 0, width, boxes);
  return boxes;
}

function place(node, depth, left, width, boxes) {
  // Children that add up to more than their parent (rounding) must not leave it.
  const whole = Math.max(node.value, node.children.reduce((sum, child) => sum + child.value, 0));
  let x = left;
  for (const child of node.children) {
    const size = whole > 0 ? (child.value / whole) * width : 0;
    if (size >= SMALLEST_PX) {
      boxes.push({ node: child, depth, x, width: size, isOuter: false });
      place(child, depth + 1, x, size, boxes);
    }
    x += size;
  }
}

/** As much of a name as fits; its end is cut. */
export function fit(name, width) {
  const letters = Math.floor((width - 2 * PADDING_PX) / LETTER_PX);
  if (name.length <= letters) return name;
  return letters < 3 ? "" : `${name.slice(0, letters - 1)}…`;
}

export class Flame {
  /** `nameOf(node)` words a node; `onRead(node)` is told what is under the pointer or chosen, null: nothing. */
  constructor(root, { nameOf, onRead, onZoom }) {
    Object.assign(this, { root, nameOf, onRead, onZoom, tree: null, focus: null, chosen: null, boxes: [] });
    this.groups = new Map();
    root.addEventListener("pointermove", (event) => this.read(this.nodeAt(event.target) ?? this.chosen));
    root.addEventListener("pointerleave", () => this.read(this.chosen));
    root.addEventListener("click", (event) => {
      const node = this.nodeAt(event.target);
      if (node) this.zoom(node);
    });
    root.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => {
      if (this.tree && root.clientWidth !== this.width) this.paint();
    }).observe(root);
  }

  show(tree) {
    this.tree = link(tree);
    this.zoom(this.tree);
  }

  clear() {
    this.tree = this.focus = this.chosen = null;
    this.root.replaceChildren();
  }

  zoom(node) {
    this.focus = this.chosen = node;
    this.paint();
    this.read(node);
    this.onZoom(node !== this.tree);
  }

  paint() {
    this.width = this.root.clientWidth;
    this.boxes = layOut(this.focus, this.width);
    this.groups.clear();
    const rows = 1 + this.boxes.reduce((deepest, box) => Math.max(deepest, box.depth), 0);
    const svg = draw("svg", { width: this.width, height: rows * ROW_PX, viewBox: `0 0 ${this.width} ${rows * ROW_PX}` });
    for (const box of this.boxes) svg.append(this.drawBox(box));
    this.root.replaceChildren(svg);
    this.mark();
  }

  drawBox({ node, depth, x, width, isOuter }) {
    const group = draw("g", { class: [isOuter ? "outer" : "", node.parent ? "" : "whole"].join(" ").trim() });
    group.append(draw("rect", { x, y: depth * ROW_PX, width, height: ROW_PX - 1, rx: 2, "data-part": node.part ?? "other" }));
    const words = fit(this.nameOf(node), width);
    if (words) {
      const text = draw("text", { x: x + PADDING_PX, y: depth * ROW_PX + 12.5 });
      text.textContent = words;
      group.append(text);
    }
    group.node = node;
    this.groups.set(node, group);
    return group;
  }

  nodeAt(target) {
    return target instanceof Element ? target.closest("g")?.node ?? null : null;
  }

  choose(node) {
    if (!node) return;
    this.chosen = node;
    this.mark();
    this.read(node);
  }

  mark() {
    for (const [node, group] of this.groups) group.classList.toggle("chosen", node === this.chosen);
    const group = this.groups.get(this.chosen);
    if (group && this.root.matches(":focus")) group.parentNode.append(group);
  }

  read(node) {
    this.onRead(node);
  }

  press(event) {
    const moves = {
      ArrowUp: () => this.choose(this.chosen?.parent),
      ArrowDown: () => this.choose(this.inView(this.chosen?.children ?? [])[0]),
      ArrowLeft: () => this.step(-1),
      ArrowRight: () => this.step(1),
      Home: () => this.choose(this.focus),
      Enter: () => this.chosen && this.zoom(this.chosen),
      Escape: () => this.focus?.parent && this.zoom(this.focus.parent),
    };
    if (!moves[event.key] || !this.tree || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    moves[event.key]();
  }

  /** To the neighbour in the same row, also over the edge of its parent. */
  step(by) {
    const depth = pathOf(this.chosen).length;
    const row = this.boxes.filter((box) => pathOf(box.node).length === depth);
    this.choose(row[row.findIndex((box) => box.node === this.chosen) + by]?.node);
  }

  inView(nodes) {
    return nodes.filter((node) => this.groups.has(node));
  }
}
