// Block maps of a KV cache: reads frames of the socket and draws up to a quarter of a million blocks on a canvas.

import { parseColour } from "./gridmap.js";

const MOST_BLOCKS = 262144;
const TALLEST_PX = 460;
const LARGEST_CELL_PX = 15;
const GAP_FROM_PX = 5;
const NOBODY = 65535;
const HUES = 24;
export const STATES = ["null", "free", "reusable", "used", "shared"];
const USED = 3;

/** `{ head, states: Uint8Array, owners: Uint16Array }`; throws for what is no map. */
export async function readMap(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const [states, owners] = head.lengths;
  if (head.blocks > MOST_BLOCKS) throw new Error("too many blocks");
  const body = 4 + length;
  const found = await Promise.all([
    inflate(buffer.slice(body, body + states), head.blocks),
    inflate(buffer.slice(body + states, body + states + owners), head.blocks * 2),
  ]);
  return { head, states: new Uint8Array(found[0]), owners: new Uint16Array(found[1]) };
}

async function inflate(content, bytes) {
  const stream = new Blob([content]).stream().pipeThrough(new DecompressionStream("deflate"));
  const found = await new Response(stream).arrayBuffer();
  if (found.byteLength !== bytes) throw new Error("a map of another size than its head says");
  return found;
}

/** How blocks lie on a canvas of this width: columns, rows and the pixels of a block. */
export function layOut(blocks, width) {
  let cell = Math.max(1, Math.min(LARGEST_CELL_PX, Math.floor(Math.sqrt(width * TALLEST_PX / Math.max(1, blocks)))));
  while (cell > 1 && Math.ceil(blocks / Math.floor(width / cell)) * cell > TALLEST_PX) cell -= 1;
  const columns = Math.max(1, Math.min(blocks, Math.floor(width / cell)));
  return { cell, columns, rows: Math.ceil(blocks / columns) };
}

/** Colours by state and the light of the request hues, from the page's custom properties. */
export function readColours(element) {
  const dark = getComputedStyle(element).colorScheme === "dark"
    || (document.documentElement.dataset.theme !== "light" && window.matchMedia("(prefers-color-scheme: dark)").matches);
  return {
    states: STATES.map((name) => parseColour(element, `--block-${name}`)),
    nobody: parseColour(element, "--block-nobody"),
    hues: Array.from({ length: HUES }, (_, index) => hueOf(index, dark)),
  };
}

function hueOf(index, dark) {
  const [s, l] = dark ? [0.55, [0.62, 0.48][index % 2]] : [0.6, [0.42, 0.58][index % 2]];
  const hue = (index * 137.5) % 360;
  const a = s * Math.min(l, 1 - l);
  const channel = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (l - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [channel(0), channel(8), channel(4)];
}

/** A request keeps its colour from map to map: it hangs on its id, not on its place. */
export function colourOf(id, colours) {
  let hash = 2166136261;
  for (const letter of id) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
  return colours.hues[(hash >>> 0) % HUES];
}

export function ownerOf(map, block) {
  const owner = map.owners[block];
  return owner === NOBODY ? null : map.head.requests[owner] ?? null;
}

/** `byRequest`: colour by owner. `chosen`: a block; the blocks of its request stand out. */
export function drawMap(canvas, map, { colours, byRequest, chosen = null }) {
  const layout = layOut(map.head.blocks, canvas.clientWidth);
  const ratio = window.devicePixelRatio || 1;
  const height = layout.rows * layout.cell;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.max(1, Math.round(height * ratio));
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.scale(ratio, ratio);
  const width = layout.columns * layout.cell;
  context.drawImage(paintBlocks(map, layout, { colours, byRequest, chosen }), 0, 0, width, height);
  if (layout.cell >= GAP_FROM_PX) clearLines(context, layout, width, height);
  if (chosen !== null && chosen < map.head.blocks) {
    context.strokeStyle = getComputedStyle(canvas).color;
    context.lineWidth = 1.5;
    const size = Math.max(layout.cell, 4);
    context.strokeRect(chosen % layout.columns * layout.cell, Math.floor(chosen / layout.columns) * layout.cell, size, size);
  }
  return layout;
}

function paintBlocks(map, layout, { colours, byRequest, chosen }) {
  const image = new ImageData(layout.columns, layout.rows);
  const pixels = new Uint32Array(image.data.buffer);
  const states = colours.states.map(pack);
  const owners = map.head.requests.map(([id]) => pack(colourOf(id, colours)));
  const nobody = pack(colours.nobody);
  const lit = chosen === null ? NOBODY : map.owners[chosen] ?? NOBODY;
  for (let block = 0; block < map.head.blocks; block += 1) {
    const state = map.states[block];
    const owner = map.owners[block];
    const base = !byRequest ? states[state] : owner === NOBODY || state < USED ? nobody : owners[owner] ?? nobody;
    // Half transparent: the request under the pointer stands out of the others.
    pixels[block] = lit !== NOBODY && owner !== lit ? (base & 0x00ffffff) | 0x55000000 : base;
  }
  const small = new OffscreenCanvas(layout.columns, layout.rows);
  small.getContext("2d").putImageData(image, 0, 0);
  return small;
}

function pack([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function clearLines(context, { columns, rows, cell }, width, height) {
  for (let column = 1; column <= columns; column += 1) context.clearRect(column * cell - 1, 0, 1, height);
  for (let row = 1; row <= rows; row += 1) context.clearRect(0, row * cell - 1, width, 1);
}
