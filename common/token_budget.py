"""How many tokens a step takes at most where `--token-budget` does not say.

A request that decodes waits for its next token while a step runs, pieces of prompts included: so a step should not take
longer than an objective. But a small budget costs throughput, since each pass reads all weights, and leaves little room
for prompts beside the requests that decode. On a CPU the budget is as large as the objective allows, so it depends on
the machine, the model and its type. Attention is not counted: it grows with the text.
"""

import math
import time

import torch

from .loader import Loaded

# The most. On a GPU always: Python launches the kernels of a prompt one by one, 2 to 3 ms in all for 28 layers, and a
# piece of this size keeps a GPU busy for as long.
MOST = 2048
LEAST = 64
# The objective: shorter pauses are not felt as such (Miller 1968, Response Time in Man-Computer Conversational
# Transactions). Many prompts at once also interrupt fewer answers when few steps take them all.
STEP_SECONDS = 0.1
TIMES = 3  # the fastest counts, since whatever disturbs a pass makes it longer


def choose_token_budget(loaded: Loaded, default: int, max_running: int) -> tuple[int, str]:
    """Return the budget, and one line that says why if it was measured.

    On a CPU halve MOST as often as necessary for a pass of STEP_SECONDS, but not below LEAST, or max_running, since
    each running request needs its token. Ranks that share a model must choose alike: they take the engine's default.
    """
    if loaded.device.type == "cuda":
        return max(MOST, max_running), ""
    if loaded.shard.ranks > 1:
        return max(default, max_running), ""
    sizes = [MOST]
    while sizes[-1] // 2 >= max(LEAST, max_running):
        sizes.append(sizes[-1] // 2)
    if len(sizes) == 1:  # so many requests may run at once that there is no choice
        return max(MOST, max_running), ""
    budget = sizes.pop()
    pass_seconds(loaded, 1, times=1)  # not measured: the first pass may load or compile kernels, which takes longer
    while sizes and (seconds := pass_seconds(loaded, size := sizes.pop())) <= STEP_SECONDS:
        budget = size
    return budget, f"token_budget={budget} (a pass of {size} tokens takes {1e3 * seconds:.0f} ms)"


@torch.inference_mode()
def pass_seconds(loaded: Loaded, tokens: int, times: int = TIMES) -> float:
    """Return the seconds of a pass over this many tokens without attention; stop measuring once the answer is clear.

    times: how many passes, at most. The seconds are this thread's processor time, in which the pauses that other
    programs cause do not count.
    """
    ids, fastest = torch.zeros(tokens, dtype=torch.int64), math.inf
    for _ in range(times):
        start = time.thread_time()
        loaded.model(ids, ids, lambda layer, q, k, v: q)
        fastest = min(fastest, time.thread_time() - start)
        if not STEP_SECONDS < fastest < 4 * STEP_SECONDS:
            break
    return fastest
