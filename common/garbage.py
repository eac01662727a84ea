"""Python's garbage collector, and why it must not look at a loaded program again and again.

Now and then it visits every object there is, in search of cycles that nobody uses. With torch, transformers and a model
loaded these are some 400,000, and a visit takes about 0.2 s, in which no token comes. None of them is garbage.
"""

import atexit
import gc


def keep_what_is_loaded() -> None:
    """From now on the collector looks only at objects that are younger than this call (as vLLM's servers do)."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # or libraries that count what is left at the end report leaks
