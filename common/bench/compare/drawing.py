"""Draws every panel of the page as an SVG."""

from typing import Any

from .. import plots
from .panels import FEW, Column, Panel

WIDTH_INCHES = 5.2  # a phone shows it whole, with its type as large as on paper
CHART_INCHES, ROW_INCHES, LEGEND_INCHES = 1.7, 0.45, 0.2  # height of a chart, of a row of ratios, and of names
TYPE = {"font.size": 9, "axes.titlesize": 9}  # points
SMALL = 8  # points: digits and legends


def draw(panel: Panel) -> str:
    """Return the panel's charts, with a legend below them, as an SVG element."""
    import matplotlib
    from matplotlib.figure import Figure

    charts = list(dict.fromkeys(column.chart for column in panel.columns if column.chart))
    across = min(len(charts), 2 if len(charts) <= 2 * FEW else 3) or 1
    down = -(-len(charts) // across) or 1
    height = CHART_INCHES * down if charts else ROW_INCHES * len(panel.rows)
    keys = {each.label: each.tint for each in panel.columns if not (each.is_median and charts)}
    keys = {label: tint for label, tint in keys.items() if len(keys) > 1 and tint != plots.REFERENCE}
    beside = 2 if max(map(len, keys), default=0) > 16 else 4
    height += LEGEND_INCHES * -(-len(keys) // beside)
    with matplotlib.rc_context(TYPE, plots.STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 0.6 + height), layout="constrained")
        cells = figure.subplots(down, across, squeeze=False, sharey=panel.kind == "stairs").flatten()
        for cell, chart in zip(cells, charts or [""], strict=False):
            columns = [column for column in panel.columns if column.chart in (chart, "")]
            (draw_stairs if charts else draw_ratios)(cell, panel, columns)
            cell.set_title(chart)
        for cell in cells[len(charts) or 1 :]:
            cell.set_visible(False)
        handles = [cells[0].plot([], [], "s", color=tint, label="_")[0] for tint in keys.values()]
        figure.legend(handles, keys, loc="outside lower left", ncols=beside, frameon=False, fontsize=SMALL)
        return plots.svg(figure, panel.title)


def draw_ratios(axes, panel: Panel, columns: list[Column]) -> None:
    """Draw a row for each stage on a logarithmic axis: bars, or dots of many machines; the class's median across."""
    machines = sum(not column.is_median for column in columns)
    height = 0.75 / machines
    for i, column in enumerate(columns):
        for y, figure in enumerate(column.figures):
            at = y + (i - (machines - 1) / 2) * height
            if figure and column.is_median:
                axes.vlines(figure["median"], y - 0.4, y + 0.4, column.tint, linewidth=1.6)
            elif figure and machines <= FEW:
                draw_bar(axes, at, figure, column.tint or plots.color(panel.rows[y][0]), height)
            elif figure:  # a dot, empty if it is noise, and a pale line from least to most
                axes.hlines(at, figure["min"], figure["max"], column.tint, linewidth=1.2, alpha=0.3)
                inside = plots.PAPER if figure["doubt"] else column.tint
                axes.plot(figure["median"], at, "o", color=column.tint, markerfacecolor=inside, markersize=4)
    axes.axvline(1, color=plots.EDGE, linewidth=1, zorder=0)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    plots.logarithmic(axes, "x", (1, 1.5, 2, 3, 5, 7))
    axes.set_ylim(len(panel.rows) - 0.5, -0.6)
    axes.set_yticks(range(len(panel.rows)), [f"{name}\n{better}" for name, better in panel.rows])
    axes.tick_params(labelsize=SMALL)


def draw_bar(axes, at: float, figure: dict[str, Any], tint: str, height: float) -> None:
    """Draw a bar from 1, faint if it is noise, a line from least to most, and the digits."""
    axes.barh(at, figure["median"] - 1, 0.85 * height, left=1, color=tint, alpha=0.35 if figure["doubt"] else 1)
    axes.hlines(at, figure["min"], figure["max"], plots.TEXT, linewidth=1.2)
    text = f"{plots.short(figure['median'])}×{' ?' * bool(figure['doubt'])}"  # in a column where nothing crosses it
    style = {"va": "center", "fontsize": SMALL, "color": tint}
    axes.annotate(text, (1, at), (3, 0), ("axes fraction", "data"), "offset points", **style)


def draw_stairs(axes, panel: Panel, columns: list[Column]) -> None:
    """Draw a tread for each stage, and risers between them."""
    edges = [place - 0.5 for place in range(len(panel.rows) + 1)]
    for column in columns:
        medians = [figure["median"] for figure in column.figures]
        style = {"linewidth": 5, "alpha": 0.3, "zorder": 1} if column.is_median else {"linewidth": 2}
        axes.plot(edges, [*medians, medians[-1]], drawstyle="steps-post", color=column.tint, label="_", **style)
        for place, figure in enumerate(column.figures):
            axes.vlines(place, figure["min"], figure["max"], column.tint, linewidth=1.2)
            text = figure.get("step", "")
            axes.annotate(text, (place, figure["max"]), (0, 3), textcoords="offset points", ha="center", fontsize=7)
    plots.logarithmic(axes, "y", (1, 2, 5))
    axes.margins(y=0.15)
    axes.set_xticks(range(len(panel.rows)), [name[:2].lstrip("0") for name, _ in panel.rows])
    axes.tick_params(labelsize=SMALL)
