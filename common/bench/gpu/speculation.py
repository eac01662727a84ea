"""What are guesses worth on a GPU? Prompt lookup on prompts that ask for a copy, stages 06 and 07.

Method. Whether a guess is right depends on what the model says, and a model with random weights says nothing: so the
bundled, trained checkpoint writes here, and the share of guesses that it accepts is a real one. It is so small that a
step is all launches, and stage 06 has graphs and overlap against them, which a pass that verifies guesses has not. What
a pass over several tokens costs a model that reads gigabytes is measured on Qwen3-8B with random weights, launched
operation by operation; the two together predict what prompt lookup would bring to such a model on such prompts.

Expectation. A pass over nine tokens reads the same weights as one over a single token, and on a GPU arithmetic is free
until some hundred tokens. So a guess costs next to nothing, and k guesses of which each is right with probability a
bring 1 + a + ... + a^k tokens a pass.
"""

from pathlib import Path
from typing import Any

from common.bench import plots
from common.bench.engine_load import engine_load
from common.engine import BaseEngine
from common.stages import load_stage_module

from .run import Run, free_memory

BEFORE, NOW = "06_prefix_cache", "07_speculative"
ENGINES = {
    "stage_06": (BEFORE, {}),
    "lookup": (NOW, {"draft": "lookup"}),
    "lookup_8": (NOW, {"draft": "lookup", "num_draft_tokens": 8}),
}
SIZES: dict[str, Any] = {
    "model": "bundled",
    "large_model": "Qwen3-8B",
    "batches": [1, 8, 32],
    "copies": 64,
    "warm_up": 32,  # more such prompts
    "copy_tokens": 40,  # of an answer that is a copy, at least
    "most_tokens": 128,
    "guesses": [0, 1, 2, 4, 8],
    "passes": [1, 2, 4, 8, 16, 32, 64, 128, 256],
}
TINY = SIZES | {
    "large_model": "tiny",
    "batches": [1],
    "copies": 2,
    "warm_up": 1,
    "most_tokens": 12,
    "guesses": [0, 8],
    "passes": [1, 2, 4],
}


def measure(run: Run) -> None:
    sizes = run.sizes
    benchmark = load_stage_module(NOW, "benchmark")
    loaded = run.load(sizes["model"])
    copying = benchmark.copying(loaded, sizes | {"copies": sizes["copies"] + sizes["warm_up"]})
    warm_up, jobs = copying[: sizes["warm_up"]], copying[sizes["warm_up"] :]  # no prompt twice: both find prefixes
    runs: list[dict[str, dict[str, float]]] = []
    for batch in sizes["batches"]:
        runs.append({})
        for name, (stage, options) in ENGINES.items():
            engine = run.engine(stage, loaded, kv_memory="1G", **options)
            engine_load(engine, warm_up, concurrency=batch)
            result = engine_load(engine, jobs, concurrency=batch)
            runs[-1][name] = benchmark.summary([result], engine.stats())
            del engine
            free_memory(run.device)
        figures = {name: {key: [one[name][key] for one in runs] for key in runs[0][name]} for name in ENGINES}
        run.keep(batches=sizes["batches"][: len(runs)], bundled=figures)
        rates = {name: f"{runs[-1][name]['tokens_per_second']:,.0f}" for name in ENGINES}
        run.say(f"{batch} at once, output tokens per second: {rates}")
    accepted = figures["lookup_8"]["acceptance"][0] / 100
    del loaded
    free_memory(run.device)

    large = run.load(sizes["large_model"])
    engine = run.engine(NOW, large, kv_memory="2G", draft="lookup")
    pass_ms = pass_times(engine, sizes["passes"])
    share = benchmark.per_guess(accepted, 8)
    predicted = [predicted_speedup(engine, share, k) for k in sizes["guesses"]]
    run.keep(large_pass_ms=pass_ms, right_guesses=share, large_predicted_speedup=predicted)
    run.say(
        f"{sizes['large_model']}: a pass over 1 token {pass_ms[0]:.2f} ms; a guess is right in {share:.0%} of cases"
    )
    lookup, before = (figures[name]["tokens_per_second"][0] for name in ("lookup", "stage_06"))
    run.headline(**{"copying, bundled model": lookup / before, "predicted for the large one": max(predicted)})


def pass_times(engine: BaseEngine, passes: list[int]) -> list[float]:
    """Milliseconds of a pass over so many tokens, as the engine has measured them for itself when it started."""
    return [1e3 * engine.scheduler.speculation.costs.target(tokens) for tokens in passes]


def predicted_speedup(engine: BaseEngine, share: float, guesses: int) -> float:
    """Of one request, if each of so many guesses is right with probability `share` as long as those before it are."""
    target = engine.scheduler.speculation.costs.target
    return sum(share**i for i in range(guesses + 1)) * target(1) / target(1 + guesses)


def draw(document: dict, png: Path, others: dict[str, dict]) -> None:
    sizes, figures = document["sizes"], document["figures"]
    batches, bundled = figures["batches"], figures["bundled"]
    speedups = {
        name: [
            mine / theirs
            for mine, theirs in zip(
                bundled[name]["tokens_per_second"], bundled["stage_06"]["tokens_per_second"], strict=True
            )
        ]
        for name in ("lookup", "lookup_8")
    }
    most = max(figures["large_predicted_speedup"])
    message = f"Copying, prompt lookup makes one stream {speedups['lookup'][0]:.1f} times as fast"
    remark = (
        f"Left: the bundled, trained model on {sizes['copies']} prompts that ask for a copy, relative to stage 06; of "
        f"eight guesses {bundled['lookup_8']['acceptance'][0]:.0f} percent are accepted. Middle:\n"
        f"{sizes['large_model']}, random weights, each token of another request with 128 before it. Right: computed "
        f"from both, for {sizes['large_model']}; up to {most:.1f}."
    )
    with plots.page(png, document, message, columns=3, remark=remark) as (measured, passes, predicted):
        measured.axhline(1, color=plots.REFERENCE, linewidth=1)
        for name, label, dashed in (("lookup", "as many\nas pay", False), ("lookup_8", "always 8", True)):
            values = speedups[name]
            figure = {"median": values, "min": values, "max": values}
            plots.line(measured, batches, figure, NOW, label, dashed=dashed)
        plots.doubling(measured, batches)
        plots.axes(measured, "requests at once", "speed-up over stage 06", "Copying, bundled model")
        times = figures["large_pass_ms"]
        plots.line(passes, sizes["passes"], {"median": times, "min": times, "max": times}, NOW, "")
        plots.doubling(passes, sizes["passes"])
        passes.tick_params(axis="x", labelsize=9.5)
        plots.axes(passes, "tokens in the pass", "milliseconds", f"A pass of {sizes['large_model']}")
        plots.predicted(predicted, sizes["guesses"], {"median": figures["large_predicted_speedup"]}, "")
        predicted.set_xticks(sizes["guesses"])
        plots.axes(predicted, "guesses for each token", "speed-up", "One request, computed")
