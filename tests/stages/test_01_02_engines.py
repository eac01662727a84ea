"""How many tokens stages 01 and 02 run in each step, and what stage 02 reserves for them."""

import pytest
import torch

from common.loader import find_checkpoint
from common.loader.config import read_config
from common.sampling import SamplingParams
from common.stages import load_engine


def tokens_of_each_step(stage: str, loaded, prompt: list[int], max_tokens: int) -> list[int]:
    engine = load_engine(stage)(loaded)
    engine.generate([prompt], SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    return [step.tokens for step in engine.trace]


def test_01_runs_the_whole_sequence_for_every_token(loaded, prompts):
    p = len(prompts[0])
    assert tokens_of_each_step("01", loaded, prompts[0], 5) == [p, p + 1, p + 2, p + 3, p + 4]


@pytest.mark.parametrize("stage", ["02", "03"])
def test_02_runs_the_prompt_once_and_then_one_token_a_step(loaded, prompts, stage):
    assert tokens_of_each_step(stage, loaded, prompts[0], 5) == [len(prompts[0]), 1, 1, 1, 1]


def test_the_arithmetic_of_a_model_that_people_know():
    tiny_llama = read_config(find_checkpoint("TinyLlama-1.1B", with_weights=False))
    assert 50 * tiny_llama.kv_bytes_per_token(torch.float32) == 2_252_800
