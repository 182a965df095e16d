// A heatmap of rows by columns on a canvas: one pixel a cell, scaled up. Absent cells stay transparent, so that the
// hatch below shows. Draws what it is given; knows no page.

import { find } from "./dom.js";

const STOPS = [0, 0.25, 0.6, 0.85, 1];
const SHADES = 256;

/** RGBA of every shade from the page's --heat-0 … --heat-4, which differ in light and dark. */
export function readShades(element) {
  const colours = STOPS.map((_, index) => parseColour(element, `--heat-${index}`));
  const shades = new Uint8ClampedArray(SHADES * 4);
  for (let shade = 0; shade < SHADES; shade += 1) {
    const at = shade / (SHADES - 1);
    const upper = Math.max(1, STOPS.findIndex((stop) => stop >= at));
    const part = (at - STOPS[upper - 1]) / (STOPS[upper] - STOPS[upper - 1]);
    for (let channel = 0; channel < 3; channel += 1) {
      shades[shade * 4 + channel] = colours[upper - 1][channel] * (1 - part) + colours[upper][channel] * part;
    }
    shades[shade * 4 + 3] = 255;
  }
  return shades;
}

/** [red, green, blue] of a custom property, whatever way it is written in. */
export function parseColour(element, name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  element.append(probe);
  const parts = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
  probe.remove();
  return parts.slice(0, 3);
}

/**
 * `rows`: arrays of values or null; `top`: the value of the last shade. The canvas gets `rowPx` per row.
 * `chosen`: [row, column] with a frame around it, or null.
 */
export function drawGrid(canvas, { rows, columns, top, shades, rowPx, chosen = null }) {
  const ratio = window.devicePixelRatio || 1;
  const height = Math.max(1, rows.length * rowPx);
  canvas.style.height = `${height}px`;
  const width = canvas.clientWidth;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  if (!rows.length || !columns) return;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(paintCells(rows, columns, top, shades), 0, 0, canvas.width, canvas.height);
  context.scale(ratio, ratio);
  clearGaps(context, rows.length, rowPx, width);
  if (chosen) {
    const cellPx = width / columns;
    context.strokeStyle = getComputedStyle(canvas).color;
    context.lineWidth = 1.5;
    context.strokeRect(chosen[1] * cellPx, chosen[0] * rowPx, Math.max(cellPx, 3), rowPx - 1);
  }
}

function paintCells(rows, columns, top, shades) {
  const image = new ImageData(columns, rows.length);
  rows.forEach((row, y) => {
    for (let x = 0; x < columns; x += 1) {
      const value = row[x];
      if (value === null || value === undefined) continue;
      const shade = Math.round(Math.min(1, Math.max(0, value / top)) * (SHADES - 1)) * 4;
      image.data.set(shades.subarray(shade, shade + 4), (y * columns + x) * 4);
    }
  });
  const small = new OffscreenCanvas(columns, rows.length);
  small.getContext("2d").putImageData(image, 0, 0);
  return small;
}

function clearGaps(context, count, rowPx, width) {
  if (rowPx < 6) return;
  for (let row = 1; row <= count; row += 1) context.clearRect(0, row * rowPx - 1, width, 1);
}

/** Pointer and arrow keys to [row, column]; `onChoose(cell or null)`. `size()` gives [rows, columns]. */
export function watchCells(canvas, size, onChoose) {
  let chosen = null;
  function choose(cell) {
    chosen = cell;
    onChoose(cell);
  }
  canvas.addEventListener("pointermove", (event) => {
    const [rows, columns] = size();
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / box.height * rows);
    const column = Math.floor((event.clientX - box.left) / box.width * columns);
    if (row >= 0 && row < rows && column >= 0 && column < columns) choose([row, column]);
  });
  canvas.addEventListener("pointerleave", () => choose(null));
  canvas.addEventListener("blur", () => choose(null));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const [rows, columns] = size();
    if (!step || !rows || !columns) return;
    event.preventDefault();
    const from = chosen ?? [0, columns];
    const clamp = (value, most) => Math.min(most - 1, Math.max(0, value));
    choose([clamp(from[0] + step[0], rows), clamp(from[1] + step[1], columns)]);
  });
}

export function onThemeChange(action) {
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", action);
  new MutationObserver(action).observe(find("html"), { attributes: true, attributeFilter: ["data-theme"] });
}
