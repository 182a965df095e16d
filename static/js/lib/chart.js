// Figures that the server defined with plotly: their colours by theme, their arrays, and plotly's part of drawing
// them: the axes. Cells, lines and events are lib/heatmap.js' part.
/* global Plotly */

const CONFIG = { staticPlot: true, displayModeBar: false, responsive: false };
const NARROW_PX = 560;
const ARRAYS = {
  f4: Float32Array, f8: Float64Array, i4: Int32Array, u4: Uint32Array, i2: Int16Array, u2: Uint16Array,
  i1: Int8Array, u1: Uint8Array,
};
const CLEAR = "rgba(0,0,0,0)";
const AXES_ONLY = { type: "scatter", mode: "markers", x: [null], y: [null] };

/** Names of the style sheet, `var(--name)`, as what they are now. Make a new one when the theme changes. */
export class Palette {
  constructor(element) {
    this.element = element;
    this.known = new Map();
  }

  colour(text) {
    if (typeof text !== "string" || !text.startsWith("var(--")) return text;
    if (!this.known.has(text)) this.known.set(text, this.look(text));
    return this.known.get(text);
  }

  look(text) {
    const name = text.slice(4, -1);
    const style = getComputedStyle(this.element);
    if (name === "--font" || name === "--mono") return style.getPropertyValue(name);
    // light-dark() is resolved only where it is used as a colour.
    const probe = document.createElement("i");
    probe.style.color = text;
    probe.hidden = true;
    this.element.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  /** A copy of nested values in which every name is replaced. */
  resolve(value) {
    if (typeof value === "string") return this.colour(value);
    if (Array.isArray(value)) return value.map((one) => this.resolve(one));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, this.resolve(one)]));
  }
}

/** plotly's arrays: a list, a list of lists, or base64 with its type. Flat; null becomes NaN. */
export function readArray(values) {
  if (ArrayBuffer.isView(values)) return values;
  if (values?.bdata !== undefined) {
    const bytes = Uint8Array.from(atob(values.bdata), (letter) => letter.charCodeAt(0));
    return new ARRAYS[values.dtype](bytes.buffer);
  }
  return Float64Array.from((values ?? []).flat(), (value) => (value === null ? NaN : value));
}

/** Where things are: pixels of the plane inside the margins, and what its edges stand for. */
export function frameOf(figure, width, height) {
  const isNarrow = width < NARROW_PX;
  const margin = { ...figure.layout.margin, ...(isNarrow ? { l: 52, r: 14 } : {}) };
  const plane = { left: margin.l, top: margin.t, width: width - margin.l - margin.r, height: height - margin.t - margin.b };
  const [x0, x1] = figure.layout.xaxis.range;
  const { type, categoryarray, range } = figure.layout.yaxis;
  const isLog = type === "log";
  const [y0, y1] = isLog ? range : [categoryarray.length - 0.5, -0.5];
  return {
    ...plane, margin, isNarrow, isLog, x0, x1, y0, y1,
    x: (at) => plane.left + ((at - x0) / (x1 - x0)) * plane.width,
    y: (value) => plane.top + (1 - ((isLog ? Math.log10(value) : value) - y0) / (y1 - y0)) * plane.height,
    at: (px) => x0 + ((px - plane.left) / plane.width) * (x1 - x0),
    value: (py) => {
      const place = y0 + (1 - (py - plane.top) / plane.height) * (y1 - y0);
      return isLog ? 10 ** place : place;
    },
  };
}

/**
 * plotly's part. Resolves when it is drawn. A live picture's time axis is `relative` to now, so that it stays as it is
 * while time passes: a redraw costs plotly some 20 ms, and leaves something behind each time.
 */
export function drawAxes(element, figure, frame, palette) {
  const { width, height } = element.getBoundingClientRect();
  const { layout } = figure;
  const yaxis = { ...layout.yaxis, range: [frame.y0, frame.y1] };
  delete yaxis.autorange;
  const { relative, ...absolute } = layout.xaxis;
  const drawn = {
    ...layout, shapes: [], yaxis, width, height, margin: frame.margin, plot_bgcolor: CLEAR, paper_bgcolor: CLEAR,
    xaxis: { ...absolute, nticks: frame.isNarrow ? 4 : 9, ...relative },
  };
  return Plotly.react(element, [AXES_ONLY], palette.resolve(drawn), CONFIG);
}
