"""The end of a run: the verdict of every law, for every implementation and world."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.properties.defects.defect import Defect
from lockstep.properties.reports.matrix import matrix, totals
from lockstep.properties.reports.overview import as_told, named, overview
from lockstep.properties.reports.paragraphs import fitted
from lockstep.properties.running import profiles
from lockstep.properties.running.bench import Bench


def summary(
    filed: Sequence[Mapping[str, Any]],
    stopped: bool,
    of_a_user: Bench | None,
    folded: bool = False,
    defects: Sequence[Defect] | None = None,
    complete: bool = True,
) -> list[str]:
    """The lines of the summary, from the filed verdicts; empty if no law was checked.

    ``stopped``: some laws had not ended. ``of_a_user``: the bench of a user's run; None for Lockstep's own code.
    ``folded``: count laws that are not claimed instead of listing them; with ``defects``, count all laws by family.
    ``complete``: the run was asked for all laws.
    """
    complete = complete and not stopped
    told = None if defects is None else [defect.filed for defect in defects]
    filed = filed if told is None else as_told(filed, told)
    if folded and told is not None:
        lines = overview(filed, told, complete, stopped)
    else:
        lines = [*([] if told is None else named(filed, told, complete, stopped)), *matrix(filed, folded)]
    if not lines:
        return []
    lines += ["", fitted(totals(filed)), *_scripts(filed)]
    if stopped:
        lines.append("The run was stopped early. Laws that are missing here had not ended.")
    if of_a_user is not None:
        lines += filter(None, [profiles.told_if_few(of_a_user.where.worlds[0], len(of_a_user.names))])
    return lines


def _scripts(filed: Sequence[Mapping[str, Any]]) -> list[str]:
    """The line on the folder of scripts; none if no script was written."""
    written = [Path(each["script"]) for law in filed for each in law.get("failures", ()) if each["script"]]
    folders = {script.parent.absolute() for script in written}
    return [f"Scripts that show failures: {', '.join(sorted(map(str, folders)))}"] if folders else []
