"""The page of a run of the laws: a summary, the verdict of every law with filters, and each defect with its picture."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.pictures.in_svg import diagram
from lockstep.pictures.lanes import Lanes
from lockstep.pictures.pages import filled

GOOD, OPEN = ("holds", "refuses"), ("not claimed", "sim only", "shows nothing", "cannot be judged", "not runnable")


def page(
    about: Mapping[str, str],
    targets: Sequence[Mapping[str, Any]],
    pictures: Mapping[tuple[str, str], Lanes],
    scripts: Mapping[str, str],
) -> str:
    """The page, as one file.

    ``about``: what is said of the run, such as its seed. ``targets``: each with its ``name``, ``laws`` (law, world,
    verdict, runs, refused, defects) and ``defects`` (id, law, world, verdict, scenario, script, report, laws).
    ``pictures``: by target and defect, what ranks did. ``scripts``: by path, their text.
    """
    laws = [
        {**law, "target": target["name"], "state": state(law["verdict"])}
        for target in targets
        for law in target["laws"]
    ]
    drawn = {key: (lanes, diagram(lanes)) for key, lanes in pictures.items()}
    counts = Counter(law["state"] for law in laws)
    worlds = list(dict.fromkeys(law["world"] for law in laws))
    names = [target["name"] for target in targets]
    return filled(
        "verdicts.html.j2",
        about=about,
        targets=targets,
        laws=laws,
        drawn=drawn,
        scripts=scripts,
        counts=counts,
        worlds=worlds,
        names=names,
    )


def state(verdict: str) -> str:
    """The kind of a verdict: "good", "open" (nothing was shown either way) or "bad"."""
    if verdict.startswith(GOOD):
        return "good"
    return "open" if verdict.startswith(OPEN) or "not judged" in verdict else "bad"
