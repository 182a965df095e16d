// Draws a figure's cells and lines on a canvas below plotly's axes: a live picture is repainted twice a second, for
// which plotly's own heatmap is too slow, and it writes styles that the content security policy forbids.

import { readArray } from "./chart.js";
import { paintScale } from "./colourbar.js";

const SHADES = 256;
const DASHES = { dot: [1.5, 3], dash: [6, 4], solid: [] };
const GAP_PX = 2;
const EVENT_PX = 5;

/** `at(column, row)` of each heatmap trace, its numbers of columns and rows; rows count from the lowest time on. */
export function readCells(figure) {
  return figure.data.filter((trace) => trace.type === "heatmap").map((trace) => {
    const edges = readArray(trace.x);
    const columns = edges.length - 1;
    const values = readArray(trace.z);
    return {
      trace, columns, values, edges,
      rows: columns ? values.length / columns : 0,
      custom: trace.customdata ? readArray(trace.customdata) : null,
    };
  });
}

export function fit(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** All of a figure but what plotly draws. */
export function paint(canvas, figure, cells, frame, palette) {
  const context = fit(canvas);
  context.fillStyle = palette.colour(figure.layout.plot_bgcolor);
  context.fillRect(frame.left, frame.top, frame.width, frame.height);
  context.save();
  context.beginPath();
  context.rect(frame.left, frame.top, frame.width, frame.height);
  context.clip();
  for (const one of cells) paintCells(context, one, frame, palette);
  if (cells[0]?.trace.ygap) clearGaps(context, cells[0], frame, palette.colour("var(--surface)"));
  for (const trace of figure.data) {
    if (trace.type === "scatter" && trace.name !== "events") paintLine(context, trace, frame, palette);
  }
  for (const at of eventsOf(figure)) paintEventLine(context, frame.x(at), frame, palette);
  context.restore();
  for (const at of eventsOf(figure)) paintEventMark(context, frame.x(at), frame, palette);
  const shown = cells.find(({ trace }) => trace.showscale !== false);
  if (shown && !frame.isNarrow) paintScale(context, shown.trace, frame, palette);
}

function paintCells(context, { trace, columns, rows, values, edges }, frame, palette) {
  if (!columns || !rows) return;
  const image = imageOf(trace, columns, rows, values, frame.isLog, palette);
  context.imageSmoothingEnabled = false;
  const [left, right] = [frame.x(edges[0]), frame.x(edges[columns])];
  const names = frame.isLog ? readArray(trace.y) : null;
  const [top, bottom] = names ? [frame.y(names[rows]), frame.y(names[0])] : [frame.y(-0.5), frame.y(rows - 0.5)];
  context.drawImage(image, left, top, right - left, bottom - top);
}

let board = null;

/** One pixel a cell. */
function imageOf(trace, columns, rows, values, isUp, palette) {
  board ??= document.createElement("canvas");
  if (board.width !== columns || board.height !== rows) [board.width, board.height] = [columns, rows];
  const context = board.getContext("2d");
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const shades = shadesOf(trace.colorscale, palette);
  const scale = (SHADES - 1) / (trace.zmax - trace.zmin || 1);
  for (let row = 0; row < rows; row += 1) {
    const line = (isUp ? rows - 1 - row : row) * columns;
    for (let column = 0; column < columns; column += 1) {
      const value = values[row * columns + column];
      // Not measured: the ground shows.
      if (Number.isNaN(value)) continue;
      pixels[line + column] = shades[Math.max(0, Math.min(SHADES - 1, Math.round((value - trace.zmin) * scale)))];
    }
  }
  context.putImageData(image, 0, 0);
  return board;
}

const shadesByScale = new WeakMap();

function shadesOf(scale, palette) {
  const known = shadesByScale.get(palette) ?? new Map();
  shadesByScale.set(palette, known);
  const key = JSON.stringify(scale);
  if (!known.has(key)) known.set(key, makeShades(scale, palette));
  return known.get(key);
}

function makeShades(scale, palette) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [SHADES, 1];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const ramp = context.createLinearGradient(0, 0, SHADES, 0);
  for (const [place, colour] of scale) ramp.addColorStop(Math.min(1, Math.max(0, place)), palette.colour(colour));
  context.fillStyle = ramp;
  context.fillRect(0, 0, SHADES, 1);
  return new Uint32Array(context.getImageData(0, 0, SHADES, 1).data.buffer);
}

function clearGaps(context, { rows }, frame, colour) {
  context.fillStyle = colour;
  for (let row = 1; row < rows; row += 1) {
    context.fillRect(frame.left, frame.y(row - 0.5) - GAP_PX / 2, frame.width, GAP_PX);
  }
}

function paintLine(context, trace, frame, palette) {
  const xs = readArray(trace.x);
  const ys = readArray(trace.y);
  context.globalAlpha = trace.opacity ?? 1;
  context.strokeStyle = palette.colour(trace.line.color);
  context.lineWidth = trace.line.width;
  context.setLineDash(DASHES[trace.line.dash] ?? []);
  context.beginPath();
  let isOpen = false;
  for (let place = 0; place < xs.length; place += 1) {
    const isKnown = !Number.isNaN(ys[place]);
    if (isKnown) context[isOpen ? "lineTo" : "moveTo"](frame.x(xs[place]), frame.y(ys[place]));
    isOpen = isKnown;
  }
  context.stroke();
  context.setLineDash([]);
  if (trace.mode.includes("markers")) paintPoints(context, xs, ys, trace, frame, palette);
  context.globalAlpha = 1;
}

function paintPoints(context, xs, ys, trace, frame, palette) {
  const size = trace.marker.size;
  context.fillStyle = palette.colour(trace.marker.color);
  for (let place = 0; place < xs.length; place += 1) {
    if (!Number.isNaN(ys[place])) context.fillRect(frame.x(xs[place]) - size / 2, frame.y(ys[place]) - size / 2, size, size);
  }
}

function eventsOf(figure) {
  const [from, to] = figure.layout.xaxis.range;
  const events = figure.data.find((trace) => trace.name === "events");
  return (events?.x ?? []).filter((at) => at >= from && at <= to);
}

function paintEventLine(context, x, frame, palette) {
  context.strokeStyle = palette.colour("var(--text-3)");
  context.lineWidth = 1;
  context.setLineDash(DASHES.dot);
  context.beginPath();
  context.moveTo(x, frame.top);
  context.lineTo(x, frame.top + frame.height);
  context.stroke();
  context.setLineDash([]);
}

function paintEventMark(context, x, frame, palette) {
  context.fillStyle = palette.colour("var(--text-2)");
  context.beginPath();
  context.moveTo(x - EVENT_PX, frame.top - EVENT_PX);
  context.lineTo(x + EVENT_PX, frame.top - EVENT_PX);
  context.lineTo(x, frame.top + EVENT_PX / 2);
  context.fill();
}
