"""The caller's optimizer in a script, or one for each group; master weights, and the loss scale."""

from lockstep.oracle import hyperparameters
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.optimizers import SGD, Adam
from lockstep.properties.claims import MASTERS
from lockstep.properties.naming import parameter_name
from lockstep.properties.script import stepped
from lockstep.properties.script.head import place
from lockstep.properties.script.writer import Writer


def make(writer: Writer) -> list[str]:
    """The lines that make the caller's optimizer, or one for each group, and master weights if there are any."""
    scenario = writer.scenario
    settings = hyperparameters.at_the_start(scenario)
    lines, groups = [], []
    if writer.in_pieces:
        for group, values in zip(scenario.all_groups, settings, strict=True):
            within = [parameter_name(index) for index in group.parameters]
            groups.append(f"{{'names': {within}, {_keywords(values, ': ', quoted=True)}}}")
        asks = scenario.masters and writer.implementation.claims.masters != MASTERS
        defaults = f", lr={scenario.learning_rate!r}{', masters=True' * asks}"
        return _made(writer, f"make_optimizer(torch.optim.{scenario.optimizer}, ", groups, defaults)
    if writer.masters:
        sixteen = [i for i in writer.scenario.tensors if FORMATS[scenario.parameters[i].dtype].bytes == 2]
        made = (f'"{parameter_name(i)}": nn.Parameter({place(scenario, i)}.detach().float())' for i in sixteen)
        lines += [f"masters = {{{', '.join(made)}}}"]
    for group, values in zip(scenario.all_groups, settings, strict=True):
        members = ", ".join(held(writer, index) for index in group.parameters)
        groups.append(f"{{'params': [{members}], {_keywords(values, ': ', quoted=True)}}}")
    if writer.implementation.plain:
        before, call, groups, defaults = stepped.make(writer, groups)
        return [*lines, *before, *_made(writer, call, groups, defaults)]
    if len(groups) == 1 and not writer.masters:
        chosen = _keywords(settings[0], "=")
        return [*lines, f"optimizer = torch.optim.{scenario.optimizer}({writer.asked}.parameters(), {chosen})"]
    return [*lines, *_made(writer, f"torch.optim.{scenario.optimizer}(", groups)]


def _made(writer: Writer, make: str, groups: list[str], defaults: str = "") -> list[str]:
    """The lines for one optimizer of these groups, or for one of each group."""
    if writer.several:
        each = [f"    {number}: {make}[{groups[number]}]{defaults})," for (number,) in writer.scenario.optimizers]
        return ["optimizers = {  # by group", *each, "}"]
    return [f"optimizer = {make}[", *(f"    {group}," for group in groups), f"]{defaults})"]


def add(writer: Writer) -> list[str]:
    """The lines that add the last group to a sharded optimizer that was made without it."""
    values = writer.scenario.standings[writer.conditions.added].settings[-1]
    members = ", ".join(held(writer, index) for index in writer.scenario.all_groups[-1].parameters)
    told = f"{{'params': [{members}], {_keywords(values, ': ', quoted=True)}}}"
    return [f"optimizer.add_param_group({told})"]


def held(writer: Writer, tensor: int) -> str:
    """The parameter or master weight that the optimizer steps for a tensor."""
    sixteen = FORMATS[writer.scenario.parameters[tensor].dtype].bytes == 2
    return f'masters["{parameter_name(tensor)}"]' if writer.masters and sixteen else place(writer.scenario, tensor)


def state(writer: Writer, tensor: int, name: str) -> str:
    """The optimizer state of a tensor with this name, as code."""
    if writer.in_pieces:
        return f'state("{parameter_name(tensor)}").get("{name}")'
    if name == "master":
        return held(writer, tensor)
    groups = enumerate(writer.scenario.all_groups)
    number = next(number for number, group in groups if tensor in group.parameters)
    optimizer = f"optimizers[{number}]" if writer.several else "optimizer"
    return f'{optimizer}.state[{held(writer, tensor)}].get("{name}")'


def loss_scale(writer: Writer) -> list[str]:
    """The lines that set the initial loss scale."""
    assert writer.scenario.loss_scale is not None
    return [f"scale, steps, unscaled, skip = {writer.scenario.loss_scale.initial}, 0, False, False"]


def unscale(writer: Writer) -> list[str]:
    """The lines that divide gradients by the scale, and check if all are finite."""
    if writer.in_pieces:
        return ["unscaled, skip = True, not unscale(scale)"]
    if "unscale_" in writer.implementation.offers:
        return ["unscaled, skip = True, not wrapped.unscale_(scale)"]
    lines = [f"for p in {writer.asked}.parameters():", "    if p.grad is not None:", "        p.grad /= scale"]
    finite = f"p.grad is None or bool(p.grad.isfinite().all()) for p in {writer.asked}.parameters()"
    return [*lines, f"unscaled, skip = True, not all({finite})"]


def _keywords(settings: SGD | Adam, between: str, quoted: bool = False) -> str:
    """The settings of an optimizer as torch takes them, without torch's defaults."""
    defaults = vars(type(settings)(settings.lr))
    decoupled = isinstance(settings, Adam) and settings.decoupled  # torch's AdamW decays unless told not to
    given = {
        name: value
        for name, value in vars(settings).items()
        if name == "lr" or (name == "weight_decay" and decoupled) or (name != "decoupled" and value != defaults[name])
    }
    return ", ".join(f"{k!r}{between}{v!r}" if quoted else f"{k}{between}{v!r}" for k, v in given.items())
