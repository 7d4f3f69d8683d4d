"""The demonstration: Lockstep finds the bug of bucketing by hook order, shrinks it, and explains it.

Run it with ``lockstep demo``. Nothing is stored: the search starts from a new seed every time.
"""

import argparse
import random
import textwrap
import time
from collections.abc import Sequence

from lockstep.properties.diagnosing.confirming import confirm
from lockstep.properties.diagnosing.diagnosis import diagnose
from lockstep.properties.implementations import Implementation, look_up
from lockstep.properties.law import Law, law_of, sentence
from lockstep.properties.reports.failure import report
from lockstep.properties.searching.search import search
from lockstep.properties.test_collectives import test_every_rank_issues_the_same_collectives
from lockstep.properties.test_mean import test_gradients_equal_the_mean_over_ranks
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import Crashes, LawBroken, SilentlyWrong
from lockstep.worlds.gloo import GlooWorld
from lockstep.worlds.sim.world import SimWorld

EXAMPLES = 200


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Show the silent form of the bug, the loud one, and a correct implementation."""
    parser.parse_args(arguments)
    began = time.monotonic()
    sim, gloo = SimWorld(), GlooWorld()
    try:
        wrong, right = look_up(
            ("lockstep.impls.hook_order_buckets:HookOrderBuckets", "lockstep.impls.static_buckets:StaticBuckets"), sim
        )
        mean, same = (
            law_of(test_gradients_equal_the_mean_over_ranks),
            law_of(test_every_rank_issues_the_same_collectives),
        )
        _say(
            "impls/hook_order_buckets.py averages gradients in buckets that it fills in the order in which "
            "autograd's hooks fire. It looks right and passes the usual tests. Lockstep draws small training programs "
            "and holds it against an oracle, on simulated ranks."
        )
        _show(mean, Trial(wrong, sim, lambda: gloo), SilentlyWrong)
        _say(
            "That was silent: both buckets were of one size. Where they are not, the same bug shows in another way. "
            "Ranks that disagree are seen at once, without waiting for a timeout."
        )
        _show(same, Trial(wrong, sim, lambda: gloo), Crashes)
        _say("The right way, impls/static_buckets.py, against the same laws:")
        for law in (mean, same):
            _hold(law, right, sim)
        _say(f"Done in {time.monotonic() - began:.0f} s. Next, your own code: lockstep check my_package.ddp:MyDDP")
    finally:
        sim.close()
        gloo.close()


def _show(law: Law, trial: Trial, kind: type[LawBroken]) -> None:
    """Search from new seeds until the law is broken in the given way, then print the report."""
    while True:
        seed = random.randrange(2**32)
        began = time.monotonic()
        found = search(law, trial, EXAMPLES, seed_value=seed, only=kind)
        for failure in found.failures:
            _say(f"Found and shrunk in {found.examples} examples and {time.monotonic() - began:.1f} s (seed {seed}):")
            known = diagnose(trial, confirm(law, trial, failure) or failure, to_the_core=False)
            print(report(law, trial, known), flush=True)
            return
        _say(f"{found.examples} examples from seed {seed} did not show it; trying another seed.")


def _hold(law: Law, implementation: Implementation, sim: SimWorld) -> None:
    found = search(law, Trial(implementation, sim), EXAMPLES // 4)
    ended = ", ".join(failure.broken.verdict for failure in found.failures) or "holds"
    print(f"  {law.number}  {sentence(law)}: {ended} on {found.examples} examples")


def _say(text: str) -> None:
    print("\n" + textwrap.fill(text, 119) + "\n", flush=True)
