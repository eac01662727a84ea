// Ratios: a row for each stage, a mark for each machine, all on one logarithmic axis.

import { draw, el, fit, logScale, percent, short, ticks, unit } from "compare/dom";

const LANE = 25; // of one machine, where each has its own
const STRIP = 44; // of a class, which shares one
const OWN_LANES = 3; // machines

export function rowsPanel(panel, group) {
  const values = panel.rows.flatMap((row) => row.values);
  const lines = panel.lines ?? [];
  const all = [
    1,
    ...values.flatMap((value) => [value.min, value.max, value.predicted?.value ?? 1]),
    ...lines.map((line) => line.value),
  ];
  const [low, high] = [Math.min(...all) / 1.15, Math.max(...all) * 1.15];
  const room = (width) => {
    const right = group.count <= OWN_LANES ? 70 * unit() : 12 * unit();
    return logScale(low, high, 6 * unit(), width - right);
  };
  const axis = (width) => drawAxis(width, room(width), ticks(low, high), lines, group);
  return el(
    "div",
    { class: "rows" },
    keys(panel, group),
    el("div", { class: "row axis" }, el("span"), fit(el("div"), axis)),
    panel.rows.map((row) =>
      el(
        "div",
        { class: "row", "data-stage": row.stage },
        el("div", {}, name(row), el("span", { class: "soft" }, describe(row))),
        fit(el("div"), (width) => drawRow(row, lines, width, room(width), ticks(low, high), group)),
      ),
    ),
  );
}

const name = (row) => el("strong", {}, el("span", { class: "number", "--of": `var(--s${row.stage})` }, row.stage), ` ${row.name}`);
const describe = (row) => (row.title === row.better ? row.title : `${row.better}: ${row.title}`);

function keys(panel, group) {
  const values = panel.rows.flatMap((row) => row.values);
  return el(
    "div",
    { class: "keys" },
    values.some((value) => value.predicted) && key("dash thin", "predicted by arithmetic", "var(--ink)"),
    values.some((value) => value.doubt) && el("span", {}, "? noise: the machine drifted by more, or its repeats disagree"),
    group.isClass && panel.rows.some((row) => row.median) && key("dash", "median of the class", "var(--ink)"),
  );
}

const key = (kind, text, color) => el("span", {}, el("i", { class: kind, "--of": color }), text);

function drawAxis(width, x, marks, lines, group) {
  const svg = draw("svg", { width, height: (18 + 15 * lines.length) * unit(), "aria-hidden": "true" });
  lines.forEach((line, i) => {
    const at = x(line.value);
    const anchor = at > width / 2 ? "end" : "start";
    const text = `${short(line.value)}× ${line.why}`;
    svg.append(draw("text", { x: at, y: (11 + 15 * i) * unit(), "text-anchor": anchor, "paint-order": "stroke", paint: group.color(line.machine) }, text));
    svg.lastChild.style.stroke = "none";
  });
  for (const value of spaced(marks, x, 30 * unit())) {
    svg.append(draw("text", { class: "tick", x: x(value), y: (13 + 15 * lines.length) * unit(), "text-anchor": "middle" }, `${value}×`));
  }
  return svg;
}

// Those ticks whose labels do not touch; 1 is always among them.
function spaced(marks, x, least) {
  const kept = marks.includes(1) ? [1] : [];
  for (const value of marks) if (kept.every((other) => Math.abs(x(other) - x(value)) >= least)) kept.push(value);
  return kept;
}

function drawRow(row, lines, width, x, marks, group) {
  const lanes = group.count <= OWN_LANES;
  const height = (lanes ? LANE * row.values.length + 4 : STRIP) * unit();
  const svg = draw("svg", { width, height, role: "group", "aria-label": `${row.stage} ${row.name}` });
  for (const value of marks) {
    svg.append(draw("line", { class: value === 1 ? "one" : "grid", x1: x(value), x2: x(value), y1: 0, y2: height }));
  }
  for (const line of lines) {
    const [at, color] = [x(line.value), group.color(line.machine)];
    svg.append(draw("line", { class: "predicted", x1: at, x2: at, y1: -6 * unit(), y2: height + 6 * unit(), paint: color }));
  }
  if (row.median) {
    const at = x(row.median);
    svg.append(draw("line", { x1: at, x2: at, y1: 2, y2: height - 2, "stroke-width": 2.5 * unit(), paint: "var(--ink)" }));
  }
  row.values.forEach((value, i) => {
    const spread = row.values.length > 1 ? i / (row.values.length - 1) : 0.5;
    const y = lanes ? (LANE * (i + 0.5) + 2) * unit() : (7 + spread * (STRIP - 14)) * unit();
    svg.append(mark(row, value, x, y, lanes, group));
  });
  return svg;
}

// One machine in one row: its ratio, from least to most, what was predicted, and the figures behind it on a click.
function mark(row, value, x, y, lanes, group) {
  const color = group.count === 1 ? `var(--s${row.stage})` : group.color(value.machine);
  const half = (lanes ? 8 : 4) * unit();
  const spoken = `${group.label(value.machine)}: ${short(value.median)} times, ${short(value.min)} to ${short(value.max)}`;
  const g = group.mark(value, `${row.stage} ${row.name}`, spoken, draw("g"));
  if (lanes) {
    const [from, to] = [Math.min(x(1), x(value.median)), Math.max(x(1), x(value.median))];
    g.append(draw("rect", { x: from, y: y - half, width: Math.max(1, to - from), height: 2 * half, opacity: value.doubt ? 0.3 : 0.92, paint: color }));
    const whisker = { x1: x(value.min), x2: x(value.max), y1: y, y2: y, "stroke-width": 1.6 * unit() };
    g.append(draw("line", { ...whisker, paint: "var(--ink)" }));
    if (value.predicted) {
      const at = x(value.predicted.value);
      g.append(draw("line", { class: "predicted", x1: at, x2: at, y1: y - half - 3 * unit(), y2: y + half + 3 * unit() }));
    }
    const end = Math.max(x(value.max), to, value.predicted ? x(value.predicted.value) : 0) + 6 * unit();
    g.append(draw("text", { x: end, y: y + 4.5 * unit() }, `${short(value.median)}×${value.doubt ? " ?" : ""}`));
  } else {
    g.append(draw("line", { x1: x(value.min), x2: x(value.max), y1: y, y2: y, "stroke-width": unit(), opacity: 0.6, paint: color }));
    const dot = draw("circle", { cx: x(value.median), cy: y, r: half, "stroke-width": 1.5 * unit(), paint: color });
    if (value.doubt) dot.style.fill = "var(--paper)";
    g.append(dot);
  }
  return g;
}

// What a mark's dialog says, as pairs.
export function gainFacts(value, unitName) {
  const each = (value.sides ?? []).map((side) => [side.name, `${short(side.median)} ${unitName} (${short(side.min)} to ${short(side.max)})`]);
  return [
    ["ratio", `${short(value.median)} (${short(value.min)} to ${short(value.max)})`],
    ...each,
    ...(value.predicted ? [["predicted", `${short(value.predicted.value)}: ${value.predicted.why}`]] : []),
    ["drift", value.drift ? percent(value.drift) : "not recorded"],
    ...(value.doubt ? [["noise", value.doubt]] : []),
  ];
}
