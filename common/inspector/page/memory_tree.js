// Stages 06 and 07: the tree of cached pages. A row is a run of pages without a fork; it opens to the rows behind it.

import { el } from "inspector/dom";
import { colour, inks } from "inspector/marks";

const MOST_ROWS = 40;
const MOST_TEXT = 90; // characters
const MOST_SQUARES = 24;

export class Tree {
  constructor(store, clock, selection) {
    this.store = store;
    this.clock = clock;
    this.selection = selection;
    this.element = el("div", { class: "tree", role: "tree", "aria-label": "tree of cached pages" });
    this.drawn = null;
    this.closed = new Set(); // first pages of the runs that were closed by hand
  }

  draw() {
    const moment = this.store.at(this.clock.of(this.store));
    if (!moment) return;
    const users = this.users(moment);
    const signature = JSON.stringify([inks().paper, moment.memory.tree, [...users], [...this.closed]]);
    if (signature === this.drawn) return;
    this.drawn = signature;
    const children = new Map();
    for (const [page, parent] of moment.memory.tree) {
      if (!children.has(parent)) children.set(parent, []);
      children.get(parent).push(page);
    }
    const rows = [];
    this.collect(rows, children, users, moment.memory.texts, -1, 0);
    const focused = this.element.contains(document.activeElement) ? document.activeElement.dataset.page : null;
    this.element.replaceChildren(...rows.slice(0, MOST_ROWS));
    if (focused) rows.find((row) => row.dataset.page === focused)?.focus();
    if (rows.length > MOST_ROWS)
      this.element.append(el("p", { class: "soft" }, `and ${rows.length - MOST_ROWS} more rows`));
    if (!rows.length)
      this.element.append(
        el("p", { class: "soft" }, "The tree is empty. A full page of a running request goes into it."),
      );
  }

  // page -> numbers of the requests that use it now
  users(moment) {
    const users = new Map();
    for (const [number, table] of moment.memory.pages) {
      for (const page of table.slice(0, moment.memory.shared.get(number) ?? 0)) {
        if (users.has(page)) users.get(page).push(number);
        else users.set(page, [number]);
      }
    }
    return users;
  }

  collect(rows, children, users, texts, parent, depth) {
    const runs = (children.get(parent) ?? []).map((page) => this.run(children, users, page));
    // What is used first, then what is long: the most interesting is in view.
    runs.sort((a, b) => b.users.length - a.users.length || b.weight - a.weight);
    for (const run of runs) {
      if (rows.length > MOST_ROWS) return;
      const isFork = (children.get(run.pages.at(-1)) ?? []).length > 0;
      const isClosed = this.closed.has(run.pages[0]);
      rows.push(this.row(run, texts, depth, isFork, isClosed));
      if (isFork && !isClosed) this.collect(rows, children, users, texts, run.pages.at(-1), depth + 1);
    }
  }

  // From this page on, as long as there is one child with the same users.
  run(children, users, page) {
    const pages = [page];
    const mine = users.get(page) ?? [];
    for (;;) {
      const behind = children.get(pages.at(-1)) ?? [];
      if (behind.length !== 1 || (users.get(behind[0]) ?? []).join() !== mine.join()) break;
      pages.push(behind[0]);
    }
    return { pages, users: mine, weight: pages.length };
  }

  row(run, texts, depth, isFork, isClosed) {
    const text = run.pages
      .map((page) => texts.get(page) ?? "")
      .join("")
      .replace(/\s+/g, " ")
      .trim();
    const canvas = el("canvas", {
      width: 2 * Math.min(MOST_SQUARES, run.pages.length) * 9,
      height: 18,
      class: "squares",
    });
    this.squares(canvas, run);
    const toggle = () => {
      if (isClosed) this.closed.delete(run.pages[0]);
      else this.closed.add(run.pages[0]);
      this.drawn = null;
      this.selection.changed();
    };
    const name = `${run.pages.length} ${run.pages.length === 1 ? "page" : "pages"}`;
    const badges = run.users.slice(0, 6).map((number) => badge(this.store.request(number)));
    const more = run.users.length > 6 ? el("span", { class: "soft" }, `+${run.users.length - 6}`) : null;
    const row = el(
      isFork ? "button" : "div",
      {
        class: "branch",
        title: text,
        role: "treeitem",
        "data-page": run.pages[0],
        "aria-level": depth + 1,
        "aria-expanded": isFork ? String(!isClosed) : null,
        onclick: isFork ? toggle : null,
      },
      el("span", { class: "twist" }, isFork ? (isClosed ? "▸" : "▾") : ""),
      canvas,
      el("span", { class: "count" }, name),
      ...badges,
      more,
      el("span", { class: "soft clip" }, text.slice(0, MOST_TEXT)),
    );
    row.style.paddingInlineStart = `${depth * 18}px`;
    return row;
  }

  squares(canvas, run) {
    const shown = Math.min(MOST_SQUARES, run.pages.length);
    canvas.style.width = `${shown * 9}px`;
    const context = canvas.getContext("2d");
    context.scale(2, 1.5);
    for (let at = 0; at < shown; at++) {
      const hexes = run.users.length
        ? run.users.slice(0, 3).map((number) => colour(this.store.request(number).hue))
        : [];
      hexes.forEach((hex, band) => {
        context.fillStyle = hex;
        context.fillRect(at * 9, 1 + (band * 9) / hexes.length, 8, 9 / hexes.length);
      });
      if (!hexes.length) {
        context.strokeStyle = inks().soft;
        context.strokeRect(at * 9 + 0.5, 1.5, 7, 8);
      }
    }
  }
}

// A request's letter on its colour, as everywhere on the page.
export function badge(request) {
  const element = el("span", { class: "badge" }, request.letter);
  element.style.setProperty("--of", colour(request.hue));
  return element;
}
