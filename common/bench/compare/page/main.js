// The page: groups of results that may share an axis, and in each the same panels, ratios first.

import { showDetails } from "compare/details";
import { draw, el } from "compare/dom";
import { gainFacts, rowsPanel } from "compare/rows";
import { absolutePanel, stairsPanel } from "compare/stairs";

const COLORS = 8;
const KINDS = { gains: rowsPanel, stairs: stairsPanel, machines: rowsPanel, absolute: absolutePanel };
const HEADINGS = { hardware: "hardware", cores: "cores", copy: "memory", products: "matrix products", dtype: "dtype", drift: "drift", versions: "versions", commit: "commit", date: "date" };
const data = JSON.parse(document.getElementById("boot").textContent);

// What panels need to know about a group, and the mark of a machine, which can be followed and singled out.
class Group {
  constructor(group) {
    this.group = group;
    this.count = group.machines.length;
    this.isClass = group.is_class;
    this.marks = group.machines.map(() => []);
    this.chosen = null;
  }

  label = (machine) => this.group.machines[machine].label;
  color = (machine) => (this.count <= COLORS ? `var(--m${machine})` : "var(--crowd)");

  // Makes an element the mark of value.machine: on a click it shows the figures behind it.
  mark(value, title, spoken, element) {
    const entry = this.group.entries[value.machine][value.entry];
    const facts = value.median && value.sides ? gainFacts(value, entry.json.unit) : [["figures", spoken]];
    const open = () => showDetails(`${title}: ${this.label(value.machine)}`, this.group.machines[value.machine], facts, entry, value.entry);
    element.classList.add("mark");
    element.setAttribute("role", "button");
    element.setAttribute("tabindex", "0");
    element.setAttribute("aria-label", spoken);
    element.addEventListener("click", open);
    element.addEventListener("keydown", (event) => event.key === "Enter" && open());
    if (element instanceof SVGElement) element.append(draw("title", {}, spoken));
    this.marks[value.machine] = this.marks[value.machine].filter((other) => other.isConnected).concat(element);
    element.classList.toggle("dim", this.chosen !== null && this.chosen !== value.machine);
    return element;
  }

  choose(machine) {
    this.chosen = this.chosen === machine ? null : machine;
    this.chips.forEach((chip, i) => chip.setAttribute("aria-pressed", String(this.chosen === i)));
    this.marks.forEach((marks, i) => {
      for (const element of marks) element.classList.toggle("dim", this.chosen !== null && this.chosen !== i);
    });
  }

  element() {
    const { group } = this;
    this.chips = group.machines.map((machine, i) =>
      el("button", { class: "chip", "--of": this.color(i), "aria-pressed": "false", onclick: () => this.choose(i) }, el("i", { class: "swatch" }), machine.label, machine.here && el("span", { class: "soft" }, "this machine")),
    );
    return el(
      "section",
      { class: "group" },
      el("h2", {}, group.title),
      this.count > 1 && el("div", { class: "chips" }, this.chips),
      this.isClass && oddOnes(this),
      group.panels.map((panel) =>
        el("section", { class: "panel", "data-kind": panel.kind }, el("h3", {}, panel.title), el("p", {}, panel.text), el("figure", {}, KINDS[panel.kind](panel, this), el("figcaption", {}, panel.caption))),
      ),
      machinesTable(this),
    );
  }
}

function oddOnes(group) {
  const items = group.group.odd.map((one) => {
    const differs = one.differs.length ? `What differs: ${one.differs.join("; ")}.` : "Nothing that its file records differs: measure it again.";
    return el("li", {}, el("strong", {}, group.label(one.machine)), ` ${one.far.join("; ")}. `, el("span", { class: "soft" }, differs));
  });
  const none = el("p", {}, "No machine is far from the median of the class.");
  return el("section", { class: "panel odd" }, el("h3", {}, "The odd ones out"), items.length ? el("ul", {}, items) : none);
}

function machinesTable(group) {
  const names = Object.keys(HEADINGS);
  const rows = group.group.machines.map((machine, i) =>
    el(
      "tr",
      { id: `machine-${i}` },
      el("th", { scope: "row" }, machine.label),
      names.map((name) => el("td", { "data-name": HEADINGS[name] }, machine.facts[name])),
      el("td", { "data-name": "file" }, machine.file),
      group.count > 1 && el("td", { "data-name": "differs" }, machine.differs.join("; ") || "–"),
    ),
  );
  const headings = ["machine", ...names.map((name) => HEADINGS[name]), "file", ...(group.count > 1 ? ["differs"] : [])];
  return el(
    "section",
    { class: "panel machines" },
    el("h3", {}, group.count > 1 ? "The machines" : "The machine"),
    el("p", {}, "Drift is how far the machine's own speed changed while it was measured, by a fixed matrix product."),
    el("table", {}, el("thead", {}, el("tr", {}, headings.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, rows)),
  );
}

// ---- Light and dark ----

const THEMES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
const themeButton = el("button", { onclick: () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]) });

function setTheme(name) {
  theme = name;
  document.documentElement.dataset.theme = name === "auto" ? (system.matches ? "dark" : "light") : name;
  themeButton.textContent = `Colours: ${name}`;
}
system.addEventListener("change", () => setTheme(theme));
setTheme("auto");

// ---- All of it ----

const refused = data.refused.length > 0 && el("section", { class: "refused" }, el("h3", {}, "Left out"), el("ul", {}, data.refused.map((text) => el("li", {}, text))));
document.body.append(
  el(
    "main",
    {},
    el("header", {}, el("div", { class: "top" }, el("h1", {}, "Eight stages, measured"), themeButton), el("p", { class: "lead" }, data.lead)),
    refused,
    data.groups.map((group) => new Group(group).element()),
  ),
);
document.documentElement.dataset.ready = "true";
