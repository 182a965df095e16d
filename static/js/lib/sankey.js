// The composition of a whole as a Sankey diagram in SVG: one source, its parts in order, those over 20 % marked.

const SVG = "http://www.w3.org/2000/svg";
const NODE_PX = 10;
const SMALLEST_PX = 1.5;
const LINE_PX = 19;
const TOP_PX = 8;
const WIDE_PX = 560;

function draw(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text) element.textContent = text;
  return element;
}

/** Where the labels go: in order, none over another, not beyond `last`, as near to their parts as that allows. */
export function spread(wished, step, last) {
  const places = [];
  for (const place of wished) places.push(Math.max(place, (places.at(-1) ?? -Infinity) + step));
  let limit = last;
  for (let place = places.length - 1; place >= 0; place -= 1) {
    places[place] = Math.min(places[place], limit);
    limit = places[place] - step;
  }
  return places;
}

/**
 * `parts`: [{name, share, figure, short, note, clock, isMarked}] with shares of the whole, 0 and below: no flow, but named.
 * `whole`: [name, figure]. Returns the SVG; its title tells everything to who cannot see it.
 */
export function drawSankey({ width, whole, parts, title, markedWord }) {
  const isWide = width >= WIDE_PX;
  const labelsPx = isWide ? 330 : 190;
  const flows = parts.filter((part) => part.share > 0);
  const heightPx = Math.max(parts.length * LINE_PX * 1.15, 190);
  const [left, right] = [isWide ? 120 : 66, width - labelsPx];
  const sum = flows.reduce((total, part) => total + part.share, 0) || 1;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${heightPx + 2 * TOP_PX}`, height: heightPx + 2 * TOP_PX, role: "img" });
  svg.append(draw("title", {}, title));
  const gap = flows.length > 1 ? Math.min(10, (heightPx * 0.25) / (flows.length - 1)) : 0;
  const usable = heightPx - gap * Math.max(0, flows.length - 1);
  const tall = (part) => Math.max(SMALLEST_PX, (part.share / sum) * usable);
  let from = TOP_PX + (heightPx - usable) / 2;
  let to = TOP_PX;
  const marks = [];
  svg.append(draw("rect", { class: "whole", x: left - NODE_PX, y: from, width: NODE_PX, height: usable, rx: 2 }));
  for (const part of parts) {
    const size = part.share > 0 ? tall(part) : 0;
    if (size) {
      const clock = { "data-clock": part.clock };
      svg.append(draw("path", { class: "flow", d: ribbon(left, from, right, to, size), ...clock }));
      svg.append(draw("rect", { class: "node", x: right, y: to, width: NODE_PX, height: size, rx: 2, ...clock }));
    }
    marks.push(to + size / 2);
    from += size;
    to += size ? size + gap : 0;
  }
  label(svg, isWide ? left - NODE_PX - 10 : left - NODE_PX - 6, TOP_PX + heightPx / 2, whole, "end");
  const places = spread(marks, LINE_PX, TOP_PX + heightPx - LINE_PX / 2);
  parts.forEach((part, place) => {
    const [x, y] = [right + NODE_PX, places[place]];
    svg.append(draw("path", { class: "leader", d: `M${x + 1} ${marks[place]}L${x + 9} ${y}` }));
    describePart(svg, x + 13, y, part, { isWide, markedWord });
  });
  return svg;
}

function ribbon(x0, y0, x1, y1, size) {
  const middle = (x0 + x1) / 2;
  return `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}V${y1 + size}`
    + `C${middle} ${y1 + size} ${middle} ${y0 + size} ${x0} ${y0 + size}Z`;
}

function label(svg, x, y, [name, figure], anchor) {
  svg.append(draw("text", { x, y: y - 3, "text-anchor": anchor }, name));
  svg.append(draw("text", { x, y: y + 13, "text-anchor": anchor, class: "minor" }, figure));
}

function describePart(svg, x, y, part, { isWide, markedWord }) {
  const text = draw("text", { x, y: y + 4 });
  text.append(draw("tspan", { class: part.isMarked ? "marked" : "" }, `${part.name} `));
  text.append(draw("tspan", { class: "minor" }, isWide ? part.figure : part.short));
  if (isWide && part.isMarked) text.append(draw("tspan", { class: "marked minor" }, `  ${markedWord}`));
  text.append(draw("title", {}, part.note));
  svg.append(text);
}
