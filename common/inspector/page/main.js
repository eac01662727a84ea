// The page: what it begins with, its header, and the loop that draws.

import { Clock } from "inspector/clock";
import { Connection } from "inspector/connection";
import { Controls } from "inspector/controls";
import { button, el, forgetUnit, say } from "inspector/dom";
import { EngineView, title } from "inspector/engine_view";
import { setTheme } from "inspector/marks";
import { Player, unpack } from "inspector/replay";
import { Store } from "inspector/store";

const CONTROLS_MILLISECONDS = 2000; // another page may have changed them; workers come and go

const boot = JSON.parse(document.getElementById("boot").textContent);
const stores = [];
const views = [];
let version = 1; // of all that can be seen
const redraw = () => (version += 1);
const clock = new Clock(stores, "recording" in boot, redraw);
const page = {
  heading: el("h1", {}, "Inside an inference server"),
  about: el("span", { class: "about soft" }),
  state: button("connecting", () => clock.follow(), { class: "live", title: "follow the newest step" }),
  look: el("p", { class: "look" }),
  controls: el("div", { class: "bar" }),
  engines: el("main", {}),
};
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
  const theme = button("Light / dark", () => chooseTheme(dataset.theme === "dark" ? "light" : "dark"));
  const enlarge = () => {
    classList.toggle("large");
    resized();
  };
  const size = button("Larger", enlarge, { title: "larger type, for a projector" });
  const link = { href: "/watch/lesson", target: "_blank", hidden: clock.recorded };
  const lesson = el("a", link, "Lesson");
  const group = el("span", { class: "group" }, page.state, lesson, size, theme);
  const top = el("header", { class: "top" }, page.heading, page.about, group);
  document.body.append(top, page.look, page.controls, page.engines);
}

function introduce() {
  const hellos = stores.filter(Boolean).map((store) => store.hello);
  const names = hellos.map(title).join(" and ");
  document.title = `${names} – inside the engine`;
  say(page.heading, names);
  say(page.about, `${hellos[0].model} model on ${hellos[0].device}${clock.recorded ? ", a recording" : ""}`);
  const { look, question } = hellos[0].lesson;
  page.look.replaceChildren(hellos.length === 1 ? `${look} ` : "", el("em", {}, question));
  page.engines.dataset.engines = String(hellos.length);
}

// does: {abort, begin}, as in Text.
function addView(at, store, does) {
  stores[at] = store;
  introduce();
  views[at]?.element.remove();
  views[at] = new EngineView(store, clock, redraw, does, (boot.engines ?? stores).length > 1);
  page.engines.append(...views.filter(Boolean).map((view) => view.element));
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
  page.controls.replaceChildren(made.element);
  const ask = () => connections[0].ask("controls").then((answer) => made.show(answer));
  setInterval(() => ask().catch(() => null), CONTROLS_MILLISECONDS); // the stream says what is wrong with the server
  return made;
}

function askForKey(connections) {
  const key = el("input", { type: "password", "aria-label": "API key", autocomplete: "off" });
  const onsubmit = (event) => {
    event.preventDefault();
    page.controls.replaceChildren();
    for (const connection of connections) {
      connection.key = key.value;
      connection.run();
    }
  };
  const watch = el("button", { class: "primary", type: "submit" }, "Watch");
  const label = el("label", {}, "This server asks for its API key: ", key);
  page.controls.replaceChildren(el("form", { class: "controls", onsubmit }, label, watch));
}

const KEYS = {
  " ": () => (player ?? controls)?.toggle(),
  ".": () => controls?.all("speed", { do: "step" }),
  l: () => clock.follow(),
  s: () => controls?.prompt.focus(),
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
  say(page.state, clock.recorded ? "recording" : clock.live ? stateWords : "past: back to live");
  page.state.classList.toggle("past", !clock.live && !clock.recorded);
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
  page.controls.replaceChildren(player.element);
} else connect();
requestAnimationFrame(frame);
