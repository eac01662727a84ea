// What has just happened, in one sentence: the newest preemption, arrival at the cache, end or loss.

import { count } from "inspector/dom";

const FRESH_SECONDS = 4; // of the reader’s: how long a sentence stays
const NOTHING = { text: "", isLoss: false };

// speed: engine’s seconds in one of the reader’s.
export function newest(store, time, speed) {
  const since = time - FRESH_SECONDS * speed;
  const moment = store.at(time);
  if (!moment) return NOTHING;
  const last = store.columnAt(time) - 1;
  for (let column = last; column >= store.first && store.step(column).e > since; column--) {
    const step = store.step(column);
    if (step.preempted?.length) return { text: preemption(store, step), isLoss: true };
  }
  const lost = lossWords(store, moment, since);
  if (lost) return { text: lost, isLoss: true };
  const started = (request) => store.step(request.columns[0])?.s ?? -1;
  const hit = [...store.requests.values()].findLast(
    (request) => request.cached && started(request) > since && started(request) <= time,
  );
  if (!hit) return NOTHING;
  const found = `${count(hit.cached)} of its ${count(hit.promptTokens)} prompt tokens`;
  return { text: `${hit.letter} found ${found} in the tree: they were not run.`, isLoss: false };
}

function preemption(store, step) {
  const held = (number) => store.at(step.s - 1e-4)?.memory.pages.get(number)?.length ?? 0;
  const each = step.preempted.map((number) => `${store.request(number).letter} (${held(number)} pages)`);
  const are =
    each.length > 1
      ? "were preempted: they give their pages back and run"
      : "was preempted: it gives its pages back and runs";
  return `Step ${count(step.i)}: no page was free. The youngest, ${each.join(" and ")}, ${are} again later.`;
}

function lossWords(store, moment, since) {
  const before = store.at(since);
  const lost = (moment.stats.workers_lost ?? 0) - (before.stats.workers_lost ?? 0);
  const resumed = (moment.stats.requests_resumed ?? 0) - (before.stats.requests_resumed ?? 0);
  if (lost <= 0) return "";
  const again = resumed === 1 ? "1 request was" : `${count(resumed)} requests were`;
  return `A worker died. ${again} begun again elsewhere, from the tokens that clients have.`;
}
