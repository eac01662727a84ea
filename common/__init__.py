"""What all stages share: the model, its loader, the sampler, the engine contract, and tools. README.md is the map."""

import os

# Between two operations OpenMP's workers spin, so that they start at once. GNU's (PyTorch's on Linux) would spin for
# milliseconds, on cores that another program could use, or uses while the workers wait for each other. 5,000 turns,
# about 0.1 ms, outlast the pauses within a step. torch reads this when it is loaded, and child processes inherit it.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

# Ask Linux for pages of 2 MB for large tensors: a step reads all weights, and with pages of 4 KB it would read their
# page table, too. torch reads this before it makes the first tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
