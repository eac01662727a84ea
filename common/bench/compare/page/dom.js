// Elements, drawings and numbers. Text only ever becomes text: nothing on the page takes HTML.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

// The page's policy forbids style attributes: colours and custom properties are set as properties.
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (isNothing(value)) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name === "stroke" || name === "fill") element.style[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => !isNothing(child)));
  return element;
}

const isNothing = (value) => value === null || value === undefined || value === false;

export const line = (x1, y1, x2, y2, attributes) => draw("line", { x1, y1, x2, y2, ...attributes });
export const words = (x, y, text, attributes) => draw("text", { x, y, ...attributes }, text);

// CSS pixels of a unit: drawings grow with the page's type, for a projector.
export const unit = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 15;

// Three digits, or all before the decimal point if there are more.
export function short(value) {
  if (value >= 100) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

export const percent = (factor) => `${Math.round(100 * (factor - 1))}%`;
export const clients = (count) => `${count} client${count > 1 ? "s" : ""}`;
export const median = (values) => values.map((value) => short(value.median)).join(", ");
export const key = (kind, text, color) => el("span", {}, el("i", { class: kind, "--of": color }), text);

// Positions of values on a logarithmic axis from `low` to `high`, over `from` to `to` pixels.
export function logScale(low, high, from, to) {
  const per = (to - from) / Math.log(high / low);
  return (value) => from + Math.log(value / low) * per;
}

const TICKS = [[5, [1, 1.5, 2, 3, 4, 5, 7]], [60, [1, 2, 5]], [300, [1, 3]], [Infinity, [1]]];

// 1, 2, 5, 10 ... within a range: the wider it is, the fewer of them in each decade.
export function ticks(low, high) {
  const [, steps] = TICKS.find(([most]) => high / low < most);
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of steps) {
      const value = Number((step * 10 ** power).toPrecision(2));
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found;
}

// Shows `render(width)` in an element, for its inner width now and whenever that changes.
export function fit(render) {
  const element = el("div");
  let last = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width > 0 && width !== last) {
      last = width;
      element.replaceChildren(render(width));
    }
  }).observe(element);
  return element;
}
