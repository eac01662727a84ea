"""What is a drafter worth: how often is it right about which texts, and how much faster does it make how many requests?

    python -m common.checkpoints.benchmark --model smollm2 --dtype bfloat16

measures the drafter in my/drafter, which drafter.py made, beside prompt lookup. Each drafts a fixed number of tokens
for prompts that no drafter was trained on (benchmark.toml): questions, texts to quote, code, and conversations. Then
stage 06 and stage 07, which chooses how many tokens to draft, answer them greedily, at several batch sizes. The
prediction is the lesson's formula, g T(B) / (T((1 + d) B) + d t(B)): with d draft tokens a pass of each request gains
g tokens, both counted; T(n) and t(n) are the times of a pass of the target and of the draft model over n tokens.
"""

from collections.abc import Sequence
from pathlib import Path

from common.bench.engine_load import engine_load
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.workloads import Job
from common.loader import Loaded
from common.toml import read_toml

BEFORE, NOW = "06_prefix_cache", "07_speculative"
DRAFTERS = ("draft model", "lookup")
TOPICS: dict[str, list] = read_toml(Path(__file__).with_suffix(".toml"))["prompts"]


def prompts(loaded: Loaded, sizes: dict) -> dict[str, list[Job]]:
    """Return jobs by topic. A prompt is a user's text, or a list of texts of user and assistant in turn."""

    def job(prompt: str | Sequence[str]) -> Job:
        texts = [prompt] if isinstance(prompt, str) else prompt
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        ids = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        return Job(ids, sizes["most_tokens"], ignore_eos=False)

    return {topic: [job(prompt) for prompt in found[: sizes["prompts"]]] for topic, found in TOPICS.items()}


def answered(loaded: Loaded, jobs: Sequence[Job], batch: int, stage: str = NOW, **options) -> Figures:
    """Return the throughput of an engine, and of each pass of a request its draft tokens and the tokens it gains."""
    engine = engine_of(stage, loaded, kv_memory="1G", **options)
    engine_load(engine, jobs[:1], concurrency=1)  # warm-up
    before = engine.stats()
    result = engine_load(engine, jobs, concurrency=batch)
    after, tokens = engine.stats(), sum(record.output_tokens for record in result.records)
    drafted, accepted = (after.get(name, 0) - before.get(name, 0) for name in ("draft_tokens", "accepted_tokens"))
    passes = tokens - accepted  # Each pass gives one token of the target's own.
    found = {"tokens_per_second": tokens / result.seconds, "drafted": drafted / passes, "gained": tokens / passes}
    if costs := getattr(getattr(engine.scheduler, "speculation", None), "costs", None):
        drafts = found["drafted"]
        seconds = costs.target(batch * (1 + drafts)) + drafts * costs.drafting(batch)
        found["predicted"] = found["gained"] * costs.target(batch) / seconds
    return found


def measure(settings: Settings, sizes: dict) -> Figures:
    loaded, figures = settings.load(), {}
    topics = prompts(loaded, sizes)
    drafts = dict(zip(DRAFTERS, sizes["drafts"], strict=True))
    for name, draft in drafts.items():
        options = {"draft": draft, "num_draft_tokens": sizes["fixed"]}
        runs = [answered(loaded, jobs, len(jobs), **options) for jobs in topics.values()]
        figures[f"{name} accepted"] = [100 * (run["gained"] - 1) / (run["drafted"] or 1) for run in runs]
        figures[f"{name} gained"] = [run["gained"] for run in runs]
    mixed = [job for jobs in zip(*topics.values(), strict=True) for job in jobs]
    for batch, count in zip(sizes["batches"], sizes["jobs"], strict=True):
        plain = answered(loaded, mixed[:count], batch, BEFORE)["tokens_per_second"]
        for name, draft in drafts.items():
            run = answered(loaded, mixed[:count], batch, draft=draft)
            figures.setdefault(f"{name} speedup", []).append(run["tokens_per_second"] / plain)
            figures.setdefault(f"{name} predicted", []).append(run["predicted"])
        figures.setdefault("stage 06", []).append(plain)
    return figures


BENCHMARK = Benchmark.beside(__file__, __doc__, sides={NOW: measure})

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
