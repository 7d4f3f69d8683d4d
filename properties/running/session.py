"""Check all laws on one implementation without a pytest run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.properties.catalogue import every_kernel_law, every_text, laws_named, plainest_first
from lockstep.properties.implementations import Unusable, try_out
from lockstep.properties.kernels import device
from lockstep.properties.kernels.under_test import look_up_kernels
from lockstep.properties.law import Law, as_sentence, sentence
from lockstep.properties.models.on_yours import try_out_model
from lockstep.properties.ranks import cuda_stubs as stubs
from lockstep.properties.ranks.lookup import is_given
from lockstep.properties.running import profiles
from lockstep.properties.running.apart import Docket
from lockstep.properties.running.bench import Bench
from lockstep.properties.running.budget import Budget, say_nothing
from lockstep.properties.running.hold import hold
from lockstep.properties.running.selection import hold_together, is_held
from lockstep.properties.running.target import name_of, why_only_here
from lockstep.properties.running.where import DEFAULT, WORLDS, decide
from lockstep.properties.trial import Trial

Record = Callable[[str, object], None]


@dataclass(frozen=True)
class Held:
    """A law to check, and its world. ``run`` is the body of its test, see `lockstep.properties.running.hold.hold`."""

    number: str
    law: str
    world: str
    run: Callable[[Record], None]


class Session:
    """One implementation on its worlds. `close` ends every process that it has started.

    - ``target``: a class or function, or its name.
    - ``claims``: claims that replace the declared ones.
    - ``world``: the name of a world, or several names.
    - ``laws``: numbers like "P6", or words of a law's name; None: all laws.
    - ``examples``: programs for each law on sim, and a tenth of that on real processes; None: as many as `lockstep
      check` has.
    - ``seed``: None: new programs each time.
    - ``report``: the folder for scripts of failures.
    - ``model``: a function that makes the user's own model, or its name; laws are then checked on that model alone.
    - ``cuda_stubs``: without a GPU, let CUDA calls that only order work do nothing.
    - ``say``: called with a line of progress if a law takes long.

    Raises Unusable with a message of one line for a target that cannot be tested.
    """

    def __init__(
        self,
        target: str | Callable[..., Any],
        claims: Mapping[str, Any] | None = None,
        world: str | Sequence[str] = DEFAULT[0],
        laws: str | Sequence[str] | None = None,
        examples: int | None = None,
        seed: int | None = None,
        report: Path | None = None,
        model: str | Callable[..., Any] | None = None,
        cuda_stubs: bool = False,
        say: Callable[[str], None] = say_nothing,
    ) -> None:
        worlds = [world] if isinstance(world, str) else world
        if unknown := [world for world in worlds if world not in WORLDS]:
            raise Unusable(f"world={unknown[0]!r}: give one of {', '.join(map(repr, WORLDS))}")
        if examples is not None and (type(examples) is not int or examples < 1):
            raise Unusable(f"examples={examples!r}: give a whole number, at least 1")
        if seed is not None and type(seed) is not int:
            raise Unusable(f"seed={seed!r}: give a whole number, or None")
        if report is not None and report.exists() and not report.is_dir():
            raise Unusable(f"report={str(report)!r}: that is a file; name a folder for the scripts of failures")
        chosen = _chosen(laws)
        device.choose()
        name, models = name_of(target), None if model is None else name_of(model)
        only_here = is_given(name) or (models is not None and is_given(models))
        given = target if is_given(name) else model
        if only_here and cuda_stubs:
            raise Unusable(f"cuda_stubs=True needs processes of its own: {why_only_here(given)}; put it into a module")
        if only_here and (others := [world for world in worlds if world != "sim"]):
            raise Unusable(
                f"{name}: world={others[0]!r} needs processes of its own, which cannot import what is under test: "
                f'{why_only_here(given)}; put it into a module, or take world="sim"'
            )
        self._bench = Bench([name], decide(list(worlds), None, only_here, 1, False), claims, report)
        self._examples, self._seed, self._chosen, self._say = examples, seed, chosen, say
        self._cuda_stubs = cuda_stubs
        try:
            with stubs.asking(cuda_stubs):
                (self.implementation,) = self._bench.implementations
                try_out(self._bench.implementations, self._bench.world("sim"))
                if models is not None:
                    sim, found = self._bench.world("sim"), self._bench.implementations
                    self._bench.model = try_out_model(models, found, sim, "model=")
        except BaseException:
            self.close()
            raise

    def held(self, probed: bool, docket: Docket | None = None) -> Iterator[Held]:
        """The laws to check on each world that can run them, the plainest first.

        ``probed``: include laws that are only tried. ``docket``: see `lockstep.properties.running.hold.hold`.
        """
        if self.implementation.claims.kernels:
            for test in every_kernel_law().values():
                if test.__name__ in self._chosen:
                    yield Held("P17", as_sentence(test.__name__), "one process", self._kernels(test))
            return
        laws = [law for law in plainest_first() if law.name in self._chosen]
        worlds = self._bench.where.worlds
        if (model := self._bench.model) is not None:
            of_models = [law for law in laws if model.is_held(law, self.implementation.claims)]
            held = [(model.on(law), world) for world in worlds for law in of_models]
        else:
            held = [(law, world) for world in worlds for law in laws]
            held = [(law, world) for law, world in held if is_held(law, self.implementation, world, probed)]
            if held and probed:  # without probing, the caller may run only some of these laws
                hold_together(self._bench, [(self.implementation, world, law) for law, world in held])
        for law, world in held:
            yield Held(law.number, sentence(law), world, self._program(law, world, docket))

    def close(self) -> None:
        """End every process."""
        self._bench.close()

    def trial(self, world: str) -> Trial:
        """The implementation on one of its worlds."""
        return self._bench.trial(self.implementation, world)

    def _program(self, law: Law, world: str, docket: Docket | None) -> Callable[[Record], None]:
        def run(record: Record) -> None:
            with stubs.asking(self._cuda_stubs):
                hold(law, self.trial(world), record, self._budget(world), docket)

        return run

    def _budget(self, world: str) -> Budget:
        examples = profiles.of_so_many(self._examples or profiles.USUAL, self.implementation.name, world != "sim")
        seed = None if self._seed is None else str(self._seed)
        others = self._bench.others[self.implementation.name, world]
        return Budget(seed, say=self._say, examples=examples, others=others)

    def _kernels(self, test: Callable[..., None]) -> Callable[[Record], None]:
        def run(record: Record) -> None:
            kernels = look_up_kernels(self.implementation.name, self._bench.world("sim"))
            test(replace(kernels, examples=self._examples or profiles.USUAL), record)

        return run


def _chosen(laws: str | Sequence[str] | None) -> set[str]:
    """The names of the tests of the chosen laws. Raises Unusable if a word matches no law."""
    if laws is None:
        return {name for _, name, _ in every_text()}
    chosen = set[str]()
    for word in [laws] if isinstance(laws, str) else laws:
        if not (meant := laws_named(word)):
            known = ", ".join(dict.fromkeys(number for number, _, _ in every_text()))
            raise Unusable(f"laws={word!r}: no law has this number or these words in its name; the numbers are {known}")
        chosen |= {*meant}
    return chosen
