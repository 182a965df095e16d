// The scale of a heatmap's colours beside the plane. plotly's own writes styles that the content security policy forbids.

import { formatSeconds } from "./format.js";

const GAP_PX = 14;
const WIDTH_PX = 8;
const MARKS = 5;

/** `trace`: a figure's heatmap; its colorbar says how the values are meant. */
export function paintScale(context, trace, frame, palette) {
  const { top, height } = frame;
  const left = frame.left + frame.width + GAP_PX;
  const ramp = context.createLinearGradient(0, top + height, 0, top);
  for (const [place, colour] of trace.colorscale) ramp.addColorStop(Math.min(1, Math.max(0, place)), palette.colour(colour));
  context.fillStyle = ramp;
  context.fillRect(left, top, WIDTH_PX, height);
  context.fillStyle = palette.colour("var(--text-2)");
  context.font = `11px ${palette.colour("var(--font)")}`;
  context.textBaseline = "middle";
  for (let mark = 0; mark < MARKS; mark += 1) {
    const share = mark / (MARKS - 1);
    const text = markOf(trace.zmin + share * (trace.zmax - trace.zmin), trace);
    context.fillText(text, left + WIDTH_PX + 5, Math.min(top + height - 5, Math.max(top + 5, top + height * (1 - share))));
  }
}

function markOf(value, { colorbar, zmax }) {
  if (value === 0) return "0";
  const format = colorbar?.tickformat ?? "";
  if (colorbar?.ticksuffix) return formatSeconds(value);
  if (!format.includes("%")) return Number.isInteger(value) || zmax > 8 ? Math.round(value).toLocaleString("en") : value.toFixed(1);
  const sign = format.startsWith("+") && value > 0 ? "+" : value < 0 ? "−" : "";
  return `${sign}${(100 * Math.abs(value)).toFixed(zmax < 0.1 ? 1 : 0)} %`;
}
