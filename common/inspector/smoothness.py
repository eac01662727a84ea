"""How smoothly the page is dragged through a long past: a hundred requests, ten thousand steps, in Chromium.

    python3 -m common.inspector.smoothness [--out FILE]

Stage 05's engine takes the steps, 32 requests at a time, with a model that computes nothing. Then a pointer drags
through the timeline in several places, and the page notes when each frame is drawn. A frame is late if the one before
it was drawn more than 25 ms ago: at 60 frames a second, at least one was left out. The last line is JSON.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import torch

from common.bench.documents import write_json
from common.bench.hardware import hardware
from common.loader import load_model
from common.process import freeze_loaded_objects
from common.sampling import SamplingParams
from common.stages import load_engine, stage_folder

from .browser import chromium
from .recording import write_recording
from .scenes import Tape, hello
from .watched import Watched

REQUESTS, STEPS, AT_ONCE = 100, 10_000, 32
LATE_MILLISECONDS = 25
PLACES, MOVES = 12, 60  # drags, and moves of the pointer in each
EDGE = "inspector.views[0].timeline.edge"
NOTE_FRAMES = """() => {
  window.frames_ = [];
  window.noting_ = true;
  const note = (now) => { window.frames_.push(now); if (window.noting_) requestAnimationFrame(note); };
  requestAnimationFrame(note);
}"""


class Blank:
    """A model of the narrow waist that computes nothing: all next tokens are likely alike."""

    def __init__(self, config):
        self.config = config

    def __call__(self, token_ids, positions, attend) -> torch.Tensor:
        return torch.zeros(len(token_ids), 1)

    def logits(self, hidden) -> torch.Tensor:
        return torch.zeros(len(hidden), self.config.vocab_size)


def long_past() -> list[str]:
    """Return the lines of a recording in which every step has a moment of its own."""
    draft = load_model("draft", device="cpu", dtype="float32")
    draft = replace(draft, model=Blank(draft.config))
    length = draft.config.context_length - 64
    memory = AT_ONCE * draft.config.context_length * draft.config.kv_bytes_per_token(draft.dtype)
    watched = Watched(load_engine("05")(draft, kv_memory=memory, max_running=AT_ONCE))
    watched.feed = tape = Tape()
    rng = Random(0)
    for _ in range(REQUESTS):
        prompt = [rng.randrange(2, draft.config.vocab_size) for _ in range(rng.randrange(8, 60))]
        watched.add(prompt, SamplingParams(max_tokens=rng.randrange(length // 2, length), ignore_eos=True))
    freeze_loaded_objects()
    while watched.trace.steps < STEPS and watched.has_unfinished:
        watched.look_soon()
        watched.step()
    return [hello(watched, stage_folder("05")), *tape.lines]


def drag(page) -> list[float]:
    """Drag the timeline to and fro in places spread over the past; return the milliseconds between frames."""
    page.evaluate("inspector.clock.running = false")
    box = page.locator("canvas.timeline").bounding_box()
    middle, gaps = box["y"] + box["height"] / 2, []
    for place in range(PLACES):
        share = (place + 1) / (PLACES + 1)
        page.evaluate("(share) => inspector.clock.show(inspector.clock.oldest + share * "
                      "(inspector.clock.newest - inspector.clock.oldest))", share)  # fmt: skip
        page.mouse.move(box["x"] + box["width"] * 0.6, middle)
        page.wait_for_timeout(500)
        page.mouse.down()
        edge = page.evaluate(EDGE)
        page.evaluate(NOTE_FRAMES)
        for move in range(MOVES):
            there = move if move < MOVES // 2 else MOVES - move
            page.mouse.move(box["x"] + box["width"] * (0.6 - 0.01 * there), middle)
            page.wait_for_timeout(12)
            if move == MOVES // 2 and page.evaluate(EDGE) == edge:
                raise RuntimeError("the pointer drags nothing")
        page.evaluate("window.noting_ = false")
        page.mouse.up()
        frames = page.evaluate("window.frames_")
        gaps += [after - before for before, after in zip(frames, frames[1:], strict=False)]
    return gaps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON there, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        recording = Path(folder) / "past.html"
        write_recording(recording, [long_past()])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(recording.resolve().as_uri(), timeout=120_000)
        page.wait_for_selector(".player", timeout=120_000)
        past = page.evaluate("[inspector.stores[0].requests.size, inspector.stores[0].columns]")
        page.wait_for_timeout(2000)
        gaps = sorted(drag(page))
    late = sum(gap > LATE_MILLISECONDS for gap in gaps)
    document = {
        "hardware": hardware(torch.device("cpu")), "requests": past[0], "steps": past[1], "frames": len(gaps),
        "frames_per_s": 1000 * len(gaps) / sum(gaps), "late": late, "late_share": late / len(gaps),
        "milliseconds": {"p50": statistics.median(gaps), "p99": gaps[int(0.99 * len(gaps))], "longest": gaps[-1]},
    }  # fmt: skip
    print(write_json(args.out, document) if args.out else json.dumps(document))


if __name__ == "__main__":
    main()
