// Elements from data. Text only ever becomes text: no function here, or anywhere on the page, takes HTML.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in ATTRIBUTES_THAT_ARE_PROPERTIES) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const ATTRIBUTES_THAT_ARE_PROPERTIES = { value: 1, checked: 1, disabled: 1, hidden: 1 };

export const FONT = "system-ui, sans-serif"; // of all drawings

// Changes text only where it differs: a screen reader and a selection are left in peace.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// CSS pixels of one unit of a drawing: drawings grow with the page's type, for a projector.
let unitSize = null; // until it is asked for: to ask the browser makes it compute styles
export const unit = () => (unitSize ??= parseFloat(getComputedStyle(document.documentElement).fontSize) / 14);
export function forgetUnit() {
  unitSize = null;
}

// The size of an element's inside, in units.
export function room(element) {
  const box = element.getBoundingClientRect();
  return [Math.floor(box.width / unit()), Math.floor(box.height / unit())];
}

// Where a pointer is on a drawing, in units.
export const point = (event) => [event.offsetX / unit(), event.offsetY / unit()];

// A canvas of this many units, as sharp as the screen; returns its context, cleared.
export function surface(canvas, width, height) {
  const scale = unit() * (window.devicePixelRatio || 1);
  const [columns, rows] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== columns || canvas.height !== rows) {
    canvas.width = columns;
    canvas.height = rows;
    canvas.style.width = `${width * unit()}px`;
    canvas.style.height = `${height * unit()}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
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
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}
