"""What all stages share: the model, its loader, the sampler, the engine contract, and tools. README.md is the map."""

import os

# Between two operations OpenMP's workers spin, ready at once. GNU's (of PyTorch on Linux) would do so for milliseconds,
# on cores that another program could use, and does use while they wait for each other. This many turns, about 0.1 ms,
# outlast the gaps of a step. It is read when torch is loaded, and child processes inherit it.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

# Large tensors lie in pages of 2 MB where Linux gives them to programs that ask: a step reads all weights, and with
# pages of 4 KB their table, too. It is read before the first tensor is made.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
