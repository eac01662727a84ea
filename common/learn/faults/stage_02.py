"""Faults that a learner meets in stage 02: positions, attention, memory, and the sampler that all stages share."""

from .fault import Fault

CONTRACT = "tests/test_contract.py::{} --engine 02_kv_cache"

FAULTS = [
    Fault(
        number=1,
        stage="02",
        symptom="The first token of every answer is right. What follows is nonsense.",
        difficulty=1,
        hints=(
            "Prefill gives the first token, decode all others. What does decode tell the model besides the token?",
            "Print `positions` in two steps of one request, and compare with `cache.length`.",
        ),
        story="The position of a new token comes from the length of this step's input, and in decode this input is "
        "one token long. So every generated token is rotated as if it stood at position 0. Prefill is right, "
        "which is why the first token is. mlx-vlm's Qwen3-Omni did this: one path ignored the offset of the "
        "cache, and the code that knew it was never reached.",
        source="Blaizzy/mlx-vlm#1983",
        file="02_kv_cache/engine.py",
        old="torch.arange(cache.length, cache.length + len(token_ids), device=self.device)",
        new="torch.arange(len(token_ids), device=self.device)",
        caught_by=CONTRACT.format("test_greedy_tokens_are_those_of_transformers"),
        reproduce="compare(Engine(loaded), STORY)",
    ),
    Fault(
        number=2,
        stage="02",
        symptom="Answers begin well and then lose all connection with the prompt.",
        difficulty=2,
        hints=(
            "How many of the cached tokens does a token in decode look at?",
            "Read what `is_causal` means in PyTorch if there are fewer queries than keys.",
        ),
        story="`is_causal=True` masks from the top left corner. With one query and S keys, that query sees the first "
        "key and no other. A mask that is right for prefill is wrong for decode, raises nothing, and gives "
        "numbers that look like attention. People who add a KV cache to a working model meet it again and "
        "again.",
        source="pytorch/pytorch#144858",
        file="02_kv_cache/kv_cache.py",
        old="return F.scaled_dot_product_attention(groups, k, v).view(q.shape)",
        new="return F.scaled_dot_product_attention(groups, k, v, is_causal=True).view(q.shape)",
        caught_by=CONTRACT.format("test_a_long_prompt"),
        reproduce="compare(Engine(loaded), STORY)",
    ),
    Fault(
        number=3,
        stage="02",
        symptom="The server's memory grows all day. It grows faster when users close their browsers early.",
        difficulty=1,
        hints=(
            "A request can end in several ways. Which of them frees its cache?",
            "Watch `engine.stats()['kv_tokens_reserved']` after `engine.abort`.",
        ),
        story="The normal end of a request frees its K/V, and the cancelled one was forgotten. In ATOM, a client that "
        "disconnected left its K/V blocks behind until max_tokens was reached. A resource needs one place that "
        "gives it back, whatever the reason of the end; here that is `release`.",
        source="ROCm/ATOM#1562",
        file="02_kv_cache/engine.py",
        old="        self.caches.pop(request.request_id, None)",
        new='        if request.finish_reason != "abort":\n            self.caches.pop(request.request_id, None)',
        caught_by=CONTRACT.format("test_interrupted_generate_leaves_nothing"),
        reproduce="""
engine = Engine(loaded)
request = engine.add(STORY, endless(max_tokens=50))
engine.step()
engine.abort(request.request_id)
assert engine.stats()["kv_tokens_reserved"] == 0, engine.stats()
""",
    ),
    Fault(
        number=4,
        stage="02",
        symptom="With top_p=0.9 answers are duller than those of other servers, and top_p=0.1 fails now and then.",
        difficulty=2,
        hints=(
            "Work out by hand which tokens top_p=0.6 keeps of the probabilities 0.5, 0.3, 0.2.",
            "Is a token judged by the mass in front of it, or by the mass up to and including it?",
        ),
        story="Top-p keeps the smallest set of tokens whose probabilities reach p. The token that crosses p belongs "
        "to the set. Compare with the sum that includes a token, and it falls out; if the first token alone "
        "crosses p, no token is left. llama.cpp had this; its tests only had sums that equal p exactly.",
        source="ggml-org/llama.cpp#1953",
        file="common/sampling.py",
        old="ahead = kept.cumsum(-1) - kept",
        new="ahead = kept.cumsum(-1)",
        caught_by="tests/common/test_sampling.py::test_distributions_worked_out_by_hand",
        reproduce="""
import torch

from common.sampling import probabilities

row = Request("a", [1], SamplingParams(temperature=1.0, top_p=0.6), None, frozenset(), 5)
[kept] = probabilities(torch.tensor([[0.5, 0.3, 0.2]]).log(), [row]).tolist()
assert [round(p, 3) for p in kept] == [0.625, 0.375, 0.0], kept
""",
    ),
    Fault(
        number=5,
        stage="02",
        symptom="With presence_penalty the answer avoids exactly the words that the question is about.",
        difficulty=1,
        hints=(
            "Which tokens count as having occurred before, for each of the three penalties?",
            "Presence and frequency are OpenAI's; repetition is CTRL's. They are defined differently.",
        ),
        story="The repetition penalty counts prompt and output, presence and frequency only the output. One function "
        "counts for all three, and it is easy to hand it the wrong list. TensorRT-LLM counted the prompt, vLLM "
        "did not, and the same request gave other answers.",
        source="NVIDIA/TensorRT-LLM#5623",
        file="common/penalties.py",
        old="output = _places([row.token_ids for row in rows], changed)",
        new="output = _places([[*row.prompt_token_ids, *row.token_ids] for row in rows], changed)",
        caught_by="tests/common/test_sampling.py::"
        "test_penalties_are_those_defined_and_greedy_is_argmax_of_what_they_leave",
        reproduce="""
import torch

from common.sampling import sample

row = Request("a", [1], SamplingParams(presence_penalty=2.0), None, frozenset(), 5)
[sampled] = sample(torch.tensor([[0.0, 3.0, 2.0]]), [row])
assert sampled.token_id == 1, "a token is penalised because the prompt has it"
""",
    ),
    Fault(
        number=6,
        stage="02",
        symptom="Chats with Llama 3 never end: after the answer the model goes on with both sides of the conversation.",
        difficulty=1,
        hints=(
            "Which tokens end an answer, and where does a checkpoint say so?",
            "Chat checkpoints name several end tokens, in generation_config.json. Look at the order of the files.",
        ),
        story="Llama 3 ends a text with one token and a turn of a chat with another. config.json names the first, "
        "generation_config.json names both. A server that reads config.json first never sees the end of a turn. "
        "It surprised vLLM and several others on the day Llama 3 appeared.",
        source="vllm-project/vllm#4182",
        file="common/loader/config.py",
        old='(folder / "generation_config.json", folder / "config.json")',
        new='(folder / "config.json", folder / "generation_config.json")',
        caught_by="tests/common/test_config.py::test_eos_token_ids",
        reproduce="""
import json
from tempfile import TemporaryDirectory

from common.loader.config import read_eos_token_ids

with TemporaryDirectory() as folder:
    Path(folder, "config.json").write_text(json.dumps({"eos_token_id": 128001}))
    Path(folder, "generation_config.json").write_text(json.dumps({"eos_token_id": [128001, 128009]}))
    assert read_eos_token_ids(Path(folder)) == {128001, 128009}, read_eos_token_ids(Path(folder))
""",
    ),
]
