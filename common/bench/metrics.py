"""What a server's speed is called, and how it is computed: the definitions of `vllm bench serve`.

TTFT   time to first token: request sent to its first text
ITL    inter-token latency: the gaps between the chunks of one answer, after the first
TPOT   time per output token: (E2EL - TTFT) / (output tokens - 1)
E2EL   end-to-end latency: request sent to the end of its answer
Throughput is the output tokens of successful requests, goodput the number of successful requests that meet every
objective, both divided by the wall time of the whole run. All times are seconds, seen by the client.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy

LATENCIES = ("ttft", "tpot", "itl", "e2el")


@dataclass
class RequestRecord:
    """One request as its client saw it; moments in seconds on one clock."""

    start: float
    end: float = 0.0
    chunks: list[float] = field(default_factory=list)  # when each piece of text arrived; an unstreamed answer is one
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None  # why it failed
    text: str = ""  # of the answer; a client of the engine itself leaves it empty

    @property
    def success(self) -> bool:
        return self.error is None

    @property
    def ttft(self) -> float:
        return self.chunks[0] - self.start

    @property
    def itl(self) -> list[float]:
        return [after - before for before, after in pairwise(self.chunks)]

    @property
    def p99_itl(self) -> float:
        """Return the 99th percentile of its own gaps; 0 for an answer in one chunk, which meets any objective."""
        return percentiles(self.itl)["p99"] if self.itl else 0.0

    @property
    def tpot(self) -> float:
        """Return 0 for an answer of one token, which meets any objective."""
        return (self.e2el - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def e2el(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class LoadResult:
    """All requests of one run, its wall time, and the processor time that its client took; in seconds."""

    records: list[RequestRecord]
    seconds: float
    client_seconds: float = 0.0

    def checked(self) -> "LoadResult":
        """Return this result. Raise RuntimeError with the reason if a request failed."""
        for record in self.records:
            if not record.success:
                raise RuntimeError(f"a request failed: {record.error}")
        return self

    @property
    def successful(self) -> list[RequestRecord]:
        return [record for record in self.records if record.success]

    def values(self, metric: str) -> list[float]:
        """Return all values of "ttft", "itl", "tpot" or "e2el": one for each successful request, or for each gap."""
        if metric == "itl":
            return [gap for record in self.successful for gap in record.itl]
        if metric == "tpot":  # An answer of one token has none.
            return [record.tpot for record in self.successful if record.output_tokens > 1]
        return [getattr(record, metric) for record in self.successful]

    @property
    def throughput(self) -> float:
        """Return output tokens of successful requests per second."""
        return sum(record.output_tokens for record in self.successful) / self.seconds

    @property
    def processed_per_second(self) -> float:
        """Return tokens that the model ran per second: prompts and answers, without each answer's last token."""
        return sum(record.prompt_tokens + record.output_tokens - 1 for record in self.successful) / self.seconds

    def goodput(self, objectives: Mapping[str, float]) -> float:
        """Return requests per second that meet every objective, such as {"ttft": 0.2, "tpot": 0.05}, in seconds."""
        return len(self.meeting(objectives)) / self.seconds

    def meeting(self, objectives: Mapping[str, float]) -> list[RequestRecord]:
        """Return the successful requests that meet every objective."""
        keeps = objectives.items()
        return [record for record in self.successful if all(getattr(record, name) <= most for name, most in keeps)]

    def figures(self) -> dict[str, Any]:
        """Return all of this as JSON values, with `percentiles` of each of LATENCIES, None of one without values."""
        latencies = {name: self.values(name) for name in LATENCIES}
        return {
            "requests": len(self.records),
            "failed": len(self.records) - len(self.successful),
            "failures": dict(Counter(record.error for record in self.records if record.error).most_common()),
            "seconds": self.seconds,
            "client_busy": self.client_seconds / self.seconds,  # 1.0 is one core, all that one event loop can use
            "prompt_tokens": sum(record.prompt_tokens for record in self.successful),
            "output_tokens": sum(record.output_tokens for record in self.successful),
            "requests_per_second": len(self.successful) / self.seconds,
            "output_tokens_per_second": self.throughput,
            **{name: percentiles(values) if values else None for name, values in latencies.items()},
        }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return {"mean", "p50", "p90", "p99"}, interpolated linearly, of one value or more."""
    by_rank = {f"p{rank}": float(numpy.percentile(values, rank)) for rank in (50, 90, 99)}
    return {"mean": float(numpy.mean(values)), **by_rank}
