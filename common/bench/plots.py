"""The look of every plot in the course: a colour per stage, one message as the title, labels on the lines.

    with plots.page(png, document, "Without a cache, every token costs more than the last", columns=2) as (left, right):
        plots.line(left, lengths, naive["ms_per_token"], "01_naive", "stage 01")
        plots.axes(left, "tokens in the sequence", "milliseconds per token")

The file is a PNG; `svg` returns a figure for a page. matplotlib is imported where something
is drawn, so that a machine without it can measure.
"""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from .documents import write_atomically

COLORS = {
    "01": "#c8354b",  # red
    "02": "#00788a",  # teal
    "03": "#b97a00",  # amber
    "04": "#2f5fa8",  # blue
    "05": "#4f8a2c",  # green
    "06": "#7b4a9e",  # purple
    "07": "#e0591b",  # orange
    "08": "#2b2b38",  # ink
}
REFERENCE = "#7d7d7d"  # transformers
PREDICTION = "#555555"
GUESS = "#c2459a"  # pink: no stage has it
TEXT, SMALL_PRINT, EDGE, GRID, PAPER = "#222222", "#666666", "#888888", "#e4e4e4", "#ffffff"
WIDTH_INCHES, DPI = 10.0, 160  # 1600 pixels, and 12 point type is still legible at half of them
LINE = 140  # characters of small print
STYLE = Path(__file__).with_suffix(".mplstyle")


@contextmanager
def page(
    png: Path,
    document: dict[str, Any] | str,
    message: str,
    *,
    rows: int = 1,
    columns: int = 1,
    height: float = 4.8,
    remark: str = "",
    mosaic: list[list[str]] | None = None,
) -> Iterator[list]:
    """Give the panels of one picture, row by row; when the block ends they are labelled and written to `png`.

    document: the results, whose footer says on what they were measured; or the footer itself.
    message: what the picture says, as its title, unless the harness marks the headline as noise. remark: what a reader
    must know to believe it, above the footer.
    mosaic: in place of rows and columns, the names of the panels where they lie; a panel may take several places.
    """
    import matplotlib
    from matplotlib.figure import Figure

    headline = {} if isinstance(document, str) else document.get("headline") or {}
    if "ratio" in headline and headline.get("doubt"):
        message = f"No result: {headline['doubt']}"
    with matplotlib.rc_context({}, STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DPI, layout="constrained")
        figure.get_layout_engine().set(wspace=0.06, hspace=0.08, w_pad=0.1, h_pad=0.1)
        cells = mosaic or [[f"{row} {column}" for column in range(columns)] for row in range(rows)]
        panels = list(figure.subplot_mosaic(cells).values())
        yield panels
        mark_guesses(figure, document)
        figure.suptitle(message, x=0.012, ha="left")
        below = document if isinstance(document, str) else footer(document)
        small = "\n".join(textwrap.fill(text, LINE) for text in f"{remark}\n{below}".lstrip().split("\n"))
        figure.supxlabel(small, x=0.012, ha="left", color=SMALL_PRINT)
        figure.get_layout_engine().execute(figure)  # Labels are placed by where the lines end on the page.
        for panel in panels:
            label_ends(panel)
        save(figure, png)


def save(figure, png: Path) -> None:
    """Write a palette PNG: a third of the size of a full-colour one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas, packed = FigureCanvasAgg(figure), io.BytesIO()
    canvas.draw()  # `savefig` would lay the page out once more, and pack it as a PNG to be read here again
    image = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    write_atomically(png, packed.getvalue())


def svg(figure, name: str) -> str:
    """Return a figure as an SVG element; name: for screen readers."""
    import matplotlib

    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    element = re.sub(r'<g id="[^"]*"', "<g", drawn.getvalue().partition("<svg")[2])  # Pictures would share ids.
    return f'<svg role="img" aria-label="{escape(name)}"{element}'


def footer(document: dict[str, Any]) -> str:
    """Return on what, with what and when it was measured, in two lines."""
    machine, settings = document["hardware"], document["settings"]
    weights = ", random weights" if settings["load_format"] == "dummy" else ""
    repeats = len(document["order"])
    spread = f" Medians of {repeats} repeats; bands and thin lines go from least to most." if repeats > 1 else ""
    measured = [f"torch {machine['torch']}", f"transformers {machine['transformers']}", machine["date"]]
    if machine["commit"]:
        measured.append(f"commit {machine['commit']}{' with changes' * machine['uncommitted_changes']}")
    return f"{place(machine)}; {settings['dtype']}; {settings['model']} model{weights}.{spread}\n{'; '.join(measured)}."


def place(machine: dict[str, Any]) -> str:
    """Return the hardware in a few words: "NVIDIA H200", or "AMD EPYC, 2 CPU cores"."""
    cores = machine["cpu_cores"]
    return machine["gpu"] or f"{machine['cpu']}, {cores} CPU core{'s' * (cores > 1)}"


def color(side: str) -> str:
    """Return the colour of a stage given as "02" or "02_kv_cache"; grey for whatever is no stage."""
    return COLORS.get(side[:2], REFERENCE)


def line(panel, x: Sequence[float], figure: dict[str, Any], side: str, label: str, *, dashed: bool = False) -> None:
    """Draw medians as a line, least and most as a band, the label at the end; dashed for what is no stage."""
    is_stage = side[:2] in COLORS
    style = {"linestyle": "--" if dashed or not is_stage else "-", "marker": "o"}
    if not is_stage:
        style["markerfacecolor"] = "white"
    panel.plot(x, figure["median"], color=color(side), label=label, **style)
    panel.fill_between(x, figure["min"], figure["max"], color=color(side), alpha=0.18, linewidth=0)


def steps(panel, figure: dict[str, Any], counts: Sequence[int], side: str, label: str) -> None:
    """Draw how many had happened by when: `figure` holds the moment of the first, the second, ..."""
    panel.plot(figure["median"], counts, color=color(side), label=label, drawstyle="steps-post")
    band = {"step": "pre", "color": color(side), "alpha": 0.18, "linewidth": 0}  # a step, like the line
    panel.fill_betweenx(counts, figure["min"], figure["max"], **band)


def predicted(panel, x: Sequence[float], figure: dict[str, Any], label: str, side: str | None = None) -> None:
    """Draw what arithmetic says of `side`, or of all: dashed, thin, without marks, since nothing was measured."""
    style = {"color": color(side) if side else PREDICTION, "linestyle": (0, (4, 3)), "linewidth": 1.3}
    panel.plot(x, figure["median"], label=label, zorder=4, **style)  # It is drawn over the line that it predicts.


def bars(panel, sides: Sequence[str], figures: Sequence[dict], labels: Sequence[str], *, lying: bool = False) -> None:
    """Draw one bar for each side, its value at its end, a thin line from least to most. lying: from top to bottom."""
    figure = {key: [each[key] for each in figures] for key in ("median", "min", "max")}
    draw_bars(panel, labels, figure, 0.6, list(map(color, sides)), lying=lying)
    if lying:
        panel.set(xticks=[], xmargin=0.2, ymargin=0.02)
        panel.grid(visible=False)
        panel.spines["bottom"].set_visible(False)
        panel.invert_yaxis()
    else:
        panel.margins(y=0.12)


def bar_page(
    png: Path, document: dict[str, Any], message: str, remark: str, heights: dict[str, Any], unit: str
) -> None:
    """Draw a page with a bar for each label of `heights`, in the colour of stage 06."""
    with page(png, document, message, height=4.2, remark=remark) as (panel,):
        bars(panel, ["06"] * len(heights), list(heights.values()), list(heights))
        axes(panel, "", unit)


def grouped_bars(panel, groups: Sequence, figures: dict[str, dict], tints: dict[str, str]) -> None:
    """Draw in each group a bar for each label of `figures`, in its tint, with a thin line from least to most."""
    width = 0.84 / len(figures)
    for number, (label, figure) in enumerate(figures.items()):
        places = [group + (number - (len(figures) - 1) / 2) * width for group in range(len(groups))]
        draw_bars(panel, places, figure, 0.92 * width, tints[label], label=label, size=9)
    panel.set_xticks(range(len(groups)), [str(group) for group in groups])
    panel.margins(y=0.16)


def draw_bars(panel, places, figure, width, tint, *, lying=False, label="_", size=11) -> None:
    """Draw bars with a thin line from least to most, and beyond it the value.

    On an axis that is logarithmic already, where lengths say nothing, these are dots.
    """
    dots = "log" in (panel.get_xscale(), panel.get_yscale())
    medians = figure["median"]
    each = list(zip(medians, figure["min"], figure["max"], strict=True))
    reach = [[median - least for median, least, _ in each], [most - median for median, _, most in each]]
    draw, direction = (panel.barh, "xerr") if lying else (panel.bar, "yerr")
    style = {"label": label, "ecolor": TEXT, "error_kw": {"elinewidth": 1.2}, direction: reach}
    if dots:
        panel.scatter(*([medians, places] if lying else [places, medians]), s=80, c=tint, zorder=3)
    bars = draw(places, medians, width, color="none" if dots else tint, **style)
    panel.bar_label(bars, [*map(short, medians)], padding=9 if dots else 4, fontsize=size)


def short(value: float) -> str:
    """Return three digits, or all before the decimal point if there are more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def stack(panel, labels: Sequence[str], heights: dict[str, Sequence[float]], tints: dict[str, str]) -> None:
    """Draw one bar for each label, made of parts from bottom to top; medians."""
    base = [0.0] * len(labels)
    for part, values in heights.items():
        panel.bar(labels, values, width=0.6, bottom=base, color=tints[part], label=part)
        base = [low + value for low, value in zip(base, values, strict=True)]


def axes(panel, x_label: str, y_label: str, title: str = "", ticks: Sequence[float] = ()) -> None:
    """Set names, units and the ticks of the x axis; the y axis begins at 0, because a ratio is read off heights."""
    panel.set(xlabel=x_label, ylabel=y_label, title=title)
    if ticks:
        panel.set_xticks(ticks)
    if panel.get_yscale() == "linear":
        panel.set_ylim(bottom=0)


def from_edge_to_edge(panel, left: float | None = None) -> None:
    """Let lines fill the panel, so that neither axis nor grid goes through the name at a line's end; left: the edge."""
    panel.margins(x=0)
    panel.set_xlim(left=left)
    for line in panel.get_lines():
        line.set_clip_on(False)


def doubling(panel, values: Sequence[float]) -> None:
    """Make the x axis logarithmic, with a tick at each of the measured values."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(values, [str(value) for value in values])
    panel.set_xticks([], minor=True)


def logarithmic(panel, which: str = "y", subs: Sequence[float] = (1, 3)) -> None:
    """Make an axis logarithmic, with ticks that are plain numbers: 1, 3, 10, 30 ..."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set(**{f"{which}scale": "log"})
    axis = panel.xaxis if which == "x" else panel.yaxis
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def note(panel, x: float, y: float, text: str, *, above: float = 0, align: str = "left", tint: str = TEXT) -> None:
    """Write text at a point of the data, `above` points above it."""
    style = {"ha": align, "va": "bottom", "color": tint, "fontsize": 11}
    panel.annotate(text, (x, y), (0, above), textcoords="offset points", **style)


def label_ends(panel) -> None:
    """Write each line's label beside its last point, and move labels apart that would overlap."""
    lines = [line for line in panel.get_lines() if not line.get_label().startswith("_")]
    ends = [(line.get_xdata()[-1], line.get_ydata()[-1]) for line in lines]
    heights = [panel.transData.transform(end)[1] * 72 / panel.figure.dpi for end in ends]  # points
    places = apart(heights, [15.0 * (line.get_label().count("\n") + 1) for line in lines])
    for line, end, height, place in zip(lines, ends, heights, places, strict=True):
        style = {"va": "center", "color": line.get_color(), "fontsize": 11}
        panel.annotate(line.get_label(), end, (8, place - height), textcoords="offset points", **style)


def apart(centers: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Return centres of intervals of these heights, moved just enough that none overlap."""
    places = list(centers)
    order = sorted(range(len(places)), key=lambda i: places[i])
    for _ in range(200):  # each pass halves an overlap on both sides; a handful of labels settles at once
        for low, high in pairwise(order):
            overlap = (heights[low] + heights[high]) / 2 - (places[high] - places[low])
            if overlap > 0:
                places[low] -= overlap / 2
                places[high] += overlap / 2
    return places


def mark_guesses(figure, document: dict[str, Any] | str) -> None:
    """Draw the guesses of `predict` over what was measured, as diamonds in the panels whose titles they have.

    Each is a mark with "panel", "x", "y" and "name"; names are shown where a panel has guesses about several figures.
    """
    questions = [] if isinstance(document, str) else document.get("questions", [])
    marks = [mark for question in questions for mark in question["marks"]]
    shown: list = []
    for panel in figure.axes:
        if not (here := [mark for mark in marks if mark["panel"] == panel.get_title("left")]):
            continue
        least, most = panel.get_ylim()
        for mark in here:
            height = mark["y"] if mark["y"] or panel.get_yscale() == "linear" else least  # a logarithmic axis has no 0
            style = {"color": GUESS, "markeredgecolor": "white", "markersize": 8, "zorder": 6, "clip_on": False}
            shown = panel.plot(mark["x"], height, "D", label="_guess", **style)
            least, most = min(least, height), max(most, 1.05 * height)
            if len({each["name"] for each in here}) > 1:
                style = {"textcoords": "offset points", "ha": "right", "va": "center", "fontsize": 10, "color": GUESS}
                ground = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1}  # lines pass behind
                panel.annotate(mark["name"], (mark["x"], height), (-8, 0), bbox=ground, **style)
        panel.set_ylim(least, most)
    if shown:
        figure.legend(shown, ["your guess"], loc="lower right", frameon=False)
