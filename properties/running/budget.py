"""The budget of a law in a run. Examples come in portions, each with its own seed; passed portions are recorded."""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis.strategies import SearchStrategy

from lockstep.properties.implementations import SLOW
from lockstep.properties.law import Law, sentence
from lockstep.properties.running import pace, profiles
from lockstep.properties.running.pace import Pace
from lockstep.properties.running.profiles import PORTION, seed_of
from lockstep.properties.running.record import Record
from lockstep.properties.running.sources import digest
from lockstep.properties.searching.others import Others
from lockstep.properties.searching.search import Search, refused_for_the_past, search
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import SilentlyWrong

TELL_EVERY = 30.0  # seconds


def say_nothing(line: str) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Budget:
    """The number of examples of a law, or its time, and where progress goes.

    ``seed``: of the whole run; None: Hypothesis chooses. ``record``: portions that passed earlier are not run again.
    ``say`` gets a line now and then while a law takes long. ``implementations``: the number under test. ``examples``:
    of each law; None: the profile decides. ``portion``: the number of examples with one seed. ``others``: the laws that
    are checked together, see `properties.searching.others`. ``pace``: the time of each law, instead of ``examples``.
    """

    seed: str | None = None
    record: Record | None = None
    say: Callable[[str], None] = say_nothing
    implementations: int = 1
    examples: int | None = None
    portion: int = PORTION
    others: Others = field(default_factory=Others)
    pace: Pace | None = None

    def spend(self, law: Law, trial: Trial, shrink: bool = True, draws: SearchStrategy[Any] | None = None) -> Search:
        """Search portion by portion. Stop at the first that fails, or in which earlier examples caused a refusal.

        ``shrink`` and ``draws``: as in `properties.searching.search.search`.
        """
        profile, examples = settings(), self._examples(law, trial)
        of = f"{law.name} {trial.implementation.name} {trial.world.name}"
        # Portions that passed on another device or with other claims do not count.
        name, held = trial.implementation.name, f"{of} {trial.world.device} {trial.implementation} {trial.claims}"
        kept_as = f"{of} {digest(held)}{' apart' if trial.apart else ''}"
        progress = Progress(law, trial, examples, self.say)
        whole, size = Search(), self.portion if self.seed is not None else examples
        ends, real = math.inf, trial.world.name != "sim"
        if self.pace is not None:
            ends, size = self.pace.until(name, law, real), pace.portion(real)
        begun = time.monotonic()
        for portion, begin in enumerate(range(0, examples, size)):
            if portion and time.monotonic() > ends:
                break
            wanted = min(size, examples - begin)
            kept = self.record.done(kept_as, portion, name) if self.record else {}
            if kept.get("wanted") == wanted:
                trial.witnessed.update(kept["witnessed"])
                self.others.shown.update(kept.get("shown", {}))
                whole.examples += kept["examples"]
                progress.examples += kept["examples"]
                continue
            if portion and self.others.seldom is not None:
                rare = self.others.seldom.draws(law, trial.claims, whole.refused)
                draws = draws if rare is None else rare
            before, shown = Counter(trial.witnessed), Counter(self.others.shown)
            found = search(
                progress.law,
                trial,
                wanted,
                None if self.seed is None else seed_of(self.seed, of, portion),
                database=profile.database if portion == 0 else None,
                derandomize=profile.derandomize,
                shrink=shrink,
                draws=draws,
            )
            found.stale = not trial.apart and refused_for_the_past(law, trial, found)
            whole.add(found)
            if found.failures or found.stale:
                break
            if self.record and trial.witnessed[ENDED]:
                witnessed = dict(trial.witnessed - before)
                what = {"wanted": wanted, "examples": found.examples, "witnessed": witnessed}
                what["shown"] = dict(self.others.shown - shown)
                self.record.keep(kept_as, portion, name, what)
        if self.pace is not None and not whole.failures:
            self.pace.spent(real, whole.examples, time.monotonic() - begun)
        return whole

    def look_behind(self, law: Law, trial: Trial) -> Search:
        """Search again for silent corruption alone."""
        profile, examples = settings(), self._examples(law, trial)
        seed = None if self.seed is None else seed_of(self.seed, law.name, trial.implementation.name, "silent")
        options: Any = {"database": profile.database, "derandomize": profile.derandomize}
        return search(law, trial, examples, seed, only=SilentlyWrong, **options)

    def _examples(self, law: Law, trial: Trial) -> int:
        if self.pace is not None:
            return pace.MOST
        if self.examples is not None:
            return self.others.examples(law, self.examples)
        slow = trial.implementation.name in SLOW
        return self.others.examples(law, profiles.examples(trial.world.name != "sim", self.implementations, slow=slow))


class Progress:
    """Counts how often a law is checked, and reports the count every half minute."""

    def __init__(self, law: Law, trial: Trial, total: int, say: Callable[[str], None]) -> None:
        self.law = replace(law, check=self._check)
        self.examples = 0
        self._check_it, self._total, self._say = law.check, total, say
        self._what = f"{law.number} {sentence(law)}: {trial.implementation.short} on {trial.world.name}"
        self._since = self._last = time.monotonic()

    def _check(self, trial: Trial, drawn: Any) -> None:
        now = time.monotonic()
        if now - self._last >= TELL_EVERY:
            self._last = now
            far = f"{self.examples} of {self._total} examples"
            if self.examples > self._total:  # a failure is being made smaller
                far = f"{self._total} examples, and {self.examples - self._total} for a smaller failure"
            self._say(f"{self._what}: {far}, {now - self._since:.0f} s")
        self.examples += 1
        self._check_it(trial, drawn)
