"""A sharded optimizer in a script.

It wraps no model, so the caller broadcasts, averages, and zeroes gradients by it.
"""

from lockstep.properties.claims import SAVED_BY
from lockstep.properties.script.writer import Writer

DEFINITIONS = '''

def begin_alike():
    for p in (*model.parameters(), *model.buffers()):
        whole = p.detach().contiguous()
        dist.broadcast(whole, src=0)
        p.data.copy_(whole)


def means():
    """Of the gradients that some rank has."""
    trained = [p for p in model.parameters() if p.requires_grad]
    there = torch.tensor([float({zeros}p.grad is not None) for p in trained])
    dist.all_reduce(there)
    found = {}
    for p in (p for p, some in zip(trained, there.tolist()) if some):
        whole = torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
        whole = whole.contiguous()
        dist.all_reduce(whole)
        found[p] = whole / dist.get_world_size()
    return found


def average():
    for p, mean in means().items():
{withheld}        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        p.grad.copy_(mean)


def gradients():
    return {gradients}


def zero_grad(set_to_none):
    for each in {optimizers}:
        try:
            each.zero_grad(set_to_none=set_to_none)
        except (AttributeError, TypeError):  # it has none that takes this
            model.zero_grad(set_to_none=set_to_none)
'''
_WITHHELD = "        if p.grad is None:  # this rank had none: it gets no mean\n            continue\n"
# The gradients that the step finds, and their means, which are compared.
_GRADIENTS = "{name: p.grad for name, p in tensors().items()}"
_MEANS = "(lambda means: {name: means.get(p, p.grad) for name, p in tensors().items()})(means())"

CLOSURE = """
kept = {p: p.grad for p in model.parameters()}
for p in kept:
    p.grad = None
runs = []


def closure():  # as if it ran forward and backward: gradients are there only now
    runs.append(torch.is_grad_enabled())
    for p, gradient in kept.items():
        p.grad = gradient
    return torch.tensor(3.0)


loss = {step}(closure)
right = runs == [True] and loss is not None and float(loss) == 3.0
mark = "right" if right else "WRONG, must run it once, with autograd, and return 3.0"
print(f"rank {rank}: step(closure) runs it {len(runs)} times and returns {loss}: {mark}\\n", end="", flush=True)"""

SCHEDULE = """

class Sets(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, rates):
        self.rates = rates
        super().__init__(optimizer)

    def get_lr(self):
        return self.rates


"""


def definitions(writer: Writer) -> str:
    """The further definitions of the script."""
    claims, there = writer.implementation.claims, writer.optimizes
    optimizers = ("[*optimizers.values()]" if writer.several else "[optimizer]") if there else "[None]"
    text = DEFINITIONS.replace("{optimizers}", optimizers).replace("{zeros}", "True or " * (claims.unused == "zero"))
    text = text.replace("{gradients}", _MEANS if claims.averages_in_step else _GRADIENTS)
    text = text.replace("{withheld}", _WITHHELD * writer.conditions.withheld)
    text += OF_RANK_0 if claims.saved_by == SAVED_BY[-1] else ""
    return text + (SCHEDULE if writer.conditions.scheduled else "")


def plain(writer: Writer) -> list[str]:
    """The lines that define the class of the plain optimizer as ``plain``."""
    if not writer.conditions.optimizer:
        return [f"plain = torch.optim.{writer.scenario.optimizer}"]
    home, _, attribute = writer.conditions.optimizer.partition(":")
    found = f"(sys.modules.get({home!r}) or importlib.import_module({home!r}))"
    return ["import importlib, inspect", f"plain = {found}.{attribute}", "known = inspect.signature(plain).parameters"]


def make(writer: Writer, groups: list[str]) -> tuple[list[str], str, list[str], str]:
    """The parts of optimizers for `properties.script.optimizers`: lines before, the call, the groups, defaults."""
    if writer.conditions.optimizer:
        groups = [f"{{k: v for k, v in {group}.items() if k == 'params' or k in known}}" for group in groups]
    defaults = f", {writer.implementation.plain}=plain, lr={writer.scenario.learning_rate!r}"
    made = groups[:-1] if writer.conditions.added >= 0 else groups
    return plain(writer), f"{writer.implementation.short}(", made, defaults


def with_closure(step: str) -> list[str]:
    """The lines of a step with a closure. ``step``: the method."""
    return CLOSURE.replace("{step}", step).splitlines()


def state_of(writer: Writer, optimizer: str) -> str:
    """The code for the saved state of an optimizer: its own or, if rank 0 saves that of all ranks, rank 0's."""
    if not writer.implementation.plain or writer.implementation.claims.saved_by == SAVED_BY[0]:
        return f"{optimizer}.state_dict()"
    return f"of_rank_0({optimizer})"


OF_RANK_0 = """

def of_rank_0(optimizer):
    if hasattr(optimizer, "consolidate_state_dict"):
        optimizer.consolidate_state_dict()
    held = [optimizer.state_dict() if rank == 0 else None]
    dist.broadcast_object_list(held, src=0)
    return held[0]
"""
