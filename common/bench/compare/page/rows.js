// Ratios: a row for each stage, a mark for each machine, all on one logarithmic axis.

import { draw, el, fit, key, line, logScale, percent, short, ticks, unit, words } from "compare/dom";

const OWN_LANES = 3; // machines: more of them share the row's height, as dots
const LANE = 25, STRIP = 44; // height of a row, for each machine and for many
const BESIDE = "(min-width: 721px)"; // names stand beside their rows, in style.css too
const LABEL = 74; // width that a ratio at the end of its bar needs

export function rowsPanel(panel, group) {
  const values = panel.rows.flatMap((row) => row.values);
  const lines = panel.lines ?? [];
  const predicted = values.filter((value) => value.predicted).map((value) => value.predicted.value);
  const all = [1, ...values.flatMap((value) => [value.min, value.max]), ...predicted, ...lines.map((one) => one.value)];
  const range = [Math.min(...all) / 1.15, Math.max(...all) * 1.15];
  const lanes = group.count <= OWN_LANES;
  const scale = (width) => logScale(...range, 6 * unit(), width - (lanes ? LABEL : 12) * unit());
  const chart = { lanes, lines, marks: ticks(...range), group };
  const ends = (i) => ({ first: i === 0, last: i === panel.rows.length - 1 });
  const axis = fit((width) => drawAxis(chart, width, scale(width)));
  const keys = [
    predicted.length > 0 && lanes && key("dash thin", "predicted by arithmetic", "var(--ink)"),
    values.some((value) => value.doubt) && el("span", {}, "? noise: the machine drifted by more, or repeats disagree"),
    panel.rows.some((row) => row.median) && key("dash", "median of the class", "var(--ink)"),
  ];
  return el(
    "div",
    {},
    el("div", { class: "keys" }, keys),
    el("div", { class: "row axis" }, el("span"), axis),
    panel.rows.map((row, i) =>
      el(
        "div",
        { class: "row", "data-stage": row.stage },
        el("div", {}, name(row), el("span", { class: "soft" }, `${row.title} (${row.unit})`)),
        fit((width) => drawRow(row, { ...chart, ...ends(i) }, width, scale(width))),
      ),
    ),
  );
}

function name(row) {
  const number = el("span", { class: "number", "--of": `var(--s${row.stage})` }, row.stage);
  return el("strong", {}, number, ` ${row.name}`);
}

function drawAxis({ lines, marks, group }, width, x) {
  const below = 15 * lines.length;
  const svg = draw("svg", { width, height: (18 + below) * unit(), "aria-hidden": "true" });
  lines.forEach((one, i) => {
    const anchor = x(one.value) > width / 2 ? "end" : "start";
    const style = { "text-anchor": anchor, fill: group.color(one.machine) };
    svg.append(words(x(one.value), (11 + 15 * i) * unit(), `${short(one.value)}× ${one.why}`, style));
  });
  for (const value of spaced(marks, x, 34 * unit())) {
    const style = { class: "tick", "text-anchor": "middle" };
    svg.append(words(x(value), (13 + below) * unit(), `${value}×`, style));
  }
  return svg;
}

// Those ticks whose labels do not touch; 1 is always among them.
function spaced(marks, x, least) {
  const kept = marks.filter((value) => value === 1);
  for (const value of marks) if (kept.every((other) => Math.abs(x(other) - x(value)) >= least)) kept.push(value);
  return kept;
}

function drawRow(row, chart, width, x) {
  const { lanes, lines, marks, group, first, last } = chart;
  const height = (lanes ? LANE * row.values.length + 4 : STRIP) * unit();
  const svg = draw("svg", { width, height, role: "group", "aria-label": `${row.stage} ${row.name}` });
  const beyond = matchMedia(BESIDE).matches ? 30 * unit() : 0; // so that the lines of neighbouring rows meet
  const [above, below] = [first ? 0 : -beyond, height + (last ? 0 : beyond)];
  const upright = (value, attributes) => svg.append(line(x(value), above, x(value), below, attributes));
  for (const value of marks) upright(value, { class: value === 1 ? "one" : "grid" });
  for (const one of lines) upright(one.value, { class: "predicted", stroke: group.color(one.machine) });
  if (row.median) {
    svg.append(line(x(row.median), 0, x(row.median), height, { class: "median", "stroke-width": 2.5 * unit() }));
  }
  row.values.forEach((value, i) => {
    const share = row.values.length > 1 ? i / (row.values.length - 1) : 0.5;
    const y = (lanes ? LANE * (i + 0.5) + 2 : 7 + share * (STRIP - 14)) * unit();
    const spread = `${short(value.median)} times, ${short(value.min)} to ${short(value.max)}`;
    const g = draw("g", {}, (lanes ? bar : dot)(row, value, x, y, group));
    svg.append(group.mark(value, `${row.stage} ${row.name}`, `${group.label(value.machine)}: ${spread}`, g));
  });
  return svg;
}

// From 1 to the ratio, with a line from least to most, the prediction, and the ratio in digits.
function bar(row, value, x, y, group) {
  const fill = group.count === 1 ? `var(--s${row.stage})` : group.color(value.machine);
  const [from, to] = [Math.min(x(1), x(value.median)), Math.max(x(1), x(value.median))];
  const half = 8 * unit();
  const opacity = value.doubt ? 0.3 : 0.92;
  const parts = [
    draw("rect", { x: from, y: y - half, width: Math.max(1, to - from), height: 2 * half, opacity, fill }),
    line(x(value.min), y, x(value.max), y, { class: "spread", "stroke-width": 1.6 * unit() }),
  ];
  let end = Math.max(x(value.max), to);
  if (value.predicted) {
    const at = x(value.predicted.value);
    parts.push(line(at, y - half - 3 * unit(), at, y + half + 3 * unit(), { class: "predicted" }));
    if (Math.abs(at - end) < 50 * unit()) end = Math.max(end, at); // the digits stand beyond a line close by
  }
  return [...parts, words(end + 6 * unit(), y + 4.5 * unit(), `${short(value.median)}×${value.doubt ? " ?" : ""}`)];
}

function dot(row, value, x, y, group) {
  const color = group.color(value.machine);
  const width = { "stroke-width": 1.5 * unit(), stroke: color };
  const fill = value.doubt ? "var(--paper)" : color;
  return [
    line(x(value.min), y, x(value.max), y, { ...width, opacity: 0.3 }),
    draw("circle", { cx: x(value.median), cy: y, r: 4 * unit(), fill, ...width }),
  ];
}

// What the dialog of a ratio says, as pairs.
export function gainFacts(value, unitOf) {
  const figures = (one) => `${short(one.median)} (${short(one.min)} to ${short(one.max)})`;
  return [
    ["ratio", figures(value)],
    ...value.sides.map((side) => [side.name, `${figures(side)} ${unitOf}`]),
    ...(value.predicted ? [["predicted", `${short(value.predicted.value)}: ${value.predicted.why}`]] : []),
    ["drift", value.drift ? percent(value.drift) : "not recorded"],
    ...(value.doubt ? [["noise", value.doubt]] : []),
  ];
}
