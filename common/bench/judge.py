"""Judges a server: how much it gives while first tokens and gaps keep their objectives, beside the reference here.

    python3 course.py judge http://127.0.0.1:8000
    python3 course.py judge http://127.0.0.1:8000 --out results/anna.json --seed 7
    python3 course.py judge http://127.0.0.1:8000 --ttft-ms 300 --itl-ms 40 --reference "06 --model smollm2"

The server is any that speaks OpenAI's API on this machine. It runs already; the reference, a stage of the course, is
started for each of its turns. They take turns, in alternating order, under the same load: questions to a help desk,
with the same rules before each, and one question in five below one of three long handbooks. Requests arrive at random
(Poisson), 2 a second, then 4, 8, 16 and 32, until fewer than half of them meet the objectives.

A request meets them if its first token comes within --ttft-ms, and 99 percent of the gaps between its chunks are
within --itl-ms. Goodput is the requests that do, per second of the run; the best of all rates is the score. Only
standard fields are sent, at temperature 0: an answer ends where the model ends it, or at its limit. So requests are the
same work only for the same model: where few answers are the reference's, the score is marked with "?".

A server that has been asked these questions before may have cached them: restart it, or give another --seed.
It takes about four minutes, and the file that it writes is for `course.py compare`. Ctrl-C ends it without a file.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from common.checkpoints.corpus import SYSTEM_PROMPTS, terms
from common.errors import InvalidInput, counted, expect_writable
from common.terminal import note, parser_of, run_to_end

from . import summary
from .ceilings import ceilings, reference_ms
from .client import Target, find_target, generate_load
from .compare.sources import JUDGE
from .documents import write_json
from .hardware import hardware, slug
from .harness import Headline, alternate
from .load import running_server
from .metrics import LoadResult
from .plots import short
from .serve import DRAWN_EVERY, latency_cells, wanted
from .settings import Settings
from .suite import RESULTS
from .workloads import Job, worded_jobs

RATES, SECONDS, MIN_REQUESTS = (2, 4, 8, 16, 32), 8, 24  # Each rate has rate * SECONDS requests, at least MIN_REQUESTS.
ALONE = 10  # requests that come one at a time, before the first rate
EVERY_LONG, HANDBOOKS, PARAGRAPHS = 5, 3, 30  # One request in five follows a handbook of about a thousand tokens.
MAX_TOKENS = 192  # of an answer
SAME_MODEL = 0.5  # share of equal answers: with fewer, the sides run different models
SIDES = ("reference", "server")
HEADLINE = Headline(
    "goodput: first token within {ttft_ms} ms, a request's p99 gap within {itl_ms} ms",
    "requests/s",
    {side: [side, "goodput"] for side in SIDES},
)
ROW = "{:<9} {:>5} {:>8} {:>8} | {:>8} {:>7} | {:>7} {:>7} | {:>4} {:>4} {:>6}"
HEADS = ("", "rate", "goodput", "tokens/s", "TTFT p50", "p99, ms", "ITL p50", "p99, ms", "late", "slow", "failed")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the server that the command line names, and write a results file; return the exit status."""
    args = parse_arguments(arguments)
    try:
        document = judge(args, find_target(args.url, first_job(args), wanted(args)))
    except KeyboardInterrupt:
        note("interrupted: nothing is written")
        return 130
    path = args.out or RESULTS / f"{slug(document['machine'])}-judge.json"
    write_json(path, document)
    print(f"{summary.table(document)}\n{path}")
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    tables = "course.py judge", "of a server under load", "of the judge"
    parser = parser_of(tables[0], __doc__, *tables)
    parser.set_defaults(endpoint="chat")
    args = parser.parse_args(arguments)
    if args.out:
        expect_writable(args.out)
    return args


def judge(args: argparse.Namespace, target: Target) -> dict[str, Any]:
    """Let both sides take their turns; return the results file. Raise InvalidInput if one has no goodput."""
    settings = Settings()
    place = settings.place()
    machine = hardware(place[0]) | settings.describe() | {"model": Path(target.model).name} | ceilings(*place)
    order, repeats, said, texts = alternate(SIDES, args.repeats), [], {}, {side: {} for side in SIDES}
    print(f"{target.model}, {args.endpoint}; the reference is stage {' '.join(args.reference)}\n\n{ROW.format(*HEADS)}")
    for repeat, sides in enumerate(order):
        repeats.append({})
        for side in sides:
            start, before = time.monotonic(), reference_ms(*place)
            rows, answers = take_turn(side, args, target, repeat)
            texts[side] |= answers
            goodput, times = max(row["goodput"] for row in rows[1:]), [before, reference_ms(*place)]
            figures = {"goodput": goodput, "rates": {row["rate"]: row for row in rows}}
            repeats[-1][side] = {"figures": figures, "reference_ms": times, "seconds": time.monotonic() - start}
            said[side] = explanation(side, rows, args)
    print("", *said.values(), sep="\n")
    for side in SIDES:
        if not all(repeat[side]["figures"]["goodput"] for repeat in repeats):
            raise InvalidInput(f"no request met the objectives of the {side}: give larger ones, --ttft-ms and --itl-ms")
    both = texts["server"].keys() & texts["reference"].keys()
    same = sum(texts["server"][key] == texts["reference"][key] for key in both)
    print(f"\n{same} of {len(both)} answers are the same on both sides, word for word.\n")
    sizes = {name: vars(args)[name] for name in ("ttft_ms", "itl_ms", "reference", "seed")} | {"rates": list(RATES)}
    document = summary.document_of(JUDGE, HEADLINE, sizes, order, repeats, hardware=machine)
    if same < SAME_MODEL * len(both):
        doubt = f"only {same} of {len(both)} answers are the reference's, and others are other work"
        document["headline"]["doubt"] = doubt
    return summary.with_entry(summary.new_summary(JUDGE, machine), document)


def take_turn(side: str, args: argparse.Namespace, target: Target, repeat: int) -> tuple[list[Row], dict]:
    """Load the server, or a reference that is started for it."""
    if side == "server":
        return climb(args, side, repeat, args.url, target)
    with running_server(args.reference[0], Settings(), *args.reference[1:]) as url:
        return climb(args, side, repeat, url, find_target(url, first_job(args), Target(endpoint=args.endpoint)))


def first_job(args: argparse.Namespace) -> Job:
    """Return a request that no run sends: once it is answered, a server is ready."""
    return jobs_of(1, args.seed, -1)[0]


def climb(
    args: argparse.Namespace, side: str, repeat: int, url: str, target: Target
) -> tuple[list[Row], dict[tuple, str]]:
    """Load the server at `url` at each rate, while it keeps the objectives for half of the requests.

    Return a row of figures for each rate, the first one for requests that came one at a time; and all answers' texts.
    """
    rows, texts = [], {}
    for place, rate in enumerate((0, *RATES)):
        count = max(MIN_REQUESTS, rate * SECONDS) if rate else ALONE
        jobs, load = jobs_of(count, args.seed, 10 * repeat + place), {"rate": rate} if rate else {"concurrency": 1}
        with tqdm(desc=f"{side}, {rate or 'alone'}", total=count, leave=False, mininterval=DRAWN_EVERY) as bar:
            result = generate_load(url, jobs, target, **load, seed=args.seed, answered=bar.update)
        rows.append(row := row_of(rate, result, args))
        print(printed(side, row), flush=True)
        texts |= {(repeat, rate, i): record.text for i, record in enumerate(result.records) if record.success}
        if rate and row["met"] < count / 2:
            break
    return rows, texts


def jobs_of(count: int, seed: int, number: int) -> list[Job]:
    """Return the requests of run `number`: each run has questions of its own, and all the same rules and handbooks."""
    rng = Random(f"handbooks/{seed}")
    books = [" ".join(terms.exchange(rng)[1] for _ in range(PARAGRAPHS)) for _ in range(HANDBOOKS)]
    jobs = worded_jobs("corpus", count, 0, MAX_TOKENS, seed=seed, number=number)
    read = [[books[place // EVERY_LONG % HANDBOOKS]] * is_long(place) for place in range(count)]
    texts = ["\n\n".join([SYSTEM_PROMPTS[8], *book, job.prompt]) for book, job in zip(read, jobs, strict=True)]
    return [replace(job, prompt=text) for job, text in zip(jobs, texts, strict=True)]


def is_long(place: int) -> bool:
    return place % EVERY_LONG == EVERY_LONG - 1


# ---- What clients see ----


def row_of(rate: int, result: LoadResult, args: argparse.Namespace) -> Row:
    """Return what the clients saw at one rate, times in seconds.

    late: requests whose first token broke its objective; slow: whose gaps did. long_gaps: those above the objective;
    beside_prompts: of these, the gaps during which a long prompt waited for its first token.
    """
    first, gap, good = args.ttft_ms / 1e3, args.itl_ms / 1e3, result.successful
    met = result.meeting({"ttft": first, "p99_itl": gap})
    waits = [(each.start, each.chunks[0]) for i, each in enumerate(result.records) if is_long(i) and each.success]
    pairs = [pair for record in good for pair in pairwise(record.chunks)]
    gaps = [(before, after) for before, after in pairs if after - before > gap]
    return result.figures() | {
        "rate": rate,
        "met": len(met),
        "late": sum(record.ttft > first for record in good),
        "slow": sum(record.p99_itl > gap for record in good),
        "goodput": len(met) / result.seconds,
        "long_gaps": len(gaps),
        "beside_prompts": sum(any(start < after and before < end for start, end in waits) for before, after in gaps),
        "good_tokens_per_second": sum(record.output_tokens for record in met) / result.seconds,
    }


def printed(side: str, row: Row) -> str:
    times = latency_cells(row, ("ttft", "itl")).values()
    rates = [short(row[name]) if row["rate"] else "" for name in ("goodput", "good_tokens_per_second")]
    return ROW.format(side, row["rate"] or "alone", *rates, *times, row["late"], row["slow"], row["failed"])


def explanation(side: str, rows: Sequence[Row], args: argparse.Namespace) -> str:
    """Say where a request's time goes at the first rate at which an objective breaks, or at the last rate.

    Prefill is the time to first token of requests that come one at a time; queue is the extra time under load.
    """
    alone, *loaded = rows
    row = next((each for each in loaded if each["met"] < each["requests"]), loaded[-1])
    if not (row["ttft"] and alone["ttft"]):
        return f"The {side} at {row['rate']}/s: {'; '.join(row['failures'] or alone['failures'])}."
    first, whole = row["ttft"]["mean"], row["e2el"]["mean"]
    prefill = min(alone["ttft"]["mean"], first)
    parts = {"queue": first - prefill, "prefill": prefill, "decode": whole - first}
    shares = ", ".join(f"{name} {part / whole:.0%}" for name, part in parts.items())
    said = f"The {side} at {row['rate']}/s: {shares} of a request's {whole:.2f} s. Of {row['requests']} requests "
    said += f"{row['late']} had a late first token, {row['slow']} slow gaps, and {row['failed']} failed. "
    beside = f"{row['beside_prompts']} of them while a long prompt waited"
    return f"{said}{counted(row['long_gaps'], 'gap')} above {args.itl_ms} ms, {beside}."


if __name__ == "__main__":
    run_to_end(main)
