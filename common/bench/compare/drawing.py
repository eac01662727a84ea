"""Draws every panel of the page as an SVG."""

from .. import plots
from .panels import Column, Panel

WIDTH_INCHES = 5.2  # a phone shows it whole, with its type as large as on paper
CHART_INCHES, ROW_INCHES, LEGEND_INCHES = 1.7, 0.45, 0.2  # height of a chart, of a row of ratios, and of names
TYPE = {"font.size": 9, "axes.titlesize": 9}  # points
SMALL = 8  # points: digits and legends


def draw(panel: Panel) -> str:
    """Return the panel's charts, with a legend below them, as an SVG element."""
    import matplotlib
    from matplotlib.figure import Figure

    charts = list(dict.fromkeys(column.chart for column in panel.columns))
    across = min(2, len(charts))
    down = len(charts) // across
    tints = {column.label: column.tint for column in panel.columns}
    height = ROW_INCHES * len(panel.rows) if panel.kind == "gains" else CHART_INCHES * down
    height += 0.6 + LEGEND_INCHES * -(-len(tints) // 2)
    with matplotlib.rc_context(TYPE, plots.STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        cells = figure.subplots(down, across, squeeze=False, sharey="row").flatten()
        for cell, chart in zip(cells, charts, strict=True):
            columns = [column for column in panel.columns if column.chart == chart]
            (draw_ratios if panel.kind == "gains" else draw_stairs)(cell, panel, columns)
            cell.set_title(chart)
            cell.tick_params(labelsize=SMALL)
        handles = [cells[0].plot([], [], "s", color=tint, label="_")[0] for tint in tints.values()]
        figure.legend(handles, tints, loc="outside lower left", ncols=2, frameon=False, fontsize=SMALL)
        return plots.svg(figure, panel.title)


def draw_ratios(axes, panel: Panel, columns: list[Column]) -> None:
    """Draw in a row for each stage a dot for each machine, empty if it is noise; the class's median across."""
    for i, column in enumerate(columns):
        for y, figure in enumerate(column.figures):
            at = y + 0.75 * ((i + 0.5) / len(columns) - 0.5)
            if figure and column.is_median:
                axes.vlines(figure["median"], y - 0.4, y + 0.4, column.tint, linewidth=1.6)
            elif figure:
                axes.hlines(at, figure["min"], figure["max"], column.tint, linewidth=1.2, alpha=0.3)
                inside = plots.PAPER if figure["doubt"] else column.tint
                axes.plot(figure["median"], at, "o", color=column.tint, markerfacecolor=inside, markersize=5)
    axes.axvline(1, color=plots.EDGE, linewidth=1, zorder=0)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    plots.logarithmic(axes, "x", (1, 1.5, 2, 3, 5, 7))
    axes.set_ylim(len(panel.rows) - 0.5, -0.6)
    axes.set_yticks(range(len(panel.rows)), [f"{name}\n{better}" for name, better in panel.rows])


def draw_stairs(axes, panel: Panel, columns: list[Column]) -> None:
    """Draw a tread for each stage, and risers between them."""
    edges = [place - 0.5 for place in range(len(panel.rows) + 1)]
    for column in columns:
        medians = [figure["median"] for figure in column.figures]
        style = {"linewidth": 5, "alpha": 0.3, "zorder": 1} if column.is_median else {"linewidth": 2}
        axes.plot(edges, [*medians, medians[-1]], drawstyle="steps-post", color=column.tint, label="_", **style)
        for place, figure in enumerate(column.figures):
            axes.vlines(place, figure["min"], figure["max"], column.tint, linewidth=1.2)
    plots.logarithmic(axes, "y", (1, 2, 5))
    axes.margins(y=0.15)
    axes.set_xticks(range(len(panel.rows)), [name[:2] for name, _ in panel.rows])
