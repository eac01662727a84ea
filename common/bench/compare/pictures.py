"""The panels of a group as PNGs, and the whole course in one picture, which the README shows."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.errors import counted

from .. import plots
from ..hardware import slugify

MACHINES = ["#2f5fa8", "#c8354b", "#4f8a2c", "#7b4a9e", "#b97a00", "#00788a", "#e0591b", "#2b2b38"]
MANY = "#8a93a0"  # of one machine among more than there are colours for
FEW, MOST = "#8a9bb0", "#14283c"  # clients: light to dark, since colours are the stages'
FEW_MACHINES = 3  # that have room for digits beside their marks
COLUMNS = 4  # of small multiples
ROW_INCHES = 0.62
TICKS = [(5, (1, 1.5, 2, 3, 4, 5, 7)), (60, (1, 2, 5)), (300, (1, 3)), (math.inf, (1,))]  # steps of a decade by range
LEAST_STEP = 1.1  # a smaller gain has no factor beside it
KINDS = ("gains", "stairs", "machines")  # panels that have a picture
GROWTH = "01"  # its row is a cost, and no gain


def draw_group(group: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw a group's panels that there are; return the files, which are called as group and panel are."""
    drawn = []
    for panel in group["panels"]:
        if panel["kind"] in KINDS:
            png = folder / f"{slugify(group['title'])}-{panel['kind']}.png"
            (draw_stairs if panel["kind"] == "stairs" else draw_gains)(group, panel, png)
            drawn.append(png)
    return drawn


def colors(group: Mapping[str, Any]) -> list[str]:
    """Return a colour for each machine; of more machines than there are colours, only for the odd ones."""
    count, odd = len(group["machines"]), [one["machine"] for one in group["odd"]]
    coloured = list(range(count)) if count <= len(MACHINES) else odd[: len(MACHINES)]
    return [MACHINES[coloured.index(place)] if place in coloured else MANY for place in range(count)]


def draw_gains(group: Mapping[str, Any], panel: Mapping[str, Any], png: Path) -> None:
    """Draw a row for each stage: a bar for one machine, dots for several."""
    tints, rows, lines = colors(group), panel["rows"], panel.get("lines", [])
    height = 2.1 + ROW_INCHES * len(rows) * (1 if len(tints) < 3 else 1.3)
    with plots.page(png, panel["caption"], panel["title"], height=height, remark=group["remark"]) as [axes]:
        ratio_rows(axes, rows, tints, above=0.3 * len(lines))
        for i, line in enumerate(lines):
            tint = tints[line["machine"]]
            axes.axvline(line["value"], color=tint, linestyle=(0, (4, 3)), linewidth=1.2)
            align = "right" if line["value"] > 1 else "left"
            axes.text(
                line["value"], -0.65 - 0.3 * i, f" {line['why']} ", fontsize=8.5, color=tint, ha=align, va="bottom"
            )
        if 1 < len(tints) <= len(MACHINES):
            handles = [axes.plot([], [], "o", color=tint, label="_")[0] for tint in tints]
            labels = [machine["label"] for machine in group["machines"]]
            place = {"loc": "upper left", "bbox_to_anchor": (0, -0.06), "frameon": False}
            axes.legend(handles, labels, ncols=2, fontsize=10, **place)


def ratio_rows(axes, rows: Sequence[Mapping[str, Any]], tints: Sequence[str], above: float = 0) -> None:
    """Draw ratios on a logarithmic axis, a row for each stage from top to bottom; dashed: predictions; "?": noise.

    tints: the colours of the machines; one alone has bars in the colours of the stages. above: free rows at the top.
    """
    alone, few = len(tints) == 1, len(tints) <= FEW_MACHINES
    for y, row in enumerate(rows):
        count = len(row["values"])
        for i, value in enumerate(row["values"]):
            at = y if count == 1 else y - 0.25 + 0.5 * i / (count - 1)
            color = plots.color(row["stage"]) if alone else tints[value["machine"]]
            spread = {"color": plots.TEXT if alone else color, "alpha": 1 if few else 0.25, "linewidth": 1.2}
            axes.plot([value["min"], value["max"]], [at, at], label="_", zorder=3 if alone else 2, **spread)
            if alone:
                faint = 0.35 if value["doubt"] else 1
                axes.barh(at, value["median"] - 1, left=1, height=0.42, color=color, alpha=faint)
            else:
                face = "white" if value["doubt"] else color
                axes.plot(value["median"], at, "o", color=color, markerfacecolor=face, markersize=5, label="_")
            if few:  # the digits have a column of their own, where nothing crosses them
                text = f"{plots.short(value['median'])}×{' ?' * bool(value['doubt'])}"
                style = {"va": "center", "fontsize": 11 if alone else 9, "color": color}
                axes.annotate(text, (1, at), (4, 0), ("axes fraction", "data"), "offset points", **style)
            if few and value.get("predicted"):
                dashed = {"color": plots.PREDICTION, "linestyle": (0, (2, 1.5)), "linewidth": 1.5, "label": "_"}
                axes.plot([value["predicted"]["value"]] * 2, [at - 0.28, at + 0.28], **dashed)
        if row["median"]:
            axes.plot([row["median"]] * 2, [y - 0.38, y + 0.38], color=plots.TEXT, linewidth=1.6, label="_")
    axes.set_xscale("log")
    axes.set_ylim(len(rows) - 0.4, -0.65 - above)
    axes.axvline(1, color="#888888", linewidth=1, zorder=0)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    plain_ticks(axes.xaxis, *axes.get_xlim())
    texts = [f"{row['stage']} {row['name']}\n{row['better']}" for row in rows]
    axes.set_yticks(range(len(rows)), texts, fontsize=9.5)


def plain_ticks(axis, low: float, high: float) -> None:
    """Set ticks of a logarithmic axis as plain numbers, 1, 2, 5, 10 ...: the wider it is, the fewer in each decade."""
    steps = next(steps for most, steps in TICKS if high / low < most)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [step * 10.0**power for power in powers for step in steps]
    values = [value for value in values if low <= value <= high]
    axis.set_ticks(values, [f"{value:,g}" for value in values])
    axis.set_ticks([], minor=True)


def draw_stairs(group: Mapping[str, Any], panel: Mapping[str, Any], png: Path) -> None:
    """Draw a staircase for each machine, all on the same axes."""
    multiples, machines = panel["multiples"], group["machines"]
    few = len(multiples) <= FEW_MACHINES
    columns = len(multiples) if few else COLUMNS
    rows = -(-len(multiples) // columns)
    shown = [value for one in multiples for series in one["series"] for value in series["values"]]
    low, high = min(value["min"] for value in shown) / 1.3, max(value["max"] for value in shown) * 1.5
    size = {"rows": rows, "columns": columns, "height": 1.6 + (3.2 if few else 2.2) * rows}
    with plots.page(png, panel["caption"], panel["title"], remark=group["remark"], **size) as cells:
        for cell, one in zip(cells, multiples, strict=False):
            for medians in panel["median"] or []:
                staircase(cell, medians, "#c9ced6", "_", 4)
            for series in one["series"]:
                most = series is one["series"][-1]
                values = [value["median"] for value in series["values"]]
                label = counted(series["clients"], "client") if one is multiples[0] or columns < 3 else "_"
                staircase(cell, values, MOST if most else FEW, label, 2)
                if few and most:
                    label_steps(cell, series["values"], one["drift"])
            cell.set_ylim(low, high)
            stage_axis(cell, panel["stages"])
            cell.set_title(machines[one["machine"]]["label"], fontsize=12.5 if columns < 3 else 9)
        for cell in cells[len(multiples) :]:
            cell.set_visible(False)


def staircase(axes, values: Sequence[float], color: str, label: str, width: float) -> None:
    """Draw a tread for each stage, and risers between them; the label stands where the last tread ends."""
    edges = [place + half for place in range(len(values)) for half in (-0.5, 0.5)]
    axes.plot(edges, [value for value in values for _ in range(2)], color=color, linewidth=width, label=label)


def label_steps(axes, values: Sequence[Mapping[str, float]], drift: float | None, less: bool = False) -> None:
    """Write the factor of every step that is better, where it exceeds the drift. less: whether less is better."""
    edge, align, points = ("min", "top", -4) if less else ("max", "bottom", 4)
    factors = [now["median"] / before["median"] for before, now in pairwise(values)]
    factors = [1 / factor for factor in factors] if less else factors
    shown = {place: factor for place, factor in enumerate(factors, 1) if factor > max(drift or 1, LEAST_STEP)}
    for place, factor in shown.items():
        # Two neighbours meet at their border, where one would cover the other.
        side, x = {-1: ("left", place - 0.5), 0: ("center", place), 1: ("right", place + 0.5)}[
            (place + 1 in shown) - (place - 1 in shown)
        ]
        style = {"ha": side, "va": align, "fontsize": 9, "color": plots.TEXT}
        axes.annotate(
            f"{plots.short(factor)}×", (x, values[place][edge]), (0, points), textcoords="offset points", **style
        )


def stage_axis(axes, stages: Sequence[str]) -> None:
    """Make the y axis logarithmic, and write the stages below."""
    axes.set_yscale("log")
    plain_ticks(axes.yaxis, *axes.get_ylim())
    axes.set_xticks(range(len(stages)), [str(int(stage)) for stage in stages])
    axes.tick_params(labelsize=9)


def whole_course(group: Mapping[str, Any], png: Path) -> None:
    """Draw what each stage makes better, and how that looks under one load, for one client and for many."""
    panels = {panel["kind"]: panel for panel in group["panels"]}
    charts, stages = panels["absolute"]["charts"], panels["absolute"]["stages"]
    rows = [row for row in panels.get("gains", {"rows": []})["rows"] if row["stage"] != GROWTH]
    [*_, most] = panels["stairs"]["multiples"][0]["series"]
    medians = [value["median"] for value in most["values"]]
    best = medians.index(max(medians))
    factor = f"{medians[best]:.0f} times the tokens per second"
    message = f"From stage {stages[0]} to {stages[best]}, {counted(most['clients'], 'client')} get {factor}"
    remark = (
        "Left: the ratio to the stage before, under the load of its lesson; dashed: predicted by arithmetic.\n"
        "Right: all stages under one load, without HTTP; medians over requests. A factor marks a step that gains more "
        "than the machine drifted.\nStage 08 has one process for prompts and one for decoding."
    )
    names = [f"chart {i}" for i in range(len(charts))]
    pairs = [list(pair) for pair in zip(names[: len(names) // 2], names[len(names) // 2 :], strict=True)]
    mosaic = [["gains", *pair] for pair in pairs] if rows else pairs
    widths = [1.25, 1, 1] if rows else None
    page = plots.page(png, group["caption"], message, height=7.4, remark=remark, mosaic=mosaic, widths=widths)
    drift = panels["stairs"]["multiples"][0]["drift"]
    with page as cells:
        if rows:
            ratio_rows(cells[0], rows, [""])
            cells[0].set_title("Each stage over the one before", fontsize=12)
        by_name = {cell.get_label(): cell for cell in cells}
        for name, chart in zip(names, charts, strict=True):
            course_chart(by_name[name], chart, stages, drift)
            if name in pairs[0]:
                by_name[name].set_title(counted(chart["series"][0]["clients"], "client"), fontsize=12)
        for cell in cells[-2:]:
            cell.set_xlabel("stage", fontsize=9)


def course_chart(axes, chart: Mapping[str, Any], stages: Sequence[str], drift: float | None) -> None:
    """Draw a figure of all stages on one machine, a tread in the colour of each."""
    [series] = chart["series"]
    staircase(axes, [value["median"] for value in series["values"]], "#b4bbc5", "_", 1)
    for place, value in enumerate(series["values"]):
        style = {"color": plots.color(stages[place]), "solid_capstyle": "butt", "label": "_"}
        axes.plot([place - 0.5, place + 0.5], [value["median"]] * 2, linewidth=4, **style)
        axes.plot([place] * 2, [value["min"], value["max"]], linewidth=1.2, **style)
    label_steps(axes, series["values"], drift, less=chart["unit"] == "ms")
    axes.set_yscale("log")
    axes.margins(y=0.22)
    axes.autoscale_view()
    stage_axis(axes, stages)
    axes.set_ylabel(f"{chart['metric']}\n{chart['unit']}", fontsize=9)
