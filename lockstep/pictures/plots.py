"""Curves and bars of what training costs, by matplotlib, an extra: importing this module needs it."""

import io
import re
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from lockstep.pictures.lanes import quantity
from lockstep.pictures.pages import filled

GIGA, MIB = 10**9, 2**20
STAGES = ("plain", "ZeRO-1", "ZeRO-2", "ZeRO-3")
COLORS = ("#4f8fd0", "#e39a4b", "#7fb069", "#9b7fd1")


def figure(answer: Mapping[str, Any]) -> str:
    """The answers of `lockstep.commands.cost` as one SVG: memory by stage and by ranks, caps, efficiency, timeline."""
    drawn = Figure(figsize=(10.5, 9.6), layout="constrained")
    axes = drawn.subplot_mosaic(
        [["memory", "ranks"], ["caps", "efficiency"], ["line", "line"]], height_ratios=(3, 3, 1.3)
    )
    _memory(axes["memory"], answer)
    _by_ranks(axes["ranks"], answer)
    _caps(axes["caps"], answer)
    _efficiency(axes["efficiency"], answer)
    _timeline(axes["line"], answer)
    written = io.StringIO()
    drawn.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def page(answer: Mapping[str, Any]) -> str:
    """A page of its own with the figure and the tables."""
    inline = re.sub(r"^.*?(?=<svg)", "", figure(answer), count=1, flags=re.DOTALL)
    size = quantity(answer["parameters"])
    return filled("cost.html.j2", answer=answer, size=size, figure=inline, stages=STAGES, giga=GIGA, mib=MIB)


def _memory(ax: Any, answer: Mapping[str, Any]) -> None:
    bottom = [0.0] * len(STAGES)
    for color, kind in zip(COLORS, answer["memory"][0], strict=False):
        heights = [held[kind] / GIGA for held in answer["memory"]]
        ax.bar(STAGES, heights, bottom=bottom, label=kind, color=color)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    ax.bar_label(ax.containers[-1], [f"{total:.4g}" for total in bottom])
    ax.margins(y=0.1)
    ax.set(title=f"memory per rank on {answer['ranks']} ranks", ylabel="GB")
    ax.legend(frameon=False)


def _by_ranks(ax: Any, answer: Mapping[str, Any]) -> None:
    ranks = [*answer["memory_by_ranks"]]
    for stage, (name, color) in enumerate(zip(STAGES, COLORS, strict=True)):
        ax.plot(ranks, [answer["memory_by_ranks"][n][stage] / GIGA for n in ranks], "o-", label=name, color=color)
    ax.set(title="memory per rank over ranks", xlabel="ranks", ylabel="GB", xscale="log")
    ax.set_xticks(ranks, [str(each) for each in ranks])
    ax.minorticks_off()
    ax.legend(frameon=False)


def _caps(ax: Any, answer: Mapping[str, Any]) -> None:
    sweep = answer["sweep"]
    ax.plot([cap / MIB for cap in sweep], [1000 * seconds for seconds in sweep.values()], "o-", color=COLORS[0])
    for name, cap, color in (("yours", answer["cap"], COLORS[1]), ("best", answer["best_cap"], COLORS[2])):
        ax.plot(cap / MIB, 1000 * sweep[cap], "s", ms=9, color=color, label=f"{name}: {cap / MIB:g} MiB")
    ax.set(title="time of a step over the bucket cap", xlabel="MiB", ylabel="ms", xscale="log")
    ax.legend(frameon=False)


def _efficiency(ax: Any, answer: Mapping[str, Any]) -> None:
    ranks = [*answer["scaling"]]
    ax.plot(ranks, [100 * each for each in answer["scaling"].values()], "o-", color=COLORS[0])
    ax.set(title="scaling efficiency", xlabel="ranks", ylabel="%", xscale="log", ylim=(0, 105))
    ax.set_xticks(ranks, [str(each) for each in ranks])
    ax.minorticks_off()


def _timeline(ax: Any, answer: Mapping[str, Any]) -> None:
    line = {name: value if name == "buckets" else 1000 * value for name, value in answer["step"].items()}
    ends = line["forward"], line["forward"] + line["backward"], line["step"] - line["optimizer"]
    ax.broken_barh([(0, ends[0])], (1, 0.8), color=COLORS[0], label="forward")
    ax.broken_barh([(ends[0], line["backward"])], (1, 0.8), color=COLORS[1], label="backward")
    ax.broken_barh([(ends[2], line["optimizer"])], (1, 0.8), color=COLORS[2], label="optimizer")
    sent = [(line["forward"] + 1000 * start, 1000 * (end - start)) for _, _, start, end in line["buckets"]]
    ax.broken_barh(sent, (0, 0.8), color=COLORS[3], edgecolor="white", linewidth=0.3, label="buckets under way")
    ax.set(title="one micro-batch, without sharding", xlabel="ms", yticks=(0.4, 1.4), yticklabels=("sends", "computes"))
    ax.legend(frameon=False, ncols=4, loc="upper left", bbox_to_anchor=(0, -0.45))
