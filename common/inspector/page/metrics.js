// The field's figures, from what a store has seen: over the last few seconds, or the last minute for percentiles.

export const RATE_SECONDS = 2;
export const WINDOW_SECONDS = 60;

// At one moment: a value for each figure, null where there is nothing to tell yet.
export function figuresAt(store, time) {
  const moment = store.at(time);
  if (!moment) return null;
  const { stats } = moment;
  const [first, gaps, perToken, recent] = [[], [], [], { tokens: 0 }];
  for (const request of store.requests.values()) {
    if (request.arrived === null || (request.finished !== null && request.finished < time - WINDOW_SECONDS)) continue;
    collect(request, time, first, gaps, recent);
    if (request.finished !== null && request.finished <= time && request.perToken !== null) perToken.push(1000 * request.perToken);
  }
  const capacity = stats.kv_tokens_capacity;
  return {
    rate: recent.tokens / RATE_SECONDS,
    running: moment.running.length,
    waiting: moment.waiting.length,
    ttft: percentiles(first),
    itl: percentiles(gaps),
    tpot: percentiles(perToken),
    memory: capacity ? (100 * stats.kv_tokens_reserved) / capacity : null,
    hits: stats.prefix_tokens_asked ? (100 * stats.prefix_tokens_hit) / stats.prefix_tokens_asked : null,
    accepted: stats.draft_tokens ? (100 * stats.accepted_tokens) / stats.draft_tokens : null,
    preemptions: stats.preemptions ?? null,
    handed: stats.handoff_bytes ?? null,
  };
}

function collect(request, time, first, gaps, recent) {
  const { tokens } = request;
  const since = time - WINDOW_SECONDS;
  if (tokens.length && tokens[0].t <= time && tokens[0].t > since) first.push(1000 * request.firstToken);
  for (let at = tokens.length - 1; at >= 0 && tokens[at].t > since; at--) {
    if (tokens[at].t > time) continue;
    if (tokens[at].t > time - RATE_SECONDS) recent.tokens += 1;
    // Tokens of one step come as one chunk: no client sees a gap between them.
    if (at && tokens[at].t - tokens[at - 1].t > 2e-4) gaps.push(1000 * (tokens[at].t - tokens[at - 1].t));
  }
}

function percentiles(values) {
  if (!values.length) return null;
  values.sort((a, b) => a - b);
  const at = (share) => values[Math.min(values.length - 1, Math.floor(share * values.length))];
  return { p50: at(0.5), p99: at(0.99) };
}

// Where the time of the last steps went: milliseconds of a step for each part, on average.
export function partsAt(store, time, steps = 60) {
  const sums = {};
  let counted = 0;
  const end = store.columnAt(time);
  for (let column = Math.max(store.first, end - steps); column < end; column++) {
    const { parts } = store.step(column);
    if (!parts) continue;
    counted += 1;
    for (const [name, spent] of Object.entries(parts)) sums[name] = (sums[name] ?? 0) + spent;
  }
  return counted ? Object.entries(sums).map(([name, sum]) => [name, sum / counted]) : null;
}
