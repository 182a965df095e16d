// Times and numbers for people, as templatetags/units.py words them. Ages count on the server's clock.

let clockOffsetMs = 0;

export function setServerTime(iso) {
  const server = Date.parse(iso);
  if (!Number.isNaN(server)) clockOffsetMs = server - Date.now();
}

export function serverNow() {
  return Date.now() + clockOffsetMs;
}

const STEPS = [
  [100, 1, "s"],
  [100 * 60, 60, "min"],
  [49 * 3600, 3600, "h"],
  [Infinity, 86400, "d"],
];

/** `form`: "ago" → "12 s ago", "for" → "12 s". */
export function formatAge(iso, form = "ago") {
  const at = Date.parse(iso);
  if (Number.isNaN(at)) return "—";
  const seconds = Math.floor((serverNow() - at) / 1000);
  if (seconds < 2) return form === "ago" ? "now" : "1 s";
  const [, size, unit] = STEPS.find(([edge]) => seconds < edge);
  const words = `${Math.floor(seconds / size)} ${unit}`;
  return form === "ago" ? `${words} ago` : words;
}

export function formatInstant(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? "" : `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

export function formatMs(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "—";
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(2)} s`;
}

export function formatRate(perSecond) {
  if (perSecond === null || perSecond === undefined || !Number.isFinite(perSecond)) return "—";
  return `${perSecond.toFixed(perSecond < 10 ? 1 : 0)} tok/s`;
}

/** Three digits, in the unit that fits. */
export function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "—";
  if (seconds < 1) return `${digits(seconds * 1000)} ms`;
  if (seconds < 60) return `${digits(seconds)} s`;
  return seconds < 3600 ? `${digits(seconds / 60)} min` : `${digits(seconds / 3600)} h`;
}

function digits(value) {
  return String(Number(value.toPrecision(3)));
}

/** Time of day in UTC of milliseconds since the epoch. */
export function formatClock(ms) {
  return new Date(ms).toISOString().slice(11, 19);
}
