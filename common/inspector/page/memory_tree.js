// Stages 06 and 07: the tree of cached pages. A row is a run of pages without a fork; it opens to the rows behind it.

import { block, el } from "inspector/dom";
import { colour, inks } from "inspector/marks";

const MAX_ROWS = 40;
const MAX_TEXT = 90; // characters
const MAX_SQUARES = 24;
const MAX_BADGES = 6;
const SQUARE = 9; // pixels, with the gap behind it

export class Tree {
  constructor(store, clock, selection) {
    Object.assign(this, { store, clock, selection });
    this.element = el("div", { class: "tree", role: "tree", "aria-label": "tree of cached pages" });
    this.drawn = null;
    this.closed = new Set(); // first pages of the runs that were closed by hand
  }

  draw() {
    const moment = this.store.at(this.clock.of(this.store));
    if (!moment) return;
    const { tree, pages, shared } = moment.memory;
    this.users = new Map(tree.map(([page]) => [page, []])); // page -> numbers of the requests that use it now
    for (const [number, table] of pages)
      for (const page of table.slice(0, shared.get(number) ?? 0)) this.users.get(page)?.push(number);
    const signature = JSON.stringify([inks().paper, tree, [...this.users], [...this.closed]]);
    if (signature === this.drawn) return;
    this.drawn = signature;
    this.children = new Map([[-1, []], ...tree.map(([page]) => [page, []])]);
    for (const [page, parent] of tree) this.children.get(parent).push(page);
    const rows = [];
    this.collect(rows, moment.memory.texts, -1, 0);
    const focused = this.element.contains(document.activeElement) ? document.activeElement.dataset.page : null;
    this.element.replaceChildren(...rows.slice(0, MAX_ROWS));
    rows.find((row) => row.dataset.page === focused)?.focus();
    const empty = "The tree is empty. A full page of a running request goes into it.";
    const more = rows.length > MAX_ROWS ? "and more rows" : rows.length ? "" : empty;
    if (more) this.element.append(el("p", { class: "soft" }, more));
  }

  collect(rows, texts, parent, depth) {
    const runs = this.children.get(parent).map((page) => this.run(page));
    // Used runs first, then long ones: the most interesting rows are in view.
    runs.sort((a, b) => b.users.length - a.users.length || b.pages.length - a.pages.length);
    for (const run of runs) {
      if (rows.length > MAX_ROWS) return;
      const isFork = this.children.get(run.pages.at(-1)).length > 0;
      const isClosed = this.closed.has(run.pages[0]);
      rows.push(this.row(run, texts, depth, isFork, isClosed));
      if (isFork && !isClosed) this.collect(rows, texts, run.pages.at(-1), depth + 1);
    }
  }

  // The run from this page on: it goes on as long as there is one child, with the same users.
  run(page) {
    const users = this.users.get(page);
    const pages = [page];
    for (;;) {
      const behind = this.children.get(pages.at(-1));
      if (behind.length !== 1 || this.users.get(behind[0]).join() !== users.join()) return { pages, users };
      pages.push(behind[0]);
    }
  }

  row({ pages, users }, texts, depth, isFork, isClosed) {
    const text = pages.map((page) => texts.get(page) ?? "").join("");
    const words = text.replace(/\s+/g, " ").trim();
    const toggle = () => {
      if (!this.closed.delete(pages[0])) this.closed.add(pages[0]);
      this.selection.changed();
    };
    const branch = { class: "branch", title: words, role: "treeitem", "data-page": pages[0], "aria-level": depth + 1 };
    const fork = isFork ? { "aria-expanded": String(!isClosed), onclick: toggle } : {};
    const more = users.length > MAX_BADGES ? el("span", { class: "soft" }, `+${users.length - MAX_BADGES}`) : null;
    const row = el(
      isFork ? "button" : "div",
      { ...branch, ...fork },
      el("span", { class: "twist" }, isFork ? (isClosed ? "▸" : "▾") : ""),
      this.squares(pages, users),
      el("span", { class: "count" }, `${pages.length} ${pages.length === 1 ? "page" : "pages"}`),
      ...users.slice(0, MAX_BADGES).map((number) => badge(this.store.request(number))),
      more,
      el("span", { class: "soft clip" }, words.slice(0, MAX_TEXT)),
    );
    row.style.paddingInlineStart = `${depth * 18}px`;
    return row;
  }

  squares(pages, users) {
    const shown = Math.min(MAX_SQUARES, pages.length);
    const canvas = el("canvas", { width: 2 * shown * SQUARE, height: 2 * SQUARE, class: "squares" });
    canvas.style.width = `${shown * SQUARE}px`;
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    const hexes = users.slice(0, 3).map((number) => colour(this.store.request(number).hue));
    context.strokeStyle = inks().soft;
    for (let x = 0; x < shown * SQUARE; x += SQUARE) {
      hexes.forEach((hex, band) => {
        block(context, hex, x, (band * 8) / hexes.length, 8, 8 / hexes.length);
      });
      if (!hexes.length) context.strokeRect(x + 0.5, 0.5, 7, 7);
    }
    return canvas;
  }
}

// A request's letter on its colour, as everywhere on the page.
export function badge(request) {
  const element = el("span", { class: "badge" }, request.letter);
  element.style.setProperty("--of", colour(request.hue));
  return element;
}
