// The page: what it begins with, its header, and the loop that draws.

import { Clock } from "inspector/clock";
import { Connection } from "inspector/connection";
import { Controls } from "inspector/controls";
import { el, forgetUnit, say, template } from "inspector/dom";
import { EngineView, title } from "inspector/engine_view";
import { setTheme } from "inspector/marks";
import { Player, unpack } from "inspector/replay";
import { Store } from "inspector/store";

const CONTROLS_MILLISECONDS = 2000; // another page may have changed them; workers come and go

const boot = JSON.parse(document.getElementById("boot").textContent);
const stores = [];
const views = [];
let version = 1; // It rises with every visible change.
const redraw = () => (version += 1);
const clock = new Clock(stores, "recording" in boot, redraw);
const [heading, about, state, look, bar, engines] = ["h1", ".about", ".live", ".look", ".bar", "main"].map((selector) =>
  document.querySelector(selector),
);
window.inspector = { stores, views, clock }; // for a debugger, and for tests
let stateWords = "connecting";
let controls = null;
let player = null;

function resized() {
  forgetUnit();
  redraw();
}

function chooseTheme(name) {
  setTheme(name);
  redraw();
}

function header() {
  const { dataset, classList } = document.documentElement;
  document.getElementById("theme").onclick = () => chooseTheme(dataset.theme === "dark" ? "light" : "dark");
  document.getElementById("size").onclick = () => {
    classList.toggle("large");
    resized();
  };
  Object.assign(document.querySelector(".top a"), { href: "/watch/lesson", hidden: clock.recorded });
  state.onclick = () => clock.follow();
}

function introduce() {
  const hellos = stores.filter(Boolean).map((store) => store.hello);
  const names = hellos.map(title).join(" and ");
  document.title = `${names} – inside the engine`;
  say(heading, names);
  say(about, `${hellos[0].model} model on ${hellos[0].device}${clock.recorded ? ", a recording" : ""}`);
  const { lesson } = hellos[0];
  look.replaceChildren(hellos.length === 1 ? `${lesson.look} ` : "", el("em", {}, lesson.question));
  engines.dataset.engines = String(hellos.length);
}

// does: {abort, begin}, as in Text.
function addView(at, store, does) {
  stores[at] = store;
  introduce();
  views[at]?.element.remove();
  views[at] = new EngineView(store, clock, redraw, does, (boot.engines ?? stores).length > 1);
  engines.append(...views.filter(Boolean).map((view) => view.element));
  redraw();
}

function connect() {
  const connections = boot.engines.map(({ url }, at) => {
    const connection = new Connection(url, {
      hello: (hello) => {
        addView(at, new Store(hello), {
          abort: (id) => controls.all("abort", { request_id: id }, [connection]),
          begin: () => controls.begin(),
        });
        controls ??= startControls(connections, hello);
        stateWords = "live";
      },
      update: (update) => {
        stores[at].apply(update);
        redraw();
      },
      state: (words) => (stateWords = words),
      refused: () => askForKey(connections),
    });
    return connection;
  });
  if (boot.key) askForKey(connections);
  else for (const connection of connections) connection.run();
}

function startControls(connections, hello) {
  const made = new Controls(connections, hello);
  bar.replaceChildren(made.element);
  const ask = () => connections[0].ask("controls").then((answer) => made.show(answer));
  setInterval(() => ask().catch(() => null), CONTROLS_MILLISECONDS); // the stream says what is wrong with the server
  return made;
}

function askForKey(connections) {
  const form = template("key");
  form.onsubmit = (event) => {
    event.preventDefault();
    bar.replaceChildren();
    for (const connection of connections) {
      connection.key = form.elements.key.value;
      connection.run();
    }
  };
  bar.replaceChildren(form);
}

const KEYS = {
  " ": () => (player ?? controls)?.toggle(),
  ".": () => controls?.all("speed", { do: "step" }),
  l: () => clock.follow(),
  s: () => controls?.fields.prompt.focus(),
  b: () => document.querySelector(".boxes-switch")?.click(),
  Escape: () => views.forEach((view) => view.selection.select(null)),
};

function pressed(event) {
  const isElsewhere = event.target.closest("input, textarea, select, button, a");
  if (isElsewhere || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
}

let before = performance.now();

function frame(now) {
  clock.tick((now - before) / 1000);
  before = now;
  for (const view of views) view?.draw(now, version);
  player?.draw();
  say(state, clock.recorded ? "recording" : clock.live ? stateWords : "past: back to live");
  state.classList.toggle("past", !clock.live && !clock.recorded);
  requestAnimationFrame(frame);
}

header();
chooseTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
new ResizeObserver(resized).observe(document.body);
document.addEventListener("keydown", pressed);
if (clock.recorded) {
  stores.push(...(await unpack(boot.recording)));
  stores.forEach((store, at) => addView(at, store, {}));
  player = new Player(clock);
  bar.replaceChildren(player.element);
} else connect();
requestAnimationFrame(frame);
