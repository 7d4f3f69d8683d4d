"""The model: its parameters and buffers, and bucket caps around their sizes."""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any

from hypothesis import strategies as st

from lockstep.oracle.formats import FORMATS, Format
from lockstep.oracle.lattice import reciprocal_error
from lockstep.oracle.model import Buffer, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims

# Prime sizes, and equal sizes with different shapes. Most have fewer elements than 7, so that 7 ranks cannot share
# them.
SHAPES = ((1,), (2,), (3,), (2, 2), (), (5,), (1, 3), (7,), (11,))
EMPTY = ((0,), (0, 3), (2, 0))
LAID_OUT = (((2, 3), "transposed"), ((2, 3, 2, 2), "channels last"), ((3, 2, 2), "transposed"))
BUFFERS = ((Buffer((1,)),), (Buffer((2,)), Buffer(())), (Buffer((1,), reassigned=True),), (Buffer((3,)),))
MOST_PARAMETERS = 5
# The usual dtype and the other one, if one must have 16 bits.
SIXTEEN = (("bfloat16", "float32"), ("float16", "float32"), ("bfloat16", "float16"))


# The options of a scenario beside its program, and the number that chooses the form of each.
Options = dict[str, int]


@dataclass(frozen=True)
class ModelSeed:
    """The draw for a model.

    ``alike``: all parameters have one shape. Exchanged parameters of one size go unnoticed, while those of different
    sizes crash. ``exchanged``: the usual dtype and the other one change places.
    """

    shapes: list[tuple[tuple[int, ...], bool, bool]]  # shape, whether it has the other dtype, whether it is trained
    alike: bool
    exchanged: bool


@lru_cache
def model_seeds(at_least: int) -> st.SearchStrategy[tuple[Any, ...]]:
    """Draw the fields of a `ModelSeed` for at least so many parameters."""
    parameter = st.tuples(st.sampled_from(SHAPES), st.booleans(), st.sampled_from((True, True, True, False)))
    shapes = st.lists(parameter, min_size=at_least, max_size=MOST_PARAMETERS)
    return st.tuples(shapes, st.booleans(), st.booleans())


def model(seed: ModelSeed, options: Options, claims: Claims, ranks: int) -> tuple[Parameter, ...]:
    """The parameters. At least one is trainable, and all have one dtype unless several are claimed."""
    names = dtypes(ranks, claims, options.get("16 bits"))
    usual, other = names[0], names[-1]
    if seed.exchanged and (claims.several_dtypes or "16 bits" not in options):
        usual, other = other, usual
    shapes = [shape if shape or claims.scalars else (1,) for shape, _, _ in seed.shapes]
    if claims.plain_layers:  # plain layers hold matrices, and vectors of an even length
        shapes = [(*shape, 1) if len(shape) == 1 and shape[0] % 2 else shape for shape in shapes]
    # The first parameter never has the other dtype, so that each mixture is drawn in one way only, and shrinks.
    made = [
        Parameter(
            shapes[0] if seed.alike else shape,
            other if odd and index and claims.several_dtypes else usual,
            trained,
        )
        for index, (shape, (_, odd, trained)) in enumerate(zip(shapes, seed.shapes, strict=True))
    ]
    frozen = [place for place, parameter in enumerate(made) if not parameter.trainable]
    missing = claims.parameters_per_rank * ranks - (len(made) - len(frozen))
    for place in frozen[: max(0, missing)]:
        made[place] = replace(made[place], trainable=True)
    if not any(parameter.trainable for parameter in made):
        made[0] = replace(made[0], trainable=True)
    if (form := options.get("empty")) is not None:
        made = made if len(made) > 1 else made * 2
        place = len(made) - 1 - form % len(made)
        made[place] = replace(made[place], shape=EMPTY[form % len(EMPTY)])
    if (form := options.get("layout")) is not None:
        shape, layout = LAID_OUT[form % len(LAID_OUT)]
        place = len(made) - 1 - form // len(LAID_OUT) % len(made)
        made[place] = replace(made[place], shape=shape, layout=layout)
    if (form := options.get("tied")) is not None:
        tied = form % len(made)
        made.append(replace(made[tied], tied=tied))
    return tuple(made)


def units(options: Options, count: int) -> tuple[tuple[int, ...], ...]:
    """The units: none, the last parameter alone, one unit with all, one for each parameter, or two halves."""
    if not {"units", "outside"} & options.keys():
        return ()
    match options.get("units", options.get("outside", 0)) % 4:
        case 0:
            return ((count - 1,),)
        case 1:
            return (tuple(range(count)),)
        case 2:
            return tuple((index,) for index in range(count))
    return tuple(half for half in (tuple(range(count // 2)), tuple(range(count // 2, count))) if half)


def outside(options: Options, units: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The parameters outside their unit: none, the last one of the units, all of the last unit, or the first one."""
    if "outside" not in options:
        return ()
    match options["outside"] // 4:
        case 0:
            return units[-1][-1:]
        case 1:
            return units[-1]
    return units[0][:1]


def called_alike(scenario: Scenario, in_layers: bool = False) -> bool:
    """True if all ranks call the same units in the same order, as is necessary if units are gathered for use.

    ``in_layers``: compare plain layers instead. Each parameter belongs to one plain layer.
    """
    for batch in range(len(scenario.microbatches)):
        orders = (scenario.order(batch, rank) for rank in range(scenario.world_size))
        if in_layers and len({*orders}) > 1:
            return False
        if len({tuple(unit for unit, _ in groupby(map(scenario.reader, order))) for order in orders}) > 1:
            return False
    return True


def replicas(options: Options, ranks: int) -> int:
    """The number of replicas: 1, or another divisor of the number of ranks, the largest first.

    With the largest, each rank holds the whole model.
    """
    divisors = [number for number in range(ranks, 1, -1) if ranks % number == 0]
    return divisors[options["replicas"] % len(divisors)] if "replicas" in options and divisors else 1


def outsiders(options: Options, ranks: int, most_ranks: int) -> int:
    """The number of further ranks in the world that take no part: 0, 1 or 2, within the maximal world size."""
    return min(1 + options["outsiders"] % 2, most_ranks - ranks) if "outsiders" in options else 0


def buffers(options: Options) -> tuple[Buffer, ...]:
    """The buffers of the model; empty unless the option asks for some."""
    return BUFFERS[options["buffers"] % len(BUFFERS)] if "buffers" in options else ()


@lru_cache
def bucket_caps(parameters: tuple[Parameter, ...], required: bool = False) -> st.SearchStrategy[int | None]:
    """A bucket cap in bytes, or None.

    The caps lie at and around the size of each parameter, and of the last two, three and so on together. So there may
    be one bucket or many, and boundaries differ by a byte or an element. Zero sends each parameter by itself.
    """
    alone = sorted({parameter.nbytes for parameter in parameters})
    together = accumulate(parameter.nbytes for parameter in reversed(parameters) if parameter.tied is None)
    sizes = list(dict.fromkeys((*alone, *together)))
    element = max(FORMATS[parameter.dtype].bytes for parameter in parameters)
    # The offset is drawn separately, so that it stays the same if parameters are removed by shrinking.
    beyond = st.sampled_from((0, element, -element, 1, -1, None))
    caps = st.builds(lambda off, size: 0 if off is None else max(0, size + off), beyond, st.sampled_from(sizes))
    return caps if required else st.none() | caps


@lru_cache
def dtypes(world_size: int, claims: Claims, sixteen: int | None = None) -> tuple[str, ...]:
    """The dtypes in which the mean over so many ranks can be exact for any data, also if it is taken in another dtype.

    ``sixteen``: the index in `SIXTEEN` if it must be one of those. An implementation that divides may multiply by the
    rounded reciprocal (`oracle.lattice.mean`). Among 1 to 8 ranks that excludes float32 with 7: |N * fl(1/N) - 1| >
    u/2.
    """
    names: tuple[str, ...] = ("float32", "float64") if claims.float64 else ("float32",)
    if sixteen is not None:
        names = SIXTEEN[sixteen % len(SIXTEEN)]

    def exact(form: Format) -> bool:
        return abs(reciprocal_error(world_size, form)) <= form.unit_roundoff / 2

    if claims.wire_dtype and not exact(FORMATS[claims.wire_dtype]):
        return ()
    wide = FORMATS[claims.gradient_dtype or claims.reduce_dtype or "float16"]
    return tuple(
        name for name in names if exact(FORMATS[name]) and (wide.precision <= FORMATS[name].precision or exact(wide))
    )
