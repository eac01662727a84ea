"""How fast this machine runs stage 05, as one JSON line: `doctor` asks for it in the environment.

python -m common.bench.pace
"""

import json

import torch

from common.loader import load_model

from .settings import engine_of
from .steps import decode_seconds

REQUESTS, PROMPT, WARM_UP, STEPS = 8, 64, 8, 56
ELSEWHERE = "1.4 ms on two cores of an AMD EPYC"  # measured on 2026-11-24, with nothing else running


def main() -> None:
    loaded = load_model()
    engine = engine_of("05", loaded, kv_memory="64M")
    ms, device = 1e3 * decode_seconds(engine, REQUESTS, PROMPT, WARM_UP, STEPS), loaded.device.type
    said = f"one step in which {REQUESTS} requests decode: {ms:.1f} ms on {device} ({ELSEWHERE})"
    print(json.dumps({"said": said, "device": device, "cuda": torch.version.cuda}))


if __name__ == "__main__":
    main()
