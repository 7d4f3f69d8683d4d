"""Hypothesis' profiles: how many examples a law gets, and whether they are new ones in every run.

Which there are:

    dev      a few, new ones each time; what once failed is tried again first
    ci       more, the same each time
    release  as many as ci, but from a seed that is printed, so that a run that was stopped can go on
    nightly  many, as in release, in portions

In dev and ci implementations share a law's examples where many are under test, as without --impl: so the laws on what
ships take less than three minutes in dev on two cores, and the whole suite less than half an hour in ci. What ships is
held to the full number in the others, which take hours.
"""

import os
import random

from hypothesis import settings
from hypothesis.errors import InvalidArgument

from lockstep.properties.implementations import SLOW, Unusable
from lockstep.properties.running.record import Record

# So many times as long takes an example on real processes, which confirm more than they find, or of FSDP on sim.
TIMES_AS_LONG = 10
# How many implementations have their full number of examples in dev and ci, and what more of them share: two, and four,
# for each of those that ship.
FULLY, SHARED = 3, {"dev": 30, "ci": 56}
FEW = 20  # examples of a law that show little
LONG = ("release", "nightly")
USUAL = 100  # examples of a law in dev, and where no profile of these is chosen
# Examples after which a long search begins afresh, with a seed of its own, and a record is kept.
PORTION = 500


def register() -> None:
    """Registers the profiles, and chooses one where no option does."""
    # Hypothesis itself derandomizes where it sees CI, so each says what it is.
    settings.register_profile("dev", max_examples=USUAL, derandomize=False)
    settings.register_profile("ci", max_examples=500, derandomize=True, database=None)
    settings.register_profile("release", max_examples=500, derandomize=False)
    settings.register_profile("nightly", max_examples=5000, derandomize=False)
    settings.load_profile("ci" if os.environ.get("CI") else "dev")


def examples(real: bool, implementations: int = 1, profile: str = "", slow: bool = False) -> int:
    """The number of examples that a profile (default: the chosen one) gives a law, on one of so many implementations.

    ``real``: on processes of their own. ``slow``: the implementation is, which a long run does not spare.
    """
    name = profile or settings.get_current_profile_name()
    most = settings.get_profile(name).max_examples
    for short, shared in SHARED.items():
        # By what it begins with, as an option of Hypothesis' makes it "ci-with-verbose-verbosity".
        if name.startswith(short) and implementations > FULLY:
            most = max(1, shared // implementations)
    return max(1, most // TIMES_AS_LONG) if real or (slow and not name.startswith(LONG)) else most


def of_so_many(most: int, implementation: str, real: bool) -> int:
    """The share of so many examples that a law gets on an implementation; ``real``: on real processes."""
    return max(1, most // TIMES_AS_LONG) if real or implementation in SLOW else most


def told_if_few(world: str, implementations: int, profile: str = "") -> str:
    """The warning that many implementations share few examples of each law; empty if there are enough."""
    most, alone = (examples(world != "sim", number, profile) for number in (implementations, 1))
    if most >= FEW or most == alone:
        return ""
    words = f"Few examples: with {implementations} implementations, each law gets only {most} of each on {world}."
    return f"{words} For {alone} or more, check at most {FULLY} at a time, or use the profile release."


def run_seed(given: str | None, profile: str, record: Record | None) -> str | None:
    """The seed of a run: the user's, else that of the record, else a new one for every long run and every record.

    None leaves it to Hypothesis, which then also tries again what once failed. Begins the record. Raises Unusable.
    """
    try:
        derandomized = settings.get_profile(profile).derandomize
    except InvalidArgument:
        raise Unusable(f"profile {profile}: give one of {', '.join((*SHARED, *LONG))}") from None
    chosen = given
    if chosen is None and record is not None:
        chosen = record.seed
    if chosen is None and not derandomized and (profile in LONG or record is not None):
        chosen = str(random.SystemRandom().randrange(2**32))
    if record is not None:
        record.begin(chosen)
    return chosen


def seed_of(*what: object) -> int:
    """The seed of one part of a run, from that of the whole and what tells the parts from one another."""
    return random.Random(" ".join(map(str, what))).getrandbits(64)
