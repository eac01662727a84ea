// A tread for each stage: staircases of ratios as small multiples, and the same load in absolute figures.

import { clients, draw, el, fit, key, line, logScale, median, short, ticks, unit, words } from "compare/dom";

const FEW = 3; // machines that have wide charts, with the factor of each step
const WIDE = 300, SMALL = 190; // height of a chart

export function stairsPanel(panel, group) {
  const few = panel.multiples.length <= FEW;
  const every = panel.multiples.flatMap((one) => one.series.flatMap((series) => series.values));
  const range = [Math.min(...every.map((one) => one.min)) / 1.2, Math.max(...every.map((one) => one.max)) * 1.35];
  const look = { stages: panel.stages, range, height: few ? WIDE : SMALL, suffix: "×" };
  const behind = (panel.median ?? []).map((medians) => ({
    values: medians.map((value) => ({ median: value })),
    color: "var(--median)",
    width: 6,
  }));
  const cells = panel.multiples.map((one) => {
    const series = one.series.map((each, i, all) => {
      const most = i === all.length - 1;
      return { values: each.values, color: tint(most), drift: few && most ? (one.drift ?? 1) : null };
    });
    const chart = { ...look, series: [...behind, ...series] };
    const spoken = one.series.map((each) => `${clients(each.clients)}: ${median(each.values)}`).join("; ");
    const cell = el("div", {}, el("h4", {}, group.label(one.machine)), fit((width) => treads(width, chart)));
    return group.mark(one, "Throughput over the first stage", `${group.label(one.machine)}. ${spoken}`, cell);
  });
  const keys = panel.multiples[0].series.map((each, i, all) =>
    key("dash", clients(each.clients), tint(i === all.length - 1)),
  );
  return el(
    "div",
    {},
    el("div", { class: "keys" }, keys, behind.length > 0 && key("dash", "median of the class", "var(--median)")),
    el("div", { class: `multiples ${few ? "few" : "many"}`, "--least": few && "22rem" }, cells),
  );
}

const tint = (most) => (most ? "var(--many)" : "var(--few)");

export function absolutePanel(panel, group) {
  const cells = panel.charts.map((chart) => {
    const series = chart.series.map((each) => ({
      ...each,
      color: group.count === 1 ? null : group.color(each.machine),
      owner: (g) => {
        const spoken = `${group.label(each.machine)}: ${median(each.values)} ${chart.unit}`;
        return group.mark(each, chart.title, spoken, g);
      },
    }));
    const bounds = series.flatMap((each) => each.bound ?? []);
    const every = series.flatMap((each) => each.values.flatMap((value) => [value.min, value.max])).concat(bounds);
    const range = [Math.min(...every) / 1.3, Math.max(...every) * 1.3];
    const shown = { stages: panel.stages, range, height: SMALL, suffix: "", series };
    const title = el("h4", {}, `${chart.title} `, el("span", { class: "soft" }, `(${chart.unit})`));
    return el("div", {}, title, fit((width) => treads(width, shown)));
  });
  return el("div", { class: "multiples", "--least": "22rem" }, cells);
}

function treads(width, { stages, range, height, suffix, series }) {
  const [left, top, bottom] = [38 * unit(), 18 * unit(), (height - 24) * unit()];
  const y = logScale(...range, bottom, top);
  const step = (width - left) / stages.length;
  const svg = draw("svg", { width, height: height * unit() });
  for (const value of ticks(...range)) {
    const style = { class: "tick", "text-anchor": "end" };
    svg.append(line(left, y(value), width, y(value), { class: value === 1 && suffix ? "one" : "grid" }));
    svg.append(words(left - 5 * unit(), y(value) + 4 * unit(), `${value.toLocaleString("en")}${suffix}`, style));
  }
  stages.forEach((stage, i) => {
    const style = { class: "tick", "text-anchor": "middle" };
    svg.append(words(left + step * (i + 0.5), (height - 6) * unit(), stage, style));
  });
  for (const one of series) {
    const colors = stages.map((stage) => one.color ?? `var(--s${stage})`);
    const g = draw("g", {}, one.values.map((value, i) => tread(one, i, left + step * i, step, y, colors[i])));
    if (one.bound) g.append(line(left, y(one.bound), width, y(one.bound), { class: "predicted", stroke: one.color }));
    svg.append(one.owner ? one.owner(g) : g);
  }
  return svg;
}

// The tread of a stage, the riser to the next, a line from least to most, and the factor of a step that is no noise.
function tread({ values, width = 3, drift = null }, i, from, step, y, stroke) {
  const [value, next, middle] = [values[i], values[i + 1], from + step / 2];
  const level = y(value.median);
  const thin = { "stroke-width": 1.3 * unit(), stroke };
  const factor = i && drift ? value.median / values[i - 1].median : 0;
  return [
    line(from, level, from + step, level, { "stroke-width": width * unit(), stroke }),
    next && line(from + step, level, from + step, y(next.median), { ...thin, opacity: 0.6 }),
    value.max > value.min && line(middle, y(value.min), middle, y(value.max), thin),
    factor > Math.max(drift, 1.1) &&
      words(middle, y(value.max) - 6 * unit(), `${short(factor)}×`, { "text-anchor": "middle" }),
  ];
}
