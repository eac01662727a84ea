"""Pictures of the page: each stage's scene is played, recorded, opened in a browser and photographed.

    python3 -m common.inspector.screenshots --out DIR [--stages 05 06] [--recordings]

Needs Chromium and Playwright: README.md says how to get them.
"""

import argparse
import shutil
import sys
from pathlib import Path

from common.loader import load_model
from common.stages import stage_folder

from .recording import write_recording
from .scenes import SCENES, play

# Width and height in pixels, and whether the type is large: a laptop, and a projector.
SCREENS = {"laptop": (1280, 800, False), "projector": (1920, 1080, True)}
THEMES = ("light", "dark")
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync".split()
)
SHOW = {"08": 0.62}  # the moment of a recording, where it is not its end
SETTLE_MILLISECONDS = 1000  # for all lines of the figures to be drawn


def photograph(chromium, recording: Path, out: Path, moment: float) -> list[Path]:
    """A picture for each screen and theme, as out/NAME-SCREEN-THEME.png."""
    pictures = []
    for screen, (width, height, is_large) in SCREENS.items():
        for theme in THEMES:
            page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            page.goto(recording.resolve().as_uri())
            page.wait_for_selector(".player")
            if is_large:
                page.evaluate("document.documentElement.classList.add('large')")
            page.evaluate(
                "(share) => { const { clock } = inspector; clock.running = false;"
                " clock.show(clock.oldest + share * (clock.newest - clock.oldest)); }",
                moment,
            )
            page.wait_for_timeout(SETTLE_MILLISECONDS)
            pictures.append(out / f"{recording.stem}-{screen}-{theme}.png")
            page.screenshot(path=pictures[-1])
            page.close()
    return pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--stages", nargs="+", default=list(SCENES), choices=list(SCENES))
    parser.add_argument("--recordings", action="store_true", help="only write the recordings, which needs no browser")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    loaded = load_model(device="cpu", dtype="float32")
    recordings = {}
    for stage in args.stages:
        recordings[stage] = args.out / f"{stage_folder(stage).name}.html"
        write_recording(recordings[stage], [play(stage, loaded)])
        print(recordings[stage], flush=True)
    if args.recordings:
        return
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        sys.exit("pictures need Playwright: pip install playwright (common/inspector/README.md)")
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        sys.exit("pictures need a browser: apt install chromium (common/inspector/README.md)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=QUIET)
        for stage, recording in recordings.items():
            for picture in photograph(chromium, recording, args.out, SHOW.get(stage, 1.0)):
                print(picture, flush=True)
        chromium.close()


if __name__ == "__main__":
    main()
