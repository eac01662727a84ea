"""The recording and the picture of the page in each lesson: a scene is played on the stage's engine, without a server,
opened in Chromium, and photographed. The scenes are in lessons.toml.

    python3 -m common.inspector.screenshots [--stages 05 06]    writes results/watch.html and watch.png of each stage
    python3 -m common.inspector.screenshots --renew             the same recordings in the page as it is now

The stage on the course's front page has six moving seconds, too, watch_light.webp and watch_dark.webp.

README.md says how to get Chromium and Playwright.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image

from common.errors import InvalidInput
from common.loader import Loaded, chat_prompt, load_model
from common.sampling import SamplingParams
from common.setup.machine import browser
from common.stages import load_engine, stage_folder
from common.terminal import parser_of, run_to_end

from .document import read_recording, write_recording
from .feed import Tape
from .lessons import FILE, TEXTS, lesson_of
from .watched import Watched

SCENES = FILE["scenes"]
SCREEN = {"width": 1280, "height": 800}  # pixels
COLOURS = 256  # of a picture: a third of the bytes, and no visible difference
FRONT, TOP = "06", (0, 0, 1280, 478)  # the stage on the course's front page, and what is shown there: Time and Memory
SETTLE_MILLISECONDS = 1500  # for all lines of the figures to be drawn
FILM_SECONDS, FRAMES_PER_SECOND, FRAME_MILLISECONDS = 6, 10, 150  # The last is the wait until a frame is drawn.
WHY_NOT = "needs a browser: apt install chromium, pip install playwright (common/inspector/README.md)"
# No host is looked up. The menus of the address bar, which no page shows, would be half of all that Chromium computes.
# Our list of disabled features replaces Playwright's: the features in its list would ask hosts on the Internet.
QUIET = [
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup",
]


def play(number: str, loaded: Loaded) -> list[str]:
    """Return the lines of a recording of a stage's scene: its hello, and its updates."""
    scene, stage = SCENES[number], stage_folder(number)
    lesson = lesson_of(stage.name)
    engine = load_engine(number)(loaded, **lesson["options"] | scene.get("options", {}))
    engine.hooks.append(watched := Watched(engine))
    tape = Tape(json.dumps(watched.view.hello() | {"name": stage.name, "lesson": lesson}))
    watched.open_reader(tape)
    system, coming, steps = TEXTS.get(scene.get("system"), ""), list(scene["requests"]), 0
    while steps < scene["steps"] and (coming or engine.has_unfinished):
        while coming and coming[0][0] <= steps:
            _, tokens, prompt = coming.pop(0)
            prompt = TEXTS.get(prompt, prompt)
            token_ids = chat_prompt(engine.tokenizer, prompt, system)
            watched.view.entitle(token_ids, prompt)
            engine.add(token_ids, SamplingParams(max_tokens=tokens))
        watched.look_soon()  # A recording is played slowly: each step needs its own moment.
        engine.advance()
        steps = max(steps + 1, engine.trace.steps) if number == "08" else steps + 1
    return tape.lines


@contextmanager
def chromium() -> Iterator:
    """Yield a Playwright browser. Raise InvalidInput if there is no Chromium or no Playwright."""
    if (path := browser()) is None:
        raise InvalidInput(WHY_NOT)
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise InvalidInput(WHY_NOT) from error
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield launched
        launched.close()


def opened(chromium, recording: Path, scheme: str):
    """Return the page of a recording. scheme: light or dark."""
    page = chromium.new_page(viewport=SCREEN, color_scheme=scheme)
    page.goto(recording.resolve().as_uri())
    page.wait_for_selector(".player")
    return page


def photograph(chromium, recording: Path, picture: Path, step: int | None) -> None:
    """Open a recording, show the moment at which this step has ended, or the last, and write a PNG of the page."""
    page = opened(chromium, recording, "light")
    page.evaluate(
        "(step) => { const { clock, stores: [store] } = inspector; clock.running = false;"
        " clock.show(step === null ? clock.newest : store.hello.began + store.endOf(step)); }",
        step,
    )
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    image = Image.open(BytesIO(page.screenshot(full_page=True)))
    image.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(picture, optimize=True)
    page.close()


def film(chromium, recording: Path, picture: Path, scheme: str) -> None:
    """Play a recording for FILM_SECONDS and write what is shown there, without sound or end, as an animated WebP."""
    page = opened(chromium, recording, scheme)
    images, count = [], round(FILM_SECONDS * FRAMES_PER_SECOND)
    for frame in range(count):
        page.evaluate(
            "(share) => { const { clock } = inspector; clock.running = false;"
            " clock.show(clock.oldest + share * (clock.newest - clock.oldest)); }",
            frame / (count - 1),
        )
        page.wait_for_timeout(SETTLE_MILLISECONDS if frame == 0 else FRAME_MILLISECONDS)
        images.append(Image.open(BytesIO(page.screenshot())).convert("RGB").crop(TOP))
    images[0].save(
        picture,
        save_all=True,
        append_images=images[1:],
        duration=1000 // FRAMES_PER_SECOND,
        loop=0,
        quality=60,
        method=6,
    )
    page.close()


def main() -> None:
    args = parser_of("python -m common.inspector.screenshots", __doc__).parse_args()
    loaded = None if args.renew else load_model(device="cpu", dtype="float32")
    with chromium() as browser:
        for stage in args.stages or SCENES:
            recording = stage_folder(stage) / "results" / "watch.html"
            write_recording(recording, read_recording(recording) if args.renew else [play(stage, loaded)])
            picture = recording.with_suffix(".png")
            photograph(browser, recording, picture, SCENES[stage].get("picture"))
            if stage == FRONT:
                Image.open(picture).crop(TOP).save(picture.with_name("watch_top.png"), optimize=True)
                for scheme in ("light", "dark"):
                    film(browser, recording, picture.with_name(f"watch_{scheme}.webp"), scheme)
            print(picture, flush=True)


if __name__ == "__main__":
    run_to_end(main)
