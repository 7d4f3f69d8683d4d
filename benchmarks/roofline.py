"""A plot of what was measured under what memory allows: bandwidth over the bytes that a call must move.

Needs matplotlib, which is no dependency: `pip install lockstep-dp[plot]`.
"""

from pathlib import Path
from typing import Any

from lockstep.benchmarks.results import Results, heading, time_of

NAME = "roofline.png"


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

    figure, axes = pyplot.subplots(figsize=(10, 6.5))
    for (tensors, name), points in sorted(grouped(contests).items()):
        moved, reached = zip(*sorted(points), strict=True)
        axes.plot(moved, reached, "o-" if tensors == "one" else "s--", label=f"{name}, {tensors}", markersize=4)
    roof = sorted({(each["copied"], each["copied"] / time_of(each["took"]["copy"]) / 1e9) for _, each in contests})
    axes.plot(*zip(*roof, strict=True), color="black", linewidth=2, label="copy from device to device")
    axes.set(xscale="log", xlabel="bytes read and written", ylabel="GB/s, replayed from a CUDA graph")
    axes.set_title(heading(results.about), fontsize=8)
    axes.legend(fontsize=7, ncols=2)
    axes.grid(alpha=0.3)
    place = results.path.parent / NAME
    figure.savefig(place, dpi=130, bbox_inches="tight")
    pyplot.close(figure)
    return place


def grouped(contests: list[tuple[str, dict[str, Any]]]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Bytes and GB/s of ours, by whether there is one tensor, and by the task and dtype."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for unit, contest in contests:
        label = unit.partition(":")[0]
        kind = "one" if label.endswith(", 1") or "masters" in label else "many"
        dtype = " bfloat16" if "bfloat16" in label else ""
        best = min(time_of(contest["took"][name]) for name in contest["ours"])
        found.setdefault((kind, contest["name"] + dtype), []).append((contest["moved"], contest["moved"] / best / 1e9))
    return found
