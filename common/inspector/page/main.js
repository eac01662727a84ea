// The page: what it begins with, its header, and the loop that draws.

import { Clock } from "inspector/clock";
import { Connection } from "inspector/connection";
import { Controls } from "inspector/controls";
import { el, forgetUnit, say } from "inspector/dom";
import { EngineView, title } from "inspector/engine_view";
import { setTheme } from "inspector/marks";
import { Player, unpack } from "inspector/replay";
import { Store } from "inspector/store";

const CONTROLS_MILLISECONDS = 2000; // another page may have changed them; workers come and go

const boot = JSON.parse(document.getElementById("boot").textContent);
const stores = [];
const views = [];
const clock = new Clock(stores, "recording" in boot);
const options = { boxes: false, element: boxesSwitch };
const page = {
  heading: el("h1", {}, "Inside an inference server"),
  about: el("span", { class: "about soft" }),
  state: el(
    "button",
    { class: "live", type: "button", title: "follow the newest step", onclick: () => clock.follow() },
    "connecting",
  ),
  look: el("p", { class: "look" }),
  controls: el("div", { class: "bar" }),
  engines: el("main", {}),
};
let version = 1; // of all that can be seen
window.inspector = { stores, views, clock }; // for a debugger, and for tests that count
let controls = null;

function redraw() {
  version += 1;
}

function resized() {
  forgetUnit();
  redraw();
}

function header() {
  const theme = el(
    "button",
    { type: "button", title: "light or dark", onclick: () => chooseTheme(themeNow() === "dark" ? "light" : "dark") },
    "Light / dark",
  );
  const size = el(
    "button",
    {
      type: "button",
      title: "larger type, for a projector",
      onclick: () => {
        document.documentElement.classList.toggle("large");
        resized();
      },
    },
    "Larger",
  );
  const lesson = clock.recorded
    ? null
    : el("a", { href: "/watch/lesson", target: "_blank", rel: "noopener" }, "Lesson");
  document.body.append(
    el(
      "header",
      { class: "top" },
      page.heading,
      page.about,
      el("span", { class: "group" }, page.state, lesson, size, theme),
    ),
    page.look,
    page.controls,
    page.engines,
  );
}

const themeNow = () => document.documentElement.dataset.theme;

function chooseTheme(name) {
  document.documentElement.dataset.theme = name;
  setTheme(name);
  redraw();
}

function boxesSwitch() {
  const box = el("input", {
    type: "checkbox",
    checked: options.boxes,
    class: "boxes-switch",
    onchange: () => {
      options.boxes = box.checked;
      for (const other of document.querySelectorAll(".boxes-switch")) other.checked = box.checked;
      redraw();
    },
  });
  return el("label", { class: "legend" }, box, " tokens as boxes");
}

function introduce(hellos) {
  document.title = `${hellos.map(title).join(" and ")} – inside the engine`;
  say(page.heading, hellos.map(title).join(" and "));
  say(page.about, `${hellos[0].model} model on ${hellos[0].device}${clock.recorded ? ", a recording" : ""}`);
  const [{ lesson }] = hellos;
  if (hellos.length === 1) page.look.replaceChildren(el("span", {}, lesson.look), " ", el("em", {}, lesson.question));
  else page.look.replaceChildren(el("em", {}, lesson.question));
  page.engines.dataset.engines = String(hellos.length);
}

function addView(at, store, does) {
  const view = new EngineView(store, clock, {
    ...does,
    options,
    redraw,
    named: (boot.engines?.length ?? stores.length) > 1,
  });
  // What lesson 07 shows is told by boxes: whether a token comes from the target or the drafter.
  if (store.hello.kind === "drafts") options.boxes = true;
  views[at]?.element.remove();
  views[at] = view;
  page.engines.append(...views.filter(Boolean).map((one) => one.element));
  for (const box of document.querySelectorAll(".boxes-switch")) box.checked = options.boxes;
  redraw();
}

function connect() {
  const connections = boot.engines.map(({ url }, at) => {
    const connection = new Connection(url, {
      hello: (hello) => {
        stores[at] = new Store(hello);
        introduce(stores.filter(Boolean).map((store) => store.hello));
        addView(at, stores[at], { abort: (id) => controls.abort(connection, id), begin: () => controls.begin() });
        controls ??= startControls(connections, hello);
        state("live");
      },
      update: (update) => {
        stores[at].apply(update);
        redraw();
      },
      state,
      refused: () => askForKey(connections),
    });
    return connection;
  });
  if (boot.key) askForKey(connections);
  else for (const connection of connections) connection.run();
}

function startControls(connections, hello) {
  const made = new Controls(connections, hello.lesson, hello);
  page.controls.replaceChildren(made.element);
  setInterval(async () => {
    const answer = await connections[0].controls().catch(() => null); // the stream says what is wrong with the server
    if (answer) made.show(answer);
  }, CONTROLS_MILLISECONDS);
  return made;
}

function askForKey(connections) {
  const key = el("input", { type: "password", "aria-label": "API key", autocomplete: "off" });
  const form = el(
    "form",
    {
      class: "controls",
      onsubmit: (event) => {
        event.preventDefault();
        page.controls.replaceChildren();
        for (const connection of connections) {
          connection.key = key.value;
          connection.run();
        }
      },
    },
    el("label", {}, "This server asks for its API key: ", key),
    el("button", { class: "primary", type: "submit" }, "Watch"),
  );
  page.controls.replaceChildren(form);
}

function state(words) {
  page.state.dataset.words = words;
  redraw();
}

function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, button, a") || event.ctrlKey || event.metaKey || event.altKey)
      return;
    const keys = {
      " ": () => (clock.recorded ? page.player.toggle() : controls?.toggle()),
      ".": () => controls?.speed({ do: "step" }),
      l: () => clock.follow(),
      s: () => controls?.prompt.focus(),
      b: () => document.querySelector(".boxes-switch")?.click(),
      Escape: () => views.forEach((view) => view.selection.select(null)),
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
}

let before = performance.now();

function frame(now) {
  clock.tick((now - before) / 1000);
  before = now;
  for (const view of views) view?.draw(now, version);
  say(page.state, clock.recorded ? "recording" : clock.live ? (page.state.dataset.words ?? "") : "past: back to live");
  page.state.classList.toggle("past", !clock.live && !clock.recorded);
  requestAnimationFrame(frame);
}

async function start() {
  header();
  chooseTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  clock.listeners.add(redraw);
  new ResizeObserver(resized).observe(document.body);
  listenToKeys();
  if (clock.recorded) {
    stores.push(...(await unpack(boot.recording)));
    introduce(stores.map((store) => store.hello));
    stores.forEach((store, at) => addView(at, store, { abort: null, begin: null }));
    page.player = new Player(clock);
    page.controls.replaceChildren(page.player.element);
  } else connect();
  requestAnimationFrame(frame);
}

start();
