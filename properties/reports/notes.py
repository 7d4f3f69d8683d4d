"""Notes for the reader of a report: on the calls of the implementation, and on its claims."""

from dataclasses import replace

from lockstep.oracle.events import Clip, Finish, Step
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import EQUAL_FROM, Claims
from lockstep.properties.diagnosing.diagnosis import Diagnosis
from lockstep.properties.diagnosing.rounding import narrow_wire
from lockstep.properties.law import Law, concerns
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.reports.paragraphs import entry
from lockstep.properties.strategies.within import beyond
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken


def on_the_program(trial: Trial, diagnosis: Diagnosis) -> list[str]:
    """Notes on methods that are called, or are not, if that may be the reason."""
    scenario = diagnosis.broken.scenario
    called = _not_finished(trial, scenario) + _equal_later(diagnosis) + _done_by_the_caller(trial, scenario)
    return called + _compressed(trial, diagnosis.broken)


def _not_finished(trial: Trial, scenario: Scenario) -> list[str]:
    """The note that no method is called to finish the synchronization, although one has a fitting name."""
    of = trial.implementation
    if not of.perhaps or not scenario.has(Finish):
        return []
    words = f"Lockstep calls {of.finish or 'nothing'} to finish the synchronization. If {' or '.join(of.perhaps)} "
    words += "should be called, rename it or write an adapter: docs/your-code.md has the names that Lockstep looks for."
    return ["", *entry("Note", words)]


def _done_by_the_caller(trial: Trial, scenario: Scenario) -> list[str]:
    """The note that the caller uses `p.grad` because a method is missing, although gradients may be elsewhere."""
    of = trial.implementation
    done = {
        "clip_grad_norm_": scenario.has(Clip),
        "unscale_": scenario.loss_scale is not None,
        "make_optimizer": scenario.has(Step),
    }
    missing = [f"{name}()" for name, does in done.items() if does and name not in of.offers]
    if of.made or "full_gradients" not in of.offers or not missing:
        return []
    lacks = " and no ".join(missing)
    words = f"{of.short} has full_gradients() but no {lacks}, so the training loop does that with p.grad of the "
    words += "module's parameters. If gradients are kept elsewhere, p.grad is empty."
    return ["", *entry("Note", words)]


def _equal_later(diagnosis: Diagnosis) -> list[str]:
    """The note that ranks which differ after construction are equal from the first forward on, if they are."""
    if not diagnosis.starts_later:
        return []
    words = "after the first forward every rank has rank 0's values. If that is intended, claim"
    return ["", *entry("Note", f'{words} "equal_from": "{EQUAL_FROM[1]}".')]


def _compressed(trial: Trial, broken: LawBroken) -> list[str]:
    """The note that gradients are sent in 16 bits although no parameter has 16 bits, if that is not claimed."""
    if not (dtype := narrow_wire(trial, broken)):
        return []
    words = f"gradients travel in {dtype}, which rounds values that need more digits. If that is intended, claim"
    return ["", *entry("Note", f'{words} "wire_dtype": "{dtype}"; Lockstep then draws only values that fit.')]


def on_claims(
    law: Law, trial: Trial, scenario: Scenario | ModelScenario, diagnosis: Diagnosis | None = None
) -> list[str]:
    """The note on assumed, undeclared claims without which this law would not apply or this program would not be drawn.

    With a ``diagnosis``, only claims are named without which nothing fails in this manner.
    """
    of, claims = trial.implementation, trial.claims
    given = [name for name in of.undeclared if getattr(claims, name) is True]
    without = {name: replace(claims, **{name: False}) for name in given}  # type: ignore[arg-type]
    if diagnosis is None:
        needed = [name for name, less in without.items() if not concerns(law, less) or _beyond(less, scenario)]
    else:
        by_itself = diagnosis.core is not None
        of_the_law = [name for name, less in without.items() if not by_itself and not concerns(law, less)]
        needed = [name for name in given if name in diagnosis.hangs_on or name in of_the_law]
    if not needed:
        return []
    assumed = " and ".join(f'"{name}"' for name in needed)
    unless = " or ".join(f'`"{name}": False`' for name in needed)
    them = "them" if len(needed) > 1 else "it"
    words = f"{of.short} does not declare {assumed}, so Lockstep assumes {them}. Only if "
    words += f"your class is not meant to support that, put {unless} into its `claims`. Lockstep then draws no such "
    words += "programs; nothing else changes."
    return ["", *entry("Note", words)]


def _beyond(claims: Claims, scenario: Scenario | ModelScenario) -> bool:
    """True if a scenario would not be drawn for these claims."""
    if isinstance(scenario, Scenario):
        return bool(beyond(claims, scenario))
    needs = {
        "keyword_inputs": scenario.named,
        "output_classes": scenario.classed,
        "in_place": scenario.in_place,
        "accumulation": any(scenario.local),
        "float64": scenario.dtype == "float64",
        "bucket_cap": scenario.bucket_cap is not None,
    }
    return any(needed and not getattr(claims, name) for name, needed in needs.items())
