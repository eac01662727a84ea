// What is behind a figure: where it was measured, its spread, and the JSON that it was read from.

import { el } from "compare/dom";

let dialog = null;

export function showDetails(title, machine, facts, entry, name) {
  dialog ??= document.body.appendChild(el("dialog"));
  const close = el("button", { onclick: () => dialog.close(), autofocus: true }, "Close");
  const about = [
    ...facts,
    ["machine", `${machine.label}: ${machine.facts.hardware}, ${machine.facts.cores}, ${machine.facts.dtype}`],
    ["versions", machine.facts.versions],
    ["commit", `${entry.json.commit}, ${entry.json.date}`],
    ["repeats", String(entry.json.order.length)],
  ];
  dialog.replaceChildren(
    el("header", {}, el("h3", {}, title), close),
    el("dl", {}, about.flatMap(([term, text]) => [el("dt", {}, term), el("dd", {}, text)])),
    el("p", { class: "soft source" }, `${entry.file}, ${name}:`),
    el("pre", {}, JSON.stringify(entry.json, null, 1)),
  );
  dialog.showModal();
}
