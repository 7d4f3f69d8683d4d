"""The cost model for a run of the simulated world: seconds of computation, and seconds of a collective."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from lockstep.oracle.cost import collective_time
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.worlds.contract import Passage

SIZE = 2**26  # about as many bytes are assumed for the parameters of a small program


def as_large_as(scenario: Scenario) -> int:
    """The number of bytes that one byte of a program stands for, so that its parameters have about ``SIZE`` bytes."""
    held = sum(each.nbytes for each in scenario.parameters)
    return 1 << max(0, SIZE.bit_length() - held.bit_length())


@dataclass(frozen=True)
class CostModel:
    """The seconds of computing and communicating.

    ``backward``: bytes of gradients that backward computes per second; forward takes half as long, an optimizer step a
    tenth. ``latency``: alpha, the seconds of one message. ``bandwidth``: bytes per second of one rank. ``scale``: the
    number of bytes that one byte of the program stands for.
    """

    backward: Fraction = Fraction(7 * 10**9)
    latency: Fraction = Fraction(20, 10**6)
    bandwidth: Fraction = Fraction(10 * 10**9)
    scale: int = 1

    def gradient(self, parameter: Parameter) -> Fraction:
        """The seconds of backward from the previous gradient until that of a parameter is final."""
        return self.scale * parameter.nbytes / self.backward

    def forward(self, parameter: Parameter) -> Fraction:
        """The seconds of the part of forward that uses a parameter."""
        return self.gradient(parameter) / 2

    def optimizer(self, parameters: Sequence[Parameter]) -> Fraction:
        """The seconds of an optimizer step."""
        return sum(map(self.gradient, parameters), Fraction(0)) / 10

    def collective(self, passage: Passage) -> Fraction:
        """The seconds of a collective, see `oracle.cost.collective_time`.

        An all-to-all moves as much as a reduce-scatter. Scatters and gathers record the size of one member's part, so
        the full size is that of all members.
        """
        operation, members = passage.collective.operation, len(passage.members)
        known = {"barrier": "all_reduce", "all_to_all": "reduce_scatter"}.get(operation, operation)
        whole = passage.bytes * (members if known in ("all_gather", "gather", "scatter") else 1) * self.scale
        return collective_time(known, whole, members, self.latency, self.bandwidth)

    def words(self) -> str:
        """The model in sentences."""
        scaled = f" One byte counts as {self.scale:,}." if self.scale != 1 else ""
        return (
            f"Times follow a cost model. Backward makes {_giga(self.backward)} GB of gradients per second; forward "
            "takes half as long, an optimizer step a tenth. A ring all-reduce of S bytes on N ranks takes 2(N-1) x "
            f"{float(self.latency * 10**6):g} us + 2(N-1)/N x S / {_giga(self.bandwidth)} GB/s. Each process group "
            f"carries one collective at a time. Sends and receives take no time.{scaled}"
        )


def _giga(rate: Fraction) -> str:
    return f"{float(rate / 10**9):g}"
