"""The HTML page of a run: `lockstep check --html`. The program of each defect is run once more for its picture."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.pictures import verdicts
from lockstep.pictures.lanes import Lanes
from lockstep.properties.implementations import Implementation
from lockstep.properties.naming import model_words
from lockstep.properties.results.document import targets
from lockstep.properties.running.bench import Bench
from lockstep.properties.tracing.model import CostModel, as_large_as
from lockstep.properties.tracing.program import read
from lockstep.properties.tracing.trace import lanes, trace
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, Refused


def write(path: Path, bench: Bench, filed: Sequence[Mapping[str, Any]], about: Mapping[str, str]) -> None:
    """Write the page from the data that laws have filed. ``about``: facts on the run."""
    told = [dataclasses.asdict(each) for each in targets(filed)]
    of = {each.name: each for each in bench.implementations}
    pictures = {}
    for target in told:
        for defect in target["defects"]:
            if picture := _picture(bench, of[target["name"]], defect["scenario"]):
                pictures[target["name"], defect["id"]] = picture
    paths = {defect["script"] for target in told for defect in target["defects"] if defect["script"]}
    scripts = {each: Path(each).read_text("utf-8") for each in paths if Path(each).exists()}
    path.write_text(verdicts.page(about, told, pictures, scripts), "utf-8")


def _picture(bench: Bench, of: Implementation, told: str) -> Lanes | None:
    """The lanes of a defect's program. None if the text is no program, or if the program does not run to its end."""
    try:
        scenario = read(told)
        model = CostModel(scale=as_large_as(scenario))
        return lanes(trace(Trial(of, bench.world("sim")), scenario, model), model_words(scenario), model)
    except (ValueError, LookupError, RuntimeError, LawBroken, Refused):
        return None
