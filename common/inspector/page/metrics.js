// The field's figures, from what a store has seen: over the last few seconds, or the last minute with requests for
// percentiles.

const RATE_SECONDS = 2;
export const WINDOW_SECONDS = 60;
const MOST_GAPS = 4000; // of a minute that percentiles are taken from, evenly spaced: a busy engine makes 100,000
const IDLE_SECONDS = 0.25; // a client that asks its next question may leave an engine empty for less
const ONE_CHUNK_SECONDS = 2e-4; // tokens of one step come as one chunk: no client sees a gap between them

// At one moment: a value for each figure, null where there is nothing to tell yet. speed: of the clock.
export function figuresAt(store, time, speed) {
  const moment = store.at(time);
  if (!moment) return null;
  const { stats } = moment;
  const [first, perToken, ranges] = [[], [], []];
  const since = endOfWork(store, time) - WINDOW_SECONDS;
  let recent = 0;
  for (const request of store.requests.values()) {
    if (request.arrived === null || (request.finished !== null && request.finished < since)) continue;
    const { tokens } = request;
    const [from, to] = [since, time].map((moment) => request.tokensAt(moment));
    if (from === to) continue;
    ranges.push({ tokens, from: Math.max(1, from), to });
    recent += to - request.tokensAt(time - RATE_SECONDS * speed);
    if (!from) first.push(1000 * request.firstToken);
    if (request.finished !== null && request.finished <= time && request.perToken !== null)
      perToken.push(1000 * request.perToken);
  }
  return {
    rate: recent / (RATE_SECONDS * speed),
    running: moment.running.length,
    waiting: moment.waiting.length,
    ttft: percentiles(first),
    itl: percentiles(gapsOf(ranges)),
    tpot: percentiles(perToken),
    memory: share(stats.kv_tokens_reserved, stats.kv_tokens_capacity),
    filled: share(stats.kv_tokens_used, stats.kv_tokens_reserved),
    hits: share(stats.prefix_tokens_hit, stats.prefix_tokens_asked),
    accepted: share(stats.accepted_tokens, stats.draft_tokens),
    preemptions: stats.preemptions ?? null,
    handed: stats.handoff_bytes ?? null,
  };
}

// Percent, or null where there is no whole.
const share = (part, whole) => (whole ? (100 * part) / whole : null);

// Output tokens, and the seconds that they took, since the engine last had no request: at most a minute. It stays when
// all have ended, so that two engines that got the same load compare, whichever ended first.
export function stretchAt(store, time) {
  const until = endOfWork(store, time);
  const spans = [];
  let since = until;
  let known = until - WINDOW_SECONDS;
  for (const request of store.requests.values()) {
    // What has no arrival ended before the page was opened, and its tokens are not known.
    if (request.arrived === null) known = Math.max(known, store.step(request.columns.at(-1))?.e ?? 0);
    else if (request.arrived <= time) {
      const end = Math.min(request.finished ?? time, time);
      if (end > known) spans.push({ request, end });
    }
  }
  for (const { request, end } of spans.sort((a, b) => b.end - a.end)) {
    if (end < since - IDLE_SECONDS) break;
    since = Math.min(since, request.arrived);
  }
  since = Math.max(since, known);
  const tokens = spans.reduce((sum, { request }) => sum + request.tokensAt(until) - request.tokensAt(since), 0);
  return { tokens, seconds: Math.max(0, until - since) };
}

// The last moment, up to this one, at which there was a request.
function endOfWork(store, time) {
  let end = 0;
  for (const { arrived, finished } of store.requests.values())
    if (arrived !== null && arrived <= time) end = Math.max(end, Math.min(finished ?? time, time));
  return end;
}

// Milliseconds between the chunks of these ranges of tokens.
function gapsOf(ranges) {
  const every = Math.ceil(ranges.reduce((sum, { from, to }) => sum + to - from, 0) / MOST_GAPS);
  const gaps = [];
  for (const { tokens, from, to } of ranges) {
    for (let at = from; at < to; at += every) {
      const gap = tokens[at].t - tokens[at - 1].t;
      if (gap > ONE_CHUNK_SECONDS) gaps.push(1000 * gap);
    }
  }
  return gaps;
}

function percentiles(values) {
  if (!values.length) return null;
  const sorted = Float64Array.from(values).sort();
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  return { p50: at(0.5), p99: at(0.99) };
}

// Where the time of the last steps went: milliseconds of a step for each part, on average; null if nothing is known.
export function partsAt(store, time, most = 60) {
  const end = store.columnAt(time);
  const steps = store.steps
    .slice(Math.max(0, end - store.first - most), end - store.first)
    .filter((step) => step.parts);
  const sums = {};
  for (const { parts } of steps)
    for (const [name, spent] of Object.entries(parts)) sums[name] = (sums[name] ?? 0) + spent / steps.length;
  return steps.length ? sums : null;
}
