// Doing: send a prompt, a load of clients, stop and step the engine, end a worker. All engines shown get the same.

import { el, say } from "inspector/dom";

const SPEEDS = [0, 50, 20, 10, 4, 2, 1]; // steps a second; 0 is as many as the engine can
const CLIENTS = 32;

export class Controls {
  constructor(connections, lesson, hello) {
    this.connections = connections;
    this.lesson = lesson;
    this.note = el("output", { class: "note", role: "status" });
    this.prompt = el("textarea", { rows: 1, "aria-label": "prompt", spellcheck: "false", class: "prompt-field" });
    this.most = number("most output tokens", { min: 1, max: 4000 });
    this.heat = number("temperature", { min: 0, max: 2, step: 0.1 });
    this.times = number("how many times", { min: 1, max: 64 });
    this.presets = el("select", { "aria-label": "preset", onchange: () => this.choose() });
    lesson.presets.forEach((preset, at) => this.presets.append(el("option", { value: at }, preset.name)));
    this.slider = el("input", {
      type: "range",
      min: 0,
      max: CLIENTS,
      value: hello.clients,
      "aria-label": "clients",
      oninput: () => this.load(),
    });
    this.clients = el("b", {}, String(hello.clients));
    this.long = el("input", { type: "checkbox", checked: hello.long_prompts, onchange: () => this.load() });
    this.pause = el("button", { onclick: () => this.toggle(), title: "space" }, "Pause");
    this.step = el("button", { onclick: () => this.speed({ do: "step" }), title: "." }, "One step");
    this.rate = el("select", {
      "aria-label": "steps per second",
      onchange: () => this.speed({ steps_per_second: Number(this.rate.value) }),
    });
    for (const speed of SPEEDS)
      this.rate.append(el("option", { value: speed }, speed ? `${speed} a second` : "full speed"));
    this.killers = el("span", { class: "group killers" });
    this.element = el(
      "form",
      { class: "controls", onsubmit: (event) => this.send(event) },
      el(
        "span",
        { class: "group" },
        this.presets,
        this.prompt,
        label("at most", this.most),
        label("temperature", this.heat),
        label("times", this.times),
        el("button", { class: "primary", type: "submit" }, "Send"),
      ),
      el(
        "span",
        { class: "group" },
        label("load", this.slider),
        this.clients,
        " clients",
        label("long prompts", this.long, true),
      ),
      hello.can_pause ? el("span", { class: "group" }, this.pause, this.step, this.rate) : null,
      this.killers,
      this.note,
    );
    this.element.querySelectorAll("button:not(.primary)").forEach((button) => button.setAttribute("type", "button"));
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
    return this.speed({ do: this.paused ? "resume" : "pause" });
  }

  speed(body) {
    return this.all("speed", body);
  }

  abort(connection, id) {
    return this.all("abort", { request_id: id }, [connection]);
  }

  async all(path, body, connections = this.connections) {
    try {
      const answers = await Promise.all(connections.map((connection) => connection.post(path, body)));
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
    const wanted = killable.join();
    if (this.killers.dataset.workers === wanted) return;
    this.killers.dataset.workers = wanted;
    this.killers.replaceChildren(
      ...killable.map((worker) =>
        el(
          "button",
          { type: "button", class: "danger", onclick: () => this.all("kill", { worker }) },
          `Kill worker ${worker}`,
        ),
      ),
    );
  }
}

function number(name, bounds) {
  return el("input", { type: "number", "aria-label": name, class: "short", ...bounds });
}

function label(text, input, behind = false) {
  return behind ? el("label", {}, input, " ", text) : el("label", {}, text, " ", input);
}
