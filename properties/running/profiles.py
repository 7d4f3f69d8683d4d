"""Hypothesis' profiles: the number of examples of a law, and whether each run draws new ones.

The profiles:

    dev      a few, new ones each time; earlier failures are tried first
    ci       more, the same each time
    release  as many as ci, from a printed seed, so that a stopped run can resume
    nightly  many, in portions, otherwise as release

In dev and ci, many implementations under test share a law's examples, as in a run without --impl. So the laws on the
shipped implementations take less than three minutes in dev on two cores, and the whole suite less than half an hour in
ci. In the other profiles each implementation gets the full number, which takes hours.
"""

import os
import random

from hypothesis import settings
from hypothesis.errors import InvalidArgument

from lockstep.properties.implementations import SLOW, Unusable
from lockstep.properties.running.record import Record

# An example takes so many times as long on real processes, or with FSDP on sim. Real processes confirm more than they
# find.
TIMES_AS_LONG = 10
# In dev and ci, at most `FULLY` implementations get the full number of examples. More of them share `SHARED`, which
# gives each shipped one two examples in dev and four in ci.
FULLY, SHARED = 3, {"dev": 30, "ci": 56}
FEW = 20  # fewer examples of a law than this show little
LONG = ("release", "nightly")
USUAL = 100  # examples of a law in dev, and if none of these profiles is chosen
# The examples of one portion of a long search. Each portion has its own seed and is recorded.
PORTION = 500


def register() -> None:
    """Register the profiles, and choose one if no option does."""
    # Hypothesis derandomizes by default if it detects CI, so each profile says what it wants.
    settings.register_profile("dev", max_examples=USUAL, derandomize=False)
    settings.register_profile("ci", max_examples=500, derandomize=True, database=None)
    settings.register_profile("release", max_examples=500, derandomize=False)
    settings.register_profile("nightly", max_examples=5000, derandomize=False)
    settings.load_profile("ci" if os.environ.get("CI") else "dev")


def examples(real: bool, implementations: int = 1, profile: str = "", slow: bool = False) -> int:
    """The examples of a law on one of ``implementations`` implementations, in a profile (default: the current one).

    ``real``: on real processes. ``slow``: the implementation is slow, so it gets fewer, except in long profiles.
    """
    name = profile or settings.get_current_profile_name()
    most = settings.get_profile(name).max_examples
    for short, shared in SHARED.items():
        # Compared by prefix, because an option of Hypothesis changes the name to "ci-with-verbose-verbosity".
        if name.startswith(short) and implementations > FULLY:
            most = max(1, shared // implementations)
    return max(1, most // TIMES_AS_LONG) if real or (slow and not name.startswith(LONG)) else most


def of_so_many(most: int, implementation: str, real: bool) -> int:
    """The examples of a law on an implementation, of at most ``most``. ``real``: on real processes."""
    return max(1, most // TIMES_AS_LONG) if real or implementation in SLOW else most


def told_if_few(world: str, implementations: int, profile: str = "") -> str:
    """The warning that many implementations share few examples of each law; empty if there are enough."""
    most, alone = (examples(world != "sim", number, profile) for number in (implementations, 1))
    if most >= FEW or most == alone:
        return ""
    words = f"Few examples: with {implementations} implementations, each law gets only {most} of each on {world}."
    return f"{words} For {alone} or more, check at most {FULLY} at a time, or use the profile release."


def run_seed(given: str | None, profile: str, record: Record | None) -> str | None:
    """The seed of a run: the user's, else the record's, else a new one for a long run or a new record.

    None lets Hypothesis choose, which then also tries earlier failures first. Begins the record. Raises Unusable.
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
    """The seed of one part of a run, computed from the seed of the run and the names of the part."""
    return random.Random(" ".join(map(str, what))).getrandbits(64)
