"""Which parts there are, in the order in which they are run, and how long each takes."""

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

# What a part takes on an H200 (4.8 TB/s, some 800 TFLOP/s in bfloat16), of which each needs about 12 s to start: torch,
# transformers and CUDA have to come up. Together they stay under ALL_SECONDS, the limit of the whole. A part that takes
# PATIENCE times as long as is written here hangs, or runs on something much slower: it is ended.
ALL_SECONDS = 540.0
PATIENCE = 2.0


@dataclass(frozen=True)
class Part:
    """A module of this package with SIZES, TINY, measure(run) and, if it draws, draw(document, png, others)."""

    name: str
    seconds: float  # expected, on an H200 and with full sizes
    about: str

    @property
    def module(self) -> ModuleType:
        return import_module(f"{__package__}.{self.name}")


PARTS = {
    part.name: part
    for part in (
        # Some hundred kernels to compile, and 10 operations by torch.compile, 3 s each; then microseconds for each row.
        Part("kernels", 75, "tests of the kernels on this device, and their microbenchmarks"),
        # 40 tests of each stage, a stage in a process: as long as the slowest. The prompts are some 10,000 steps.
        Part("contract", 75, "the contract suite in float32, and logits in bfloat16 against float32, stages 01 to 07"),
        # 134,000 tokens four times: 5 s at 25,000 a second, 20 s where the CPU cannot keep up; 7 s each to warm up.
        Part("throughput", 100, "nano-vllm's workload: 256 requests at once, Qwen3-0.6B"),
        Part("transformers", 45, "the same workload by transformers' continuous batching"),
        # 16 and 30 GB of weights to make, then 8 times 128 tokens of 4 and 7 ms.
        Part("single", 35, "one request alone: time per token against the bytes it reads, Qwen3-8B and Qwen2.5-14B"),
        # 256 prompts of 1,024 tokens are 4.3 PFLOP: 8 s.
        Part("decode", 35, "a decode step of 1 to 256 requests against the bytes it reads, Qwen3-8B"),
        # Stage 03: 16 requests of 75 tokens, a second each. Stage 06: 25 s, most of it with one and four clients.
        Part("sweep", 60, "1 to 64 clients: stage 03, one request after another, and stage 06, Qwen2.5-14B"),
        # 3 x 2 x 40 prompts of 2,000 tokens are 8 PFLOP: 15 s.
        Part("prefix", 35, "stage 06 against 05: prompts that begin alike, and a conversation, Qwen3-8B"),
        Part("speculation", 30, "stage 07 against 06: prompt lookup on prompts that ask for a copy"),
        # 3 x 2 x 2 times 15,000 tokens of prompts are 3 PFLOP: 6 s.
        Part("chunked", 35, "gaps of those who decode while a long prompt arrives, Qwen3-8B"),
    )
}
