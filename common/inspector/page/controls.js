// Controls: send a prompt or a load of clients, stop and step the engine, end a worker. All engines shown get the same.

import { button, say, template } from "inspector/dom";

const OF_A_PRESET = ["prompt", "max_tokens", "temperature", "count"]; // fields of a preset that the form also sends

export class Controls {
  constructor(connections, hello) {
    this.connections = connections;
    this.presets = hello.lesson.presets;
    this.element = template("controls");
    this.fields = this.element.elements;
    const { preset, load, long, pause, step, rate } = this.fields;
    preset.append(...this.presets.map(({ name }, value) => new Option(name, value)));
    preset.onchange = () => this.choose();
    load.oninput = long.onchange = () => this.load();
    pause.onclick = () => this.toggle();
    step.onclick = () => this.all("speed", { do: "step" });
    rate.onchange = () => this.all("speed", { steps_per_second: Number(rate.value) });
    pause.parentElement.hidden = !hello.can_pause;
    this.element.onsubmit = (event) => this.send(event);
    this.clients = this.element.querySelector("b");
    this.killers = this.element.querySelector(".killers");
    this.show(hello);
    this.choose();
  }

  choose() {
    for (const name of OF_A_PRESET) this.fields[name].value = this.presets[Number(this.fields.preset.value)][name];
  }

  send(event) {
    event?.preventDefault();
    const { chat, system } = this.presets[Number(this.fields.preset.value)];
    const fields = OF_A_PRESET.map((name) => this.fields[name]);
    const told = fields.map(({ name, type, value }) => [name, type === "number" ? Number(value) : value]);
    return this.all("send", { ...Object.fromEntries(told), chat, system });
  }

  // Sends what the lesson is about, from a page on which nothing has happened yet.
  begin() {
    this.fields.preset.value = "0";
    this.choose();
    return this.send();
  }

  load() {
    const { load, long } = this.fields;
    say(this.clients, load.value);
    return this.all("load", { clients: Number(load.value), long_prompts: long.checked });
  }

  toggle() {
    return this.all("speed", { do: this.paused ? "resume" : "pause" });
  }

  async all(path, body, connections = this.connections) {
    try {
      const answers = await Promise.all(connections.map((connection) => connection.ask(path, body)));
      say(this.fields.note, "");
      if ("paused" in answers[0]) this.show(answers[0]);
    } catch (error) {
      say(this.fields.note, error.message);
    }
  }

  // Shows the server's settings: another page may have changed them.
  show({ paused, steps_per_second: rate, clients, long_prompts: long, killable }) {
    const { fields } = this;
    this.paused = paused;
    say(fields.pause, paused ? "Resume" : "Pause");
    this.element.classList.toggle("paused", paused);
    fields.rate.value = String(rate);
    if (document.activeElement !== fields.load) fields.load.value = clients;
    say(this.clients, String(clients));
    fields.long.checked = long;
    if (this.killers.dataset.workers === killable.join()) return;
    this.killers.dataset.workers = killable.join();
    const kill = (worker) => button(`Kill worker ${worker}`, () => this.all("kill", { worker }), { class: "danger" });
    this.killers.replaceChildren(...killable.map(kill));
  }
}
