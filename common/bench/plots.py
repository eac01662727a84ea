"""The look of every plot in the course: a colour per stage, one message as the title, labels on the lines.

    with plots.page(png, document, "Without a cache, every token costs more than the last", columns=2) as (left, right):
        plots.line(left, lengths, naive["ms_per_token"], "01_naive", "stage 01")
        plots.axes(left, "tokens in the sequence", "milliseconds per token")

matplotlib is imported by `page` alone, so that a machine without it can measure.
"""

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
TEXT = "#222222"
WIDTH_INCHES, DPI = 10.0, 160  # 1600 pixels, and 12 point type is still legible at half of them
LINE = 140  # characters of small print that fit beside each other
STYLE = {
    "font.size": 12,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 12.5,
    "axes.titlepad": 10,
    "axes.ymargin": 0.08,
    "axes.titleweight": "bold",
    "grid.color": "#e4e4e4",
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "ytick.left": False,
    "lines.linewidth": 2.4,
    "lines.markersize": 5.5,
}


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
    widths: Sequence[float] | None = None,
) -> Iterator[list]:
    """Give the panels of one picture, row by row; when the block ends they are labelled and written to `png`.

    document: the results, whose footer says on what they were measured; or the footer itself.
    message: what the picture says, as its title. remark: what a reader must know to believe it, above the footer.
    mosaic: in place of rows and columns, the names of the panels where they lie; a panel may take several places.
    widths: of the mosaic's columns, in proportion.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DPI, layout="constrained")
        figure.get_layout_engine().set(wspace=0.06, hspace=0.08, w_pad=0.1, h_pad=0.1)
        cells = mosaic or [[f"{row} {column}" for column in range(columns)] for row in range(rows)]
        panels = list(figure.subplot_mosaic(cells, width_ratios=widths).values())
        yield panels
        mark_guesses(panels, document)
        figure.suptitle(message, x=0.012, ha="left", fontsize=15, fontweight="bold")
        below = document if isinstance(document, str) else footer(document)
        small = "\n".join(textwrap.fill(line, LINE) for line in f"{remark}\n{below}".strip().splitlines())
        figure.supxlabel(small, x=0.012, ha="left", fontsize=8.5, color="#666666")
        figure.draw_without_rendering()  # the labels keep apart by where the lines end on the page
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


def footer(document: dict[str, Any]) -> str:
    """Return on what, with what and when it was measured, in two lines."""
    machine, settings = document["hardware"], document["settings"]
    weights = ", random weights" if settings["load_format"] == "dummy" else ""
    repeats = len(document["order"])
    spread = f" Medians of {repeats} repeats, bands from least to most." if repeats > 1 else ""
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
    band(panel, x, figure["min"], figure["max"], side)
    if "reference" in figure:  # the figure is a learner's (learner.py)
        panel.plot(x, figure["reference"]["median"], ":", color=TEXT, linewidth=1.5, label="reference")


def steps(panel, figure: dict[str, Any], counts: Sequence[int], side: str, label: str) -> None:
    """Draw how many had happened by when: `figure` holds the moment of the first, the second, ..."""
    panel.plot(figure["median"], counts, color=color(side), label=label, drawstyle="steps-post")
    panel.fill_betweenx(counts, figure["min"], figure["max"], color=color(side), alpha=0.18, linewidth=0)


def band(panel, x: Sequence[float], low: Sequence[float], high: Sequence[float], side: str) -> None:
    panel.fill_between(x, low, high, color=color(side), alpha=0.18, linewidth=0)


def predicted(panel, x: Sequence[float], figure: dict[str, Any], label: str) -> None:
    """Draw what arithmetic says: dashed, thin and without marks, since nothing was measured."""
    style = {"color": PREDICTION, "linestyle": (0, (4, 3)), "linewidth": 1.3}
    panel.plot(
        x, figure["median"], label=label, zorder=4, **style
    )  # on top: where it holds, it covers what it predicts


def bars(panel, sides: Sequence[str], figures: Sequence[dict[str, Any]], labels: Sequence[str]) -> None:
    """Draw one bar for each side, its value on top, a thin line from least to most."""
    medians = [figure["median"] for figure in figures]
    reach = [[figure["median"] - figure["min"] for figure in figures]]
    reach += [[figure["max"] - figure["median"] for figure in figures]]
    panel.bar(labels, medians, width=0.6, color=[color(side) for side in sides])
    panel.errorbar(labels, medians, yerr=reach, fmt="none", ecolor=TEXT, elinewidth=1.2)
    for place, figure in enumerate(figures):
        note(panel, place, figure["max"], short(figure["median"]), above=4, align="center")
        if "reference" in figure:  # the figure is a learner's (learner.py)
            height = figure["reference"]["median"]
            panel.plot([place - 0.3, place + 0.45], [height] * 2, ":", color=TEXT, linewidth=1.5, label="reference")
    panel.margins(y=0.12)


def grouped_bars(
    panel,
    groups: Sequence[Any],
    figures: dict[str, dict[str, Any]],
    tints: dict[str, str],
    texts: dict[str, Sequence[str]],
) -> None:
    """Draw in each group a bar for each label of `figures`, in its tint, with a thin line from least to most.

    texts: what is written above the bars of a label, one for each group; by default their values.
    """
    width = 0.84 / len(figures)
    for number, (label, figure) in enumerate(figures.items()):
        places = [group + (number - (len(figures) - 1) / 2) * width for group in range(len(groups))]
        panel.bar(places, figure["median"], 0.92 * width, color=tints[label], label=label)
        panel.vlines(places, figure["min"], figure["max"], TEXT, linewidth=1.2)
        above = texts.get(label) or [short(median) for median in figure["median"]]
        for place, most, text in zip(places, figure["max"], above, strict=True):
            note(panel, place, most, text, above=3, align="center", size=9)
    panel.set_xticks(range(len(groups)), [str(group) for group in groups])
    panel.margins(y=0.16)


def floor_line(panel, count: int, height: float, text: str) -> None:
    """Draw across `count` bars, dashed, what arithmetic says is the least, or the most; named at its end."""
    panel.plot([-0.4, count - 0.6], [height] * 2, "--", color=PREDICTION, linewidth=1.3, label=text, zorder=4)


def short(value: float) -> str:
    """Three digits, or all before the decimal point if there are more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def stack(panel, labels: Sequence[str], heights: dict[str, Sequence[float]], tints: dict[str, str]) -> None:
    """Draw one bar for each label, made of parts from bottom to top; medians. The last bar names them."""
    base = [0.0] * len(labels)
    for part, values in heights.items():
        panel.bar(labels, values, width=0.6, bottom=base, color=tints[part], label=f"_{part}")
        base = [low + value for low, value in zip(base, values, strict=True)]
    handles = [panel.containers[i] for i in range(len(heights))][::-1]
    panel.legend(handles, list(heights)[::-1], loc="upper left", frameon=False, fontsize=10.5)


def axes(panel, x_label: str, y_label: str, title: str = "") -> None:
    """Set names and units; the y axis begins at 0, because a ratio is read off heights."""
    panel.set_xlabel(x_label)
    panel.set_ylabel(y_label)
    panel.set_title(title)
    if panel.get_yscale() == "linear":
        panel.set_ylim(bottom=0)


def doubling(panel, values: Sequence[float]) -> None:
    """Make the x axis logarithmic, with a tick at each of the measured values."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(values, [str(value) for value in values])
    panel.set_xticks([], minor=True)


def logarithmic(panel) -> None:
    """Make the y axis logarithmic, with ticks that are plain numbers: 1, 3, 10, 30 ..."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def note(
    panel, x: float, y: float, text: str, *, above: float = 0, align: str = "left", tint: str = TEXT, size: float = 11
) -> None:
    """Write text at a point of the data, `above` points above it, of `size` points."""
    style = {"ha": align, "va": "bottom", "color": tint, "fontsize": size}
    panel.annotate(text, (x, y), (0, above), textcoords="offset points", **style)


def label_ends(panel) -> None:
    """Write each line's label beside its last point, and move labels apart that would overlap."""
    lines = [line for line in panel.get_lines() if not line.get_label().startswith("_")]
    ends = [(line.get_xdata()[-1], line.get_ydata()[-1]) for line in lines]
    heights = [panel.transData.transform(end)[1] * 72 / DPI for end in ends]  # points
    places = apart(heights, [15.0 * (line.get_label().count("\n") + 1) for line in lines])
    for line, end, height, place in zip(lines, ends, heights, places, strict=True):
        style = {"va": "center", "color": line.get_color(), "fontsize": 11}
        panel.annotate(line.get_label(), end, (8, place - height), textcoords="offset points", **style)


def apart(centers: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Return centres of intervals of these heights, moved as little as keeps them from overlapping."""
    places = list(centers)
    order = sorted(range(len(places)), key=lambda i: places[i])
    for _ in range(200):  # each pass halves an overlap on both sides; a handful of labels settles at once
        for low, high in zip(order, order[1:], strict=False):
            overlap = (heights[low] + heights[high]) / 2 - (places[high] - places[low])
            if overlap > 0:
                places[low] -= overlap / 2
                places[high] += overlap / 2
    return places


def mark_guesses(panels: Sequence, document: dict[str, Any] | str) -> None:
    """Draw the guesses of `predict` over what was measured, as diamonds in the panels whose titles they have.

    Each is a mark with "panel", "x", "y" and "name"; names are shown where a panel has guesses about several figures.
    """
    questions = [] if isinstance(document, str) else document.get("questions", [])
    marks = [mark for question in questions for mark in question["marks"]]
    for panel in panels:
        if here := [mark for mark in marks if mark["panel"] == panel.get_title("left")]:
            least, most = panel.get_ylim()
            heights = [mark["y"] for mark in here]
            if panel.get_yscale() == "log":  # which has no place for 0 but its edge
                least = min([least, *(0.9 * height for height in heights if height > 0)])
            panel.set_ylim(least, max(most, 1.08 * max(heights)))
            style = {"marker": "D", "s": 60, "color": GUESS, "edgecolor": "white", "zorder": 6, "clip_on": False}
            shown = panel.scatter(
                [mark["x"] for mark in here], [max(height, least) for height in heights], label="your guess", **style
            )
            panel.legend(handles=[shown], frameon=False, fontsize=10.5)
            if len({mark["name"] for mark in here}) > 1:
                for mark in here:
                    above = {"xytext": (-8, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
                    panel.annotate(mark["name"], (mark["x"], max(mark["y"], least)), color=GUESS, fontsize=10, **above)
