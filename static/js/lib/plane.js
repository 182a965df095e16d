// A figure on the page: cells below, plotly's axes above, a cursor and an area on top, by pointer or by keyboard.

/* global Plotly */

import { drawAxes, frameOf, Palette } from "./chart.js";
import { find, make } from "./dom.js";
import { fit, paint, readCells } from "./heatmap.js";

const STEP_KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
const TIP_GAP_PX = 14;

/**
 * `describe(hit)` → lines of text for the tip, the first one bold; `onArea({from, to, low, high})` in milliseconds and
 * values of the vertical axis; `onClear()` when the area is taken back.
 */
export class Plane {
  constructor(holder, { describe, onArea, onClear }) {
    this.holder = holder;
    this.describe = describe;
    this.onArea = onArea;
    this.onClear = onClear;
    this.cellsCanvas = find(".plot-cells", holder);
    this.axes = find(".plot-axes", holder);
    this.cursorCanvas = find(".plot-cursor", holder);
    this.tip = find(".plot-tip", holder);
    this.figure = null;
    this.cursor = null;
    this.area = null;
    this.drag = null;
    this.listen();
  }

  /** Resolves when all is drawn. The cells are there at once. */
  draw(figure) {
    this.figure = figure;
    this.cells = readCells(figure);
    const { width, height } = this.holder.getBoundingClientRect();
    this.frame = frameOf(figure, width, height);
    this.palette ??= new Palette(this.holder);
    paint(this.cellsCanvas, figure, this.cells, this.frame, this.palette);
    this.paintCursor();
    const { xaxis, yaxis } = figure.layout;
    const looks = JSON.stringify([xaxis.relative ?? xaxis.range, yaxis.ticktext, this.frame.y0, this.frame.y1, width, height]);
    if (looks === this.axesLook) return Promise.resolve();
    this.axesLook = looks;
    return drawAxes(this.axes, figure, this.frame, this.palette);
  }

  redraw() {
    if (this.figure) this.draw(this.figure);
  }

  clear() {
    this.figure = null;
    this.cursor = this.area = this.drag = null;
    this.tip.hidden = true;
    fit(this.cellsCanvas);
    fit(this.cursorCanvas);
    this.axesLook = null;
    Plotly.purge(this.axes);
  }

  listen() {
    const canvas = this.cursorCanvas;
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointerup", () => { if (this.drag) this.choose(); });
    canvas.addEventListener("pointercancel", () => { this.drag = null; });
    this.holder.addEventListener("keydown", (event) => this.key(event));
    this.holder.addEventListener("blur", () => this.leave());
    new ResizeObserver(() => this.redraw()).observe(this.holder);
    const renew = () => { this.palette = this.axesLook = null; this.redraw(); };
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", renew);
    new MutationObserver(renew).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  /** The cell at these pixels; null outside. */
  hit(px, py) {
    const [cells] = this.cells ?? [];
    if (!this.figure || !cells?.columns) return null;
    const at = this.frame.at(px);
    const [first, last] = [cells.edges[0], cells.edges[cells.columns]];
    const column = Math.floor(((at - first) / (last - first)) * cells.columns);
    const row = this.rowAt(this.frame.value(py), cells);
    return column < 0 || column >= cells.columns || row < 0 || row >= cells.rows ? null : { column, row };
  }

  rowAt(value, cells) {
    if (!this.frame.isLog) return Math.round(value);
    const edges = cells.trace.y;
    const [low, high] = [Math.log(edges[0]), Math.log(edges[cells.rows])];
    return Math.floor(((Math.log(value) - low) / (high - low)) * cells.rows);
  }

  move(event) {
    const found = this.hit(event.offsetX, event.offsetY);
    if (this.drag && found) this.area = this.spanOf(this.drag, found);
    this.point(found);
  }

  press(event) {
    const found = event.button === 0 ? this.hit(event.offsetX, event.offsetY) : null;
    if (!found) return;
    this.drag = found;
    this.area = this.spanOf(found, found);
    this.cursorCanvas.setPointerCapture(event.pointerId);
    this.point(found);
  }

  leave() {
    if (!this.drag) this.point(null);
  }

  key(event) {
    if (event.target !== this.holder || !this.cells?.[0]?.columns) return;
    const step = STEP_KEYS[event.key];
    if (step) this.step(step, event.shiftKey);
    else if (event.key === "Enter" && this.cursor) this.choose();
    else if (event.key === "Escape") this.drop();
    else return;
    event.preventDefault();
  }

  step([across, up], extends_) {
    const [{ columns, rows }] = this.cells;
    const from = this.cursor ?? { column: columns - 1, row: Math.floor(rows / 2) };
    const rise = this.frame.isLog ? up : -up;
    const cursor = {
      column: Math.max(0, Math.min(columns - 1, from.column + across)),
      row: Math.max(0, Math.min(rows - 1, from.row + rise)),
    };
    this.anchor = extends_ ? this.anchor ?? from : null;
    this.area = this.spanOf(this.anchor ?? cursor, cursor);
    this.point(cursor);
  }

  drop() {
    this.area = this.anchor = null;
    this.paintCursor();
    this.onClear();
  }

  choose() {
    this.drag = null;
    this.area ??= this.spanOf(this.cursor, this.cursor);
    this.paintCursor();
    this.onArea(this.area);
  }

  spanOf(one, other) {
    const [{ edges, trace }] = this.cells;
    const [left, right] = [Math.min(one.column, other.column), Math.max(one.column, other.column)];
    const [low, high] = [Math.min(one.row, other.row), Math.max(one.row, other.row)];
    const isLog = this.frame.isLog;
    return {
      from: edges[left], to: edges[right + 1], low: isLog ? trace.y[low] : low, high: isLog ? trace.y[high + 1] : high,
      isLowest: low === 0, isHighest: high === this.cells[0].rows - 1,
    };
  }

  point(found) {
    this.cursor = found;
    this.paintCursor();
    const lines = found ? this.describe({ ...found, plane: this }) : [];
    this.tip.hidden = !lines.length;
    if (lines.length) this.tell(lines, found);
  }

  tell(lines, { column, row }) {
    this.tip.replaceChildren(...lines.map((text, place) => make(place ? "span" : "b", { text })));
    const [{ edges, trace }] = this.cells;
    const x = this.frame.x(edges[column + 1]);
    const y = this.frame.y(this.frame.isLog ? trace.y[row + 1] : row);
    const { offsetWidth, offsetHeight } = this.tip;
    const fits = x + TIP_GAP_PX + offsetWidth < this.holder.clientWidth;
    this.tip.style.left = `${Math.max(0, fits ? x + TIP_GAP_PX : this.frame.x(edges[column]) - TIP_GAP_PX - offsetWidth)}px`;
    this.tip.style.top = `${Math.max(0, Math.min(y, this.holder.clientHeight - offsetHeight))}px`;
  }

  paintCursor() {
    const context = fit(this.cursorCanvas);
    if (!this.figure) return;
    if (this.area) this.box(context, this.area, "var(--accent)", 1.5);
    if (this.cursor && this.cursor.column < this.cells[0].columns) {
      this.box(context, this.spanOf(this.cursor, this.cursor), "var(--text)", 1);
    }
  }

  box(context, { from, to, low, high }, colour, width) {
    const { frame } = this;
    const [x0, x1] = [from, to].map((at) => Math.max(frame.left, Math.min(frame.left + frame.width, frame.x(at))));
    const [y0, y1] = frame.isLog ? [frame.y(high), frame.y(low)] : [frame.y(low - 0.5), frame.y(high + 0.5)];
    context.strokeStyle = this.palette.colour(colour);
    context.lineWidth = width;
    context.strokeRect(x0, y0, Math.max(1, x1 - x0), y1 - y0);
  }
}
