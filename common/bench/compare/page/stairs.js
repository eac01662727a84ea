// One tread for each stage: staircases of ratios as small multiples, and the same load in absolute figures.

import { draw, el, fit, logScale, short, ticks, unit } from "compare/dom";

const FEW = 3; // machines that have wide charts, with the factor of each step
const WIDE = 300, SMALL = 190; // height of a chart

export function stairsPanel(panel, group) {
  const few = panel.multiples.length <= FEW;
  const every = panel.multiples.flatMap((one) => one.series.flatMap((series) => series.values));
  const range = [Math.min(1, ...every.map((value) => value.min)) / 1.2, Math.max(...every.map((value) => value.max)) * 1.35];
  const cells = panel.multiples.map((one) => {
    const series = one.series.map((each, i) => ({
      values: each.values,
      color: i === one.series.length - 1 ? "var(--many)" : "var(--few)",
      drift: few && i === one.series.length - 1 ? (one.drift ?? 1) : null,
    }));
    const behind = (panel.median ?? []).map((medians) => ({ values: medians.map((median) => ({ median })), color: "var(--median)", thick: true }));
    const chart = { stages: panel.stages, series: [...behind, ...series], range, height: few ? WIDE : SMALL, suffix: "×" };
    const spoken = one.series.map((each) => `${clients(each)}: ${each.values.map((value) => short(value.median)).join(", ")}`);
    const cell = el("div", {}, el("h4", {}, group.label(one.machine)), fit(el("div"), (width) => treads(width, chart)));
    return group.mark(one, "Throughput over stage 01", `${group.label(one.machine)}. ${spoken.join(". ")}`, cell);
  });
  return el(
    "div",
    {},
    el("div", { class: "keys" }, panel.multiples[0].series.map((each, i, all) => key(clients(each), i === all.length - 1 ? "var(--many)" : "var(--few)"))),
    el("div", { class: "multiples", "--least": few ? "22rem" : "13rem" }, cells),
  );
}

export function absolutePanel(panel, group) {
  const cells = panel.charts.map((chart) => {
    const series = chart.series.map((each) => ({ ...each, color: group.count === 1 ? null : group.color(each.machine), owner: each }));
    const every = series.flatMap((each) => each.values.flatMap((value) => [value.min, value.max]).concat(each.bound ?? []));
    const shown = { stages: panel.stages, series, range: [Math.min(...every) / 1.3, Math.max(...every) * 1.3], height: SMALL, suffix: "" };
    const title = el("h4", {}, `${chart.title} `, el("span", { class: "soft" }, `(${chart.unit})`));
    return el("div", { class: "absolute" }, title, fit(el("div"), (width) => treads(width, shown, (each) => absoluteMark(chart, each, group))));
  });
  return el("div", { class: "multiples", "--least": "22rem" }, cells);
}

function absoluteMark(chart, series, group) {
  const spoken = `${group.label(series.machine)}: ${series.values.map((value) => short(value.median)).join(", ")} ${chart.unit}`;
  return group.mark(series, chart.title, spoken, draw("g"));
}

const clients = (series) => `${series.clients} client${series.clients > 1 ? "s" : ""}`;
const key = (text, color) => el("span", {}, el("i", { class: "dash", "--of": color }), text);

// A chart with a tread for each stage. A series without a colour has those of its stages.
function treads(width, chart, owner = () => draw("g")) {
  const [left, top, bottom] = [38 * unit(), 16 * unit(), 24 * unit()];
  const height = chart.height * unit();
  const [low, high] = chart.range;
  const y = logScale(low, high, height - bottom, top);
  const step = (width - left) / chart.stages.length;
  const svg = draw("svg", { width, height });
  for (const value of ticks(low, high)) {
    svg.append(draw("line", { class: value === 1 && chart.suffix ? "one" : "grid", x1: left, x2: width, y1: y(value), y2: y(value) }));
    svg.append(draw("text", { class: "tick", x: left - 5 * unit(), y: y(value) + 4 * unit(), "text-anchor": "end" }, `${value.toLocaleString("en")}${chart.suffix}`));
  }
  chart.stages.forEach((stage, i) => {
    svg.append(draw("text", { class: "tick", x: left + step * (i + 0.5), y: height - 6 * unit(), "text-anchor": "middle" }, stage));
  });
  for (const series of chart.series) {
    const g = owner(series.owner ?? series);
    if (series.bound) {
      g.append(draw("line", { class: "predicted", x1: left, x2: width, y1: y(series.bound), y2: y(series.bound), paint: series.color ?? "var(--ink)" }));
    }
    series.values.forEach((value, i) => {
      const color = series.color ?? `var(--s${chart.stages[i]})`;
      const [from, to, middle] = [left + step * i, left + step * (i + 1), left + step * (i + 0.5)];
      const next = series.values[i + 1];
      const tread = { x1: from, x2: to, y1: y(value.median), y2: y(value.median), "stroke-width": (series.thick ? 5 : 3) * unit() };
      g.append(draw("line", { ...tread, paint: color }));
      if (next) g.append(draw("line", { x1: to, x2: to, y1: y(value.median), y2: y(next.median), "stroke-width": (series.thick ? 5 : 1.3) * unit(), opacity: 0.6, paint: color }));
      if (value.max > value.min) g.append(draw("line", { x1: middle, x2: middle, y1: y(value.min), y2: y(value.max), "stroke-width": 1.3 * unit(), paint: color }));
      const factor = i ? value.median / series.values[i - 1].median : 1;
      if (series.drift && factor > Math.max(series.drift, 1.1)) {
        g.append(draw("text", { x: middle, y: y(Math.max(value.max, value.median)) - 6 * unit(), "text-anchor": "middle" }, `${short(factor)}×`));
      }
    });
    svg.append(g);
  }
  return svg;
}
