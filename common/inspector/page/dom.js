// Elements from data, and words and sizes for drawings. Text only ever becomes text: nothing on the page takes HTML.

const PROPERTIES = ["value", "checked", "hidden"]; // Set as properties: a user's change does not reach the attribute.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.includes(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// What a <template> of index.html holds.
export const template = (id) => document.getElementById(id).content.cloneNode(true).firstElementChild;

export const button = (words, onclick, attributes = {}) =>
  el("button", { type: "button", onclick, ...attributes }, words);

// Changes text only where it differs, so that screen readers and selections are not disturbed.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// CSS pixels of one unit of a drawing: drawings grow with the page's type, for a projector.
let unitSize = null; // null until it is needed: asking the browser makes it compute styles
export const unit = () => (unitSize ??= parseFloat(getComputedStyle(document.documentElement).fontSize) / 14);
export function forgetUnit() {
  unitSize = null;
}

// The size of an element's inside, in units.
export function room(element) {
  const { width, height } = element.getBoundingClientRect();
  return [Math.floor(width / unit()), Math.floor(height / unit())];
}

// Where a pointer is on a drawing, in units.
export const point = (event) => [event.offsetX / unit(), event.offsetY / unit()];

// A canvas of this many units, as sharp as the screen; returns its context, cleared.
export function surface(canvas, width, height) {
  const scale = unit() * (window.devicePixelRatio || 1);
  const [columns, rows] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== columns || canvas.height !== rows) {
    Object.assign(canvas, { width: columns, height: rows });
    Object.assign(canvas.style, { width: `${width * unit()}px`, height: `${height * unit()}px` });
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// Words on a drawing. Returns their width.
export function write(context, words, x, y, colour, { size = 12, bold = false, align = "left" } = {}) {
  context.font = `${bold ? "600 " : ""}${size}px system-ui, sans-serif`;
  context.fillStyle = colour;
  context.textAlign = align;
  context.fillText(words, x, y);
  return context.measureText(words).width;
}

// A rectangle in one colour, or in a texture.
export function block(context, fill, x, y, width, height) {
  context.fillStyle = fill;
  context.fillRect(x, y, width, height);
}

// A thin frame just inside a rectangle.
export function frame(context, colour, x, y, width, height, dash = []) {
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.setLineDash(dash);
  context.strokeRect(x + 0.5, y + 0.5, Math.max(1, width - 1), Math.max(1, height - 1));
  context.setLineDash([]);
}

// The largest squares, `least` to `most` wide, with which this many fit; where they do not, the first ones are shown.
export function squares(width, height, number, least, most) {
  let size = Math.max(least, Math.min(most, Math.floor(Math.sqrt((width * height) / number)) + 1));
  while (size > least && Math.ceil(number / Math.floor(width / size)) * size > height) size -= 1;
  const columns = Math.max(1, Math.floor(width / size));
  return { size, columns, shown: Math.min(number, columns * Math.max(1, Math.floor(height / size))) };
}

export const count = (number) => Math.round(number).toLocaleString("en");

export function milliseconds(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value >= 1000) return `${(value / 1000).toFixed(value < 10000 ? 2 : 1)} s`;
  return value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`;
}

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}
