"""The caller's side of a training loop: optimizer, hyper-parameters, groups, master weights and loss scale.

If every bit must be known, only values with short sums of powers of two are drawn, and no Adam.
"""

from dataclasses import replace

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.model import Group, Hyperparameters, LossScale, Parameter
from lockstep.properties.claims import MASTERS
from lockstep.properties.events.caller import TrainingOptions, choose
from lockstep.properties.strategies.models import Options

# The first values are short, see `properties.events.caller.is_short`. The others round, so their results are enclosed.
MOMENTUM = (
    Hyperparameters(momentum=0.5),
    Hyperparameters(momentum=0.5, nesterov=True),
    Hyperparameters(momentum=0.5, dampening=0.5),
    Hyperparameters(momentum=0.9),
    Hyperparameters(momentum=0.9, nesterov=True),
)
ADAM = (Hyperparameters(), Hyperparameters(betas=(0.5, 0.75)), Hyperparameters(eps=0.001))
DECAY = (0.5, 0.01)
# With 2**14, sums of float16 overflow; with 2**16, each value does. With 1, unscaling changes nothing.
SCALES = (2.0, 8.0, 1024.0, 16384.0, 65536.0, 1.0)
INTERVALS = (2000, 1, 2)
IN_GROUPS = (
    Hyperparameters(learning_rate=0.25),
    Hyperparameters(weight_decay=0.5),
    Hyperparameters(learning_rate=0.0),
    Hyperparameters(maximize=True),
    Hyperparameters(learning_rate=0.1),
)
SET = (
    Hyperparameters(learning_rate=0.25),
    Hyperparameters(weight_decay=0.5),
    Hyperparameters(learning_rate=1.0, weight_decay=0.0),
    Hyperparameters(learning_rate=0.0),  # the start of a schedule with warm-up
    Hyperparameters(maximize=True),
    Hyperparameters(learning_rate=0.1),
)
# Further values, for one optimizer only. Torch's SGD allows Nesterov momentum or dampening, not both.
OWN = {
    "SGD": (Hyperparameters(momentum=0.5), Hyperparameters(momentum=0.25), Hyperparameters(dampening=0.5)),
    "Nesterov": (Hyperparameters(momentum=0.5), Hyperparameters(momentum=0.25), Hyperparameters(nesterov=False)),
    "Adam": (Hyperparameters(betas=(0.5, 0.75)), Hyperparameters(eps=0.5)),
}


def training(
    options: Options, model: tuple[Parameter, ...], short: bool, keeps_masters: bool | str, stateless: bool = False
) -> TrainingOptions:
    """The caller's options for a model. ``keeps_masters``: as claimed. ``stateless``: no group has momentum."""
    sixteen = any(FORMATS[parameter.dtype].bytes == 2 for parameter in model)
    asked = keeps_masters == MASTERS or bool({"masters", "adam"} & options.keys())
    masters = sixteen and bool(keeps_masters) and asked
    short = short or (sixteen and not masters)  # a step that rounds is enclosed in wider formats only
    adam = "adam" in options and not short
    if adam:
        values = ADAM[options["adam"] // 2 % len(ADAM)]
    else:
        values = choose(MOMENTUM, options["momentum"], short) if "momentum" in options else Hyperparameters()
    if "weight decay" in options:
        values = replace(values, weight_decay=DECAY[0 if short else options["weight decay"] % len(DECAY)])
    if "long rate" in options and not short:
        values = replace(values, learning_rate=0.1)
    scale = None
    if (form := options.get("loss scale")) is not None:
        scale = LossScale(SCALES[form % len(SCALES)], INTERVALS[form // len(SCALES) % len(INTERVALS)])
    # If no group begins with momentum, none gets it later, because FSDP1 cannot save state that only some parameters
    # have.
    kind = "Adam" if adam else "Nesterov" if values.nesterov else "SGD"
    own = OWN[kind] if adam or (values.momentum and not stateless) else ()
    return TrainingOptions(
        ("Adam", "AdamW")[options["adam"] % 2] if adam else "SGD",
        values,
        groups(options["groups"], model, short, (*IN_GROUPS[:1], *own, *IN_GROUPS[1:])) if "groups" in options else (),
        masters,
        scale,
        (*own, *SET),
    )


def groups(
    form: int, model: tuple[Parameter, ...], short: bool, among: tuple[Hyperparameters, ...]
) -> tuple[Group, ...]:
    """Parameter groups: one tensor in a group, all tensors after the first, or a group for each of the last two.

    ``among``: the hyper-parameters to choose from.
    """
    tensors = [index for index, parameter in enumerate(model) if parameter.tied is None]
    kind, which = form % 3, form // 3
    if kind == 0 or len(tensors) < 2:
        return (Group((tensors[-1 - which % len(tensors)],), choose(among, which, short)),)
    if kind == 1:
        return (Group(tuple(tensors[1:]), choose(among, which, short)),)
    return tuple(Group((index,), choose(among, which + index, short)) for index in tensors[-2:])
