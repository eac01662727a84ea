// The page: groups of results that may share an axis, and in each the same panels, ratios first.

import { showDetails } from "compare/details";
import { draw, el } from "compare/dom";
import { gainFacts, rowsPanel } from "compare/rows";
import { absolutePanel, stairsPanel } from "compare/stairs";

const COLORS = 8;
const KINDS = { gains: rowsPanel, stairs: stairsPanel, machines: rowsPanel, absolute: absolutePanel };
const data = JSON.parse(document.getElementById("boot").textContent);

// What panels need to know about a group; and the marks of its machines, which are followed and singled out.
class Group {
  constructor(group) {
    this.group = group;
    this.count = group.machines.length;
    this.marks = group.machines.map(() => []);
    this.chosen = null;
    this.chips = group.machines.map((machine, i) => this.chip(machine, i));
  }

  label = (machine) => this.group.machines[machine].label;

  // Of many machines only the odd ones have colours.
  color(machine) {
    const odd = this.group.odd.findIndex((one) => one.machine === machine);
    const number = this.count <= COLORS ? machine : odd;
    return number >= 0 && number < COLORS ? `var(--m${number})` : "var(--crowd)";
  }

  // Makes an element the mark of value.machine: on a click it shows the figures behind it.
  mark(value, title, spoken, element) {
    const entry = this.group.entries[value.machine][value.entry];
    const noise = value.doubt ? [["noise", value.doubt]] : [];
    const facts = value.sides ? gainFacts(value, entry.json.unit) : [["figures", spoken], ...noise];
    const heading = `${title}: ${this.label(value.machine)}`;
    const open = () => showDetails(heading, this.group.machines[value.machine], facts, entry, value.entry);
    const attributes = { class: "mark", role: "button", tabindex: "0", "aria-label": spoken };
    for (const [name, text] of Object.entries(attributes)) element.setAttribute(name, text);
    element.addEventListener("click", open);
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault(); // or the same key closes the dialog, whose button has the focus by then
      open();
    });
    if (element instanceof SVGElement) element.append(draw("title", {}, spoken));
    this.marks[value.machine] = [...this.marks[value.machine].filter((other) => other.isConnected), element];
    this.dim(element, value.machine);
    return element;
  }

  dim(element, machine) {
    element.classList.toggle("dim", this.chosen !== null && this.chosen !== machine);
  }

  choose(machine) {
    this.chosen = this.chosen === machine ? null : machine;
    this.chips.forEach((chip, i) => chip.setAttribute("aria-pressed", String(this.chosen === i)));
    this.marks.forEach((marks, i) => marks.forEach((element) => this.dim(element, i)));
  }

  chip(machine, i) {
    const attributes = { class: "chip", "--of": this.color(i), "aria-pressed": "false", onclick: () => this.choose(i) };
    const here = machine.here && el("span", { class: "soft" }, "this machine");
    return el("button", attributes, el("i", { class: "swatch" }), machine.label, here);
  }

  element() {
    const { title, panels, is_class: isClass } = this.group;
    return el(
      "section",
      { class: "group" },
      el("h2", {}, title),
      this.count > 1 && el("div", { class: "chips" }, this.chips),
      isClass && oddOnes(this),
      panels.map((panel) => figure(panel, this)),
      machinesList(this),
    );
  }
}

function figure(panel, group) {
  const drawn = el("figure", {}, KINDS[panel.kind](panel, group), el("figcaption", {}, panel.caption));
  const head = [el("h3", {}, panel.title), el("p", {}, panel.text)];
  return el("section", { class: "panel", "data-kind": panel.kind }, head, drawn);
}

function oddOnes(group) {
  const items = group.group.odd.map(({ machine, far, differs }) => {
    const known = differs.length > 0;
    const why = known ? `What differs: ${differs.join("; ")}.` : "Its file records no difference: measure it again.";
    const label = el("strong", {}, group.label(machine));
    return el("li", {}, label, ` ${far.join("; ")}. `, el("span", { class: "soft" }, why));
  });
  const list = items.length > 0 ? el("ul", {}, items) : el("p", {}, "No machine is far from the median of the class.");
  return el("section", { class: "panel odd" }, el("h3", {}, "The odd ones out"), list);
}

function machinesList(group) {
  const cards = group.group.machines.map((machine, i) => {
    const facts = Object.entries({ ...machine.facts, file: machine.file });
    if (machine.differs.length > 0) facts.push(["differs", machine.differs.join("; ")]);
    const pairs = facts.map(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]);
    const swatch = group.count > 1 && el("i", { class: "swatch", "--of": group.color(i) });
    return el("div", {}, el("h4", {}, swatch, machine.label), el("dl", {}, pairs));
  });
  return el(
    "section",
    { class: "panel machines" },
    el("h3", {}, group.count > 1 ? "The machines" : "The machine"),
    el("p", {}, "Drift: how far the machine's own speed changed meanwhile, by a fixed matrix product."),
    el("div", { class: "multiples", "--least": "20rem" }, cards),
  );
}

// ---- Light and dark ----

const THEMES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
const next = () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
const themeButton = el("button", { onclick: next });

function setTheme(name) {
  theme = name;
  document.documentElement.dataset.theme = name === "auto" ? (system.matches ? "dark" : "light") : name;
  themeButton.textContent = `Colours: ${name}`;
}
system.addEventListener("change", () => setTheme(theme));
setTheme("auto");

// ---- All of it ----

function warning(name, title, sentences) {
  const list = el("ul", {}, sentences.map((text) => el("li", {}, text)));
  return sentences.length > 0 && el("section", { class: `warning ${name}` }, el("h3", {}, title), list);
}

const top = el("div", { class: "top" }, el("h1", {}, "Eight stages, measured"), themeButton);
document.body.append(
  el(
    "main",
    {},
    el("header", {}, top, el("p", { class: "lead" }, data.lead)),
    warning("drifted", "The machine was not steady", data.drifted),
    warning("refused", "Left out", data.refused),
    data.groups.map((group) => new Group(group).element()),
  ),
);
document.documentElement.dataset.ready = "true";
