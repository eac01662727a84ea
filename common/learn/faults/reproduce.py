"""The beginning of every my/bug_17/reproduce.py."""

HEAD = '''"""Bug {number}: {symptom}

Run it with {python} {script}. It fails as long as the bug is there.
"""

import sys
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), {root!r}]

from common.loader import load_model
from common.reference import Reference
from common.request import Request
from common.sampling import SamplingParams
from common.stages import load_engine, load_stage_module

stage = partial(load_stage_module, {stage!r})  # stage("scheduler").Scheduler
Engine = load_engine({stage!r})
endless = partial(SamplingParams, ignore_eos=True)
loaded = load_model(device="cpu", dtype="float32")
STORY = "Once upon a time, there was"


def finish(engine):
    while engine.has_unfinished:
        engine.step()


def compare(engine, *prompts, tokens=12):
    """Fail unless the engine gives the greedy tokens of transformers."""
    for answer in engine.generate(prompts, endless(max_tokens=tokens)):
        wanted = Reference().generate(answer.prompt_token_ids, tokens, ignore_eos=True)
        text = loaded.tokenizer.decode(wanted)
        assert answer.token_ids == wanted, f"{{answer.text!r}} in place of {{text!r}}"


'''
