"""The recording and the picture of the page in each lesson: its scene is played, opened in Chromium, and photographed.

    python3 -m common.inspector.screenshots [--stages 05 06]    writes results/watch.html and watch.png of each stage
    python3 -m common.inspector.screenshots --renew             the same recordings in the page as it is now
    python3 -m common.inspector.screenshots --out DIR           elsewhere, with pictures at all widths, light and dark

README.md says how to get Chromium and Playwright.
"""

import argparse
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image

from common.errors import InvalidInput
from common.loader import load_model
from common.stages import stage_folder

from .browser import chromium
from .recording import renew, write_recording
from .scenes import SCENES, play

# Width and height in pixels, and whether the type is large.
SCREENS = {"laptop": (1280, 800, False), "projector": (1920, 1080, True), "phone": (390, 844, False)}
THEMES = ("light", "dark")
SHOW = {"01": 0.85, "06": 0.5, "08": 0.5}  # the moment of a recording, where it is not its end
COLOURS = 256  # of a picture: a third of the bytes, and no difference to the eye
SETTLE_MILLISECONDS = 1500  # for all lines of the figures to be drawn


def photograph(browser, recording: Path, picture: Path, moment: float, screen: str = "laptop", theme: str = "light"):
    """Open a recording, show this share of its time, and write a PNG of the page."""
    width, height, is_large = SCREENS[screen]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    page.goto(recording.resolve().as_uri())
    page.wait_for_selector(".player")
    if is_large:
        page.click("text=Larger")
    page.evaluate(
        "(share) => { const { clock } = inspector; clock.running = false;"
        " clock.show(clock.oldest + share * (clock.newest - clock.oldest)); }",
        moment,
    )
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    image = Image.open(BytesIO(page.screenshot(full_page=True)))
    image.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(picture, optimize=True)
    page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", default=list(SCENES), choices=list(SCENES))
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: the results folder of each stage")
    parser.add_argument("--renew", action="store_true", help="play nothing: keep what is recorded, renew the page")
    args = parser.parse_args()
    loaded = None if args.renew else load_model(device="cpu", dtype="float32")
    with chromium() as browser:
        for stage in args.stages:
            folder = stage_folder(stage)
            out = args.out or folder / "results"
            out.mkdir(parents=True, exist_ok=True)
            recording = out / (f"{folder.name}.html" if args.out else "watch.html")
            if args.renew:
                renew(recording)
            else:
                write_recording(recording, [play(stage, loaded)])
            looks = [(screen, theme) for screen in SCREENS for theme in THEMES] if args.out else [("laptop", "light")]
            for screen, theme in looks:
                name = f"{recording.stem}-{screen}-{theme}" if args.out else recording.stem
                picture = out / f"{name}.png"
                photograph(browser, recording, picture, SHOW.get(stage, 1.0), screen, theme)
                print(picture, flush=True)


if __name__ == "__main__":
    try:
        main()
    except InvalidInput as error:
        sys.exit(f"error: {error}")
