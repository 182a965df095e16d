// Binary frames of a live heatmap, as console/live/heatmap_frames.py writes them.

const VERSION = 1;
const HEAD_BYTES = 64;
const KINDS = { 1: "whole", 2: "changes", 3: "beat" };
const STATES = ["live", "polled", "behind", "stale"];
const COLUMN_HEAD_BYTES = 24;

/** Times in seconds, unknown ones null. Throws RangeError for what is no frame of this version. */
export function decodeFrame(buffer) {
  const view = new DataView(buffer);
  const kind = KINDS[view.getUint8(1)];
  if (view.getUint8(0) !== VERSION || !kind) throw new RangeError("not a frame of this version");
  const rows = { count: view.getUint16(4, true), first: view.getUint16(6, true), perRow: view.getUint16(8, true) };
  return {
    kind,
    state: STATES[view.getUint8(2)] ?? "stale",
    rows,
    seq: view.getUint32(12, true),
    from: view.getUint32(16, true),
    columns: readColumns(buffer, view, view.getUint32(20, true), rows.count),
    samples: view.getUint32(24, true),
    nowS: view.getFloat64(28, true),
    sinceS: known(view.getFloat64(36, true)),
    quantiles: readQuantiles(view, 44),
  };
}

function readColumns(buffer, view, count, rows) {
  const size = COLUMN_HEAD_BYTES + 4 * rows;
  const columns = [];
  for (let at = HEAD_BYTES; columns.length < count; at += size) {
    columns.push({
      atS: view.getFloat64(at, true),
      samples: view.getUint32(at + 8, true),
      quantiles: readQuantiles(view, at + 12),
      // A copy: a view would keep the whole frame for as long as its column is shown.
      counts: new Uint32Array(buffer, at + COLUMN_HEAD_BYTES, rows).slice(),
    });
  }
  return columns;
}

function readQuantiles(view, at) {
  return [known(view.getFloat32(at, true)), known(view.getFloat32(at + 4, true)), known(view.getFloat32(at + 8, true))];
}

function known(value) {
  return Number.isNaN(value) ? null : value;
}
