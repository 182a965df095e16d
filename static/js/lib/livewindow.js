// The last five minutes of a live heatmap, from frames of the socket to a figure that lib/plane.js draws.
// Bounded: one column a second, the arrays are made once.

const WINDOW_S = 300;
const SETTLED_S = 2;
const QUANTILES = ["0.5", "0.95", "0.99"];
const FEW_SAMPLES = 20;
const TICKS_S = [-4, -3, -2, -1, 0].flatMap((power) => [1, 2, 5].map((factor) => factor * 10 ** power));
TICKS_S.push(10, 20, 60, 120, 300, 600, 1200, 3600);

export class LiveWindow {
  /** `enough`: samples from which on each quantile says something; `gamma`, `lowestS`: the histogram's buckets. */
  constructor({ enough, gamma, lowestS, formatSeconds, nowWord }) {
    Object.assign(this, { enough, gamma, lowestS, formatSeconds });
    const minutes = [5, 4, 3, 2, 1, 0];
    this.ago = {
      type: "linear", range: [-WINDOW_S, 0], tickvals: minutes.map((minute) => -60 * minute),
      ticktext: minutes.map((minute) => (minute ? `−${minute} min` : nowWord)), tickmode: "array",
    };
    this.columns = new Map();
    this.rows = { count: 0, first: 0, perRow: 1 };
    this.seq = null;
    this.nowS = this.sinceS = null;
  }

  /** False: a frame is missing, a whole one has to come. */
  take(frame) {
    [this.nowS, this.sinceS] = [frame.nowS, frame.sinceS];
    if (frame.kind === "whole") {
      this.columns.clear();
      this.rows = frame.rows;
    } else if (this.seq !== (frame.kind === "beat" ? frame.seq : frame.from)) {
      // Before the first whole frame beats tell only how things stand.
      return this.seq === null && frame.kind === "beat";
    }
    if (frame.kind !== "beat") {
      for (const column of frame.columns) this.columns.set(column.atS, column);
      this.seq = frame.seq;
    }
    for (const atS of this.columns.keys()) if (atS < this.nowS - WINDOW_S - 1) this.columns.delete(atS);
    return true;
  }

  get isWhole() {
    return this.seq !== null;
  }

  /** All that the window holds. */
  samples() {
    let sum = 0;
    for (const column of this.columns.values()) sum += column.samples;
    return sum;
  }

  edgesS() {
    const { count, first, perRow } = this.rows;
    return Array.from({ length: count + 1 }, (_, row) => this.lowestS * this.gamma ** (first + row * perRow - 1));
  }

  /** The figure of the server with the newest seconds in place of its own. */
  fill(figure, colouring) {
    const endS = Math.ceil(this.nowS);
    const startS = endS - WINDOW_S;
    const edges = this.edgesS();
    const [heat, ...others] = figure.data;
    const cells = this.cells(startS, colouring);
    const times = Float64Array.from({ length: WINDOW_S + 1 }, (_, column) => (startS + column) * 1000);
    const middles = times.subarray(0, WINDOW_S).map((at) => at + 500);
    const lines = others.filter((trace) => trace.name !== "events");
    const events = others.filter((trace) => trace.name === "events");
    const data = [
      { ...heat, ...cells, x: times, y: edges },
      ...lines.map((trace) => ({ ...trace, x: middles, y: this.line(trace, startS) })),
      ...events,
    ];
    return { data, layout: this.layout(figure.layout, edges, startS, endS) };
  }

  /** Between the first second that is known and the last that telemetry has read a second without a request is 0. */
  quietFrom(startS) {
    const known = [...this.columns.keys()];
    const first = known.length ? Math.max(startS, Math.min(...known)) : startS + WINDOW_S;
    return [first - startS, Math.floor(Math.min(this.nowS - SETTLED_S, this.sinceS ?? Infinity)) - startS];
  }

  cells(startS, colouring) {
    const { count } = this.rows;
    const isShare = colouring === "share";
    if (this.z?.length !== count * WINDOW_S) {
      this.z = new Float32Array(count * WINDOW_S);
      this.other = new Float32Array(count * WINDOW_S);
    }
    this.z.fill(NaN);
    const [quietFrom, quietTo] = this.quietFrom(startS);
    for (let row = 0; quietTo > quietFrom && row < count; row += 1) {
      this.z.fill(0, row * WINDOW_S + quietFrom, row * WINDOW_S + quietTo);
      this.other.fill(0, row * WINDOW_S + quietFrom, row * WINDOW_S + quietTo);
    }
    let most = 0;
    for (const column of this.columns.values()) {
      const place = column.atS - startS;
      if (place < 0 || place >= WINDOW_S || !column.samples) continue;
      const scales = !isShare || column.samples >= FEW_SAMPLES;
      for (let row = 0; row < count; row += 1) {
        const share = column.counts[row] / column.samples;
        const value = isShare ? share : column.counts[row];
        this.z[row * WINDOW_S + place] = value;
        this.other[row * WINDOW_S + place] = isShare ? column.counts[row] : share;
        if (scales && value > most) most = value;
      }
    }
    return { z: this.z, customdata: this.other, zmin: 0, zmax: most || 1 };
  }

  /** Of one quantile's two lines the strong one shows only what enough samples give. */
  line(trace, startS) {
    const place = ["p50", "p95", "p99"].indexOf(trace.name);
    const isStrong = !trace.mode.includes("markers");
    const line = new Float64Array(WINDOW_S).fill(NaN);
    for (const column of this.columns.values()) {
      const value = column.quantiles[place];
      if (value === null || (isStrong && column.samples < this.enough[QUANTILES[place]])) continue;
      line[column.atS - startS] = value;
    }
    return line;
  }

  layout(layout, edges, startS, endS) {
    const [low, high] = [edges[0] ?? 0.01, edges.at(-1) ?? 10];
    const ticks = TICKS_S.filter((value) => value >= low && value <= high);
    const yaxis = {
      ...layout.yaxis, range: [Math.log10(low), Math.log10(high)], tickvals: ticks, ticktext: ticks.map(this.formatSeconds),
    };
    return { ...layout, yaxis, xaxis: { ...layout.xaxis, range: [startS * 1000, endS * 1000], relative: this.ago } };
  }
}
