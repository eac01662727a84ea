// Doing: send a prompt, a load of clients, stop and step the engine, end a worker. All engines shown get the same.

import { button, el, say } from "inspector/dom";

const SPEEDS = [0, 50, 20, 10, 4, 2, 1]; // steps a second; 0 is as many as the engine can
const CLIENTS = 32;

export class Controls {
  constructor(connections, hello) {
    this.connections = connections;
    this.lesson = hello.lesson;
    this.note = el("output", { class: "note", role: "status" });
    this.prompt = el("textarea", { rows: 1, "aria-label": "prompt", spellcheck: "false", class: "prompt-field" });
    this.most = number("most output tokens", { min: 1, max: 4000 });
    this.heat = number("temperature", { min: 0, max: 2, step: 0.1 });
    this.times = number("how many times", { min: 1, max: 64 });
    const presets = this.lesson.presets.map(({ name }, value) => el("option", { value }, name));
    this.presets = el("select", { "aria-label": "preset", onchange: () => this.choose() }, ...presets);
    const load = { type: "range", min: 0, max: CLIENTS, "aria-label": "clients", oninput: () => this.load() };
    this.slider = el("input", load);
    this.clients = el("b", {});
    this.long = el("input", { type: "checkbox", onchange: () => this.load() });
    this.pause = button("Pause", () => this.toggle(), { title: "space" });
    const step = button("One step", () => this.all("speed", { do: "step" }), { title: "." });
    const setSpeed = () => this.all("speed", { steps_per_second: Number(this.rate.value) });
    const speeds = SPEEDS.map((value) => el("option", { value }, value ? `${value} a second` : "full speed"));
    this.rate = el("select", { "aria-label": "steps per second", onchange: setSpeed }, ...speeds);
    this.killers = group();
    const send = el("button", { class: "primary", type: "submit" }, "Send");
    const fields = [label("at most ", this.most), label("temperature ", this.heat), label("times ", this.times)];
    this.element = el(
      "form",
      { class: "controls", onsubmit: (event) => this.send(event) },
      group(this.presets, this.prompt, ...fields, send),
      group(label("load ", this.slider), this.clients, " clients", label(this.long, " long prompts")),
      hello.can_pause ? group(this.pause, step, this.rate) : null,
      this.killers,
      this.note,
    );
    this.show(hello);
    this.choose();
  }

  choose() {
    const preset = this.lesson.presets[Number(this.presets.value)];
    this.prompt.value = preset.prompt;
    this.most.value = preset.max_tokens;
    this.heat.value = preset.temperature;
    this.times.value = preset.count;
  }

  send(event) {
    event?.preventDefault();
    const { chat, system } = this.lesson.presets[Number(this.presets.value)];
    const [tokens, temperature, count] = [this.most, this.heat, this.times].map((input) => Number(input.value));
    return this.all("send", { prompt: this.prompt.value, max_tokens: tokens, temperature, count, chat, system });
  }

  // What the lesson is about, for a page on which nothing has happened yet.
  begin() {
    this.presets.value = "0";
    this.choose();
    return this.send();
  }

  load() {
    say(this.clients, this.slider.value);
    return this.all("load", { clients: Number(this.slider.value), long_prompts: this.long.checked });
  }

  toggle() {
    return this.all("speed", { do: this.paused ? "resume" : "pause" });
  }

  async all(path, body, connections = this.connections) {
    try {
      const answers = await Promise.all(connections.map((connection) => connection.ask(path, body)));
      say(this.note, "");
      if ("paused" in answers[0]) this.show(answers[0]);
    } catch (error) {
      say(this.note, error.message);
    }
  }

  // What the server says of itself: another page may have changed it.
  show({ paused, steps_per_second: rate, clients, long_prompts: long, killable }) {
    this.paused = paused;
    say(this.pause, paused ? "Resume" : "Pause");
    this.element.classList.toggle("paused", paused);
    this.rate.value = String(rate);
    if (document.activeElement !== this.slider) this.slider.value = clients;
    say(this.clients, String(clients));
    this.long.checked = long;
    if (this.killers.dataset.workers === killable.join()) return;
    this.killers.dataset.workers = killable.join();
    const kill = (worker) => button(`Kill worker ${worker}`, () => this.all("kill", { worker }), { class: "danger" });
    this.killers.replaceChildren(...killable.map(kill));
  }
}

const group = (...children) => el("span", { class: "group" }, ...children);
const label = (...children) => el("label", {}, ...children);
const number = (name, bounds) => el("input", { type: "number", "aria-label": name, class: "short", ...bounds });
