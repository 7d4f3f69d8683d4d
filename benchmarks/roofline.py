"""A plot of what was measured under the roof that memory sets: bandwidth over the bytes that a call must move.

A panel for each task, in it a line for each dtype and for one tensor or many; above them the copy from device to
device, and what the model expects. Needs matplotlib, which is no dependency: `pip install lockstep-dp[plot]`.
"""

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from lockstep.benchmarks.results import Results, heading, share, time_of

NAME = "roofline.png"
COLUMNS = 4

Point = tuple[float, float, float]  # bytes moved, GB/s reached, GB/s that the model expects


def draw(results: Results) -> Path | None:
    """The plot beside the results; None where matplotlib is missing or nothing was measured."""
    try:
        import matplotlib
    except ImportError:
        return None
    contests = [(unit, each) for unit, kept in results.done.get("kernels", {}).items() for each in kept["found"]]
    if not contests:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = panels(contests)
    rows = -(-len(tasks) // COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(16, 3.6 * rows), sharex=True, sharey=True, squeeze=False)
    copies = roof(contests)
    for place, panel in enumerate(axes.flat):
        if place >= len(tasks):
            panel.set_axis_off()
            continue
        task, lines = list(tasks.items())[place]
        panel.plot(*zip(*copies, strict=True), color="black", linewidth=2, label="copy")
        for label, points in sorted(lines.items()):
            moved, reached, expected = zip(*sorted(points), strict=True)
            (drawn,) = panel.plot(moved, reached, "o-", markersize=4, label=label)
            panel.plot(moved, expected, ":", color=drawn.get_color(), linewidth=1)
        panel.set(xscale="log", yscale="log", title=task)
        panel.legend(fontsize=7)
        panel.grid(alpha=0.3, which="both")
    figure.supxlabel("bytes read and written")
    figure.supylabel("GB/s, replayed from a CUDA graph (dotted: expected by the model)")
    figure.suptitle(heading(results.about), fontsize=9)
    figure.tight_layout()
    place_of_it = results.path.parent / NAME
    figure.savefig(place_of_it, dpi=110)
    pyplot.close(figure)
    return place_of_it


def panels(contests: list[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, list[Point]]]:
    """By task and label, the points of a line."""
    found: dict[str, dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for unit, contest in contests:
        best = min(time_of(contest["took"][name]) for name in contest["ours"])
        reached = contest["moved"] / best / 1e9
        expected = reached * contest["expected"] / share(contest, best)
        task = "cast and pack" if contest["name"].startswith("cast") else contest["name"]
        found[task][label_of(unit)].append((contest["moved"], reached, expected))
    return found


def label_of(unit: str) -> str:
    """The label that the points of a line share: "64 MiB float32, 1: moving" is one of "float32, 1"."""
    words = unit.partition(":")[0]
    return words.partition("MiB ")[2] or words


def roof(contests: list[tuple[str, dict[str, Any]]]) -> list[tuple[float, float]]:
    """Bytes and GB/s of the copy, the median where there are several of a size."""
    found: dict[float, list[float]] = defaultdict(list)
    for _, contest in contests:
        found[contest["copied"]].append(contest["copied"] / time_of(contest["took"]["copy"]) / 1e9)
    return [(size, statistics.median(rates)) for size, rates in sorted(found.items())]
