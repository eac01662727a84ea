// A server that is watched: the stream of its updates, and requests to it. It uses `fetch`, since EventSource cannot
// send an API key.

const AGAIN_MILLISECONDS = 1500;

export class Connection {
  // told: {hello(message), update(message), state(text), refused()}
  constructor(url, told) {
    Object.assign(this, { url, told, key: "" });
  }

  get headers() {
    return this.key ? { Authorization: `Bearer ${this.key}` } : {};
  }

  async run() {
    for (;;) {
      try {
        const response = await fetch(`${this.url}/watch/events`, { headers: this.headers });
        if (response.status === 401) return this.told.refused();
        if (!response.ok) throw new Error(`the server answered ${response.status}`);
        await this.read(response.body);
        this.told.state("the connection has ended");
      } catch (error) {
        this.told.state(`no connection: ${error.message}`);
      }
      await new Promise((again) => setTimeout(again, AGAIN_MILLISECONDS));
    }
  }

  // Server-sent events: each is a line `data: ...` and an empty line.
  async read(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let isFirst = true;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events.filter((one) => one.startsWith("data: "))) {
        const message = JSON.parse(event.slice(6));
        if (isFirst) this.told.hello(message);
        else if ("ended" in message) this.told.state(message.ended);
        else this.told.update(message);
        isFirst = false;
      }
    }
  }

  // The answer, or an Error with the server's own sentence. Without a body it is a GET.
  async ask(path, body) {
    const headers = { ...this.headers, "Content-Type": "application/json" };
    const change = body ? { method: "POST", body: JSON.stringify(body) } : {};
    const response = await fetch(`${this.url}/watch/${path}`, { headers, ...change }).catch(() => {
      throw new Error(`${this.url || "the server"} does not answer (yet): try again`);
    });
    const content = await response.json().catch(() => ({}));
    if (response.ok) return content;
    const { error, detail } = content;
    throw new Error(error?.message ?? error ?? detail?.[0]?.msg ?? detail ?? `the server answered ${response.status}`);
  }
}
