"""Checks as other projects' tests make them, told in own words and run on every rank; each says whether it passes.

Where a peer compares with a tolerance, torch's own defaults stand in for it (they are tighter than the peers'), or the
figure is the peer's and is named as such. All train one layer on inputs that differ by rank, unless that is the point.
"""

import contextlib
import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.properties.ranks import adapter, lookup

Wrap = Callable[[nn.Module], Any]
Check = Callable[[Wrap, int, int], bool]
Kind = Callable[..., torch.optim.Optimizer]

# fairscale compares parameters to within ten learning rates (1e-3, with 1e-4): Adam moves by about one in a step.
FAIRSCALES_STEPS = 10
# DeepSpeed compares losses to within a half and one hundredth, at a learning rate of 1.5e-4, for five steps.
DEEPSPEEDS_PART, DEEPSPEEDS_REST, DEEPSPEEDS_RATE, DEEPSPEEDS_STEPS = 0.5, 0.01, 1.5e-4, 5


def run_check(payload: str, rank: int, world_size: int) -> Mapping[str, Any]:
    """Payload: the implementation's and the check's name. Returns whether the check ``passes`` on this rank."""
    request = json.loads(payload)
    torch.manual_seed(7)  # as peers do: every rank begins alike
    check: Check = CHECKS[request["check"]]
    return {"passes": check(lookup.find(request["implementation"]), rank, world_size)}


def rows(count: int, rank: int) -> torch.Tensor:
    """A rank's samples."""
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(rank))


def everybodys(world_size: int) -> torch.Tensor:
    """The samples of all ranks."""
    return torch.cat([rows(5, rank) for rank in range(world_size)])


def backward(wrapped: Any, inputs: torch.Tensor) -> torch.Tensor:
    """The loss, whose gradient is then synchronized."""
    loss: torch.Tensor = wrapped(inputs).abs().square().mean()  # real, of complex outputs too
    loss.backward()
    adapter.finish(wrapped)
    return loss.detach()


def parameters_without_any_step(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Ten backwards, no optimizer, and then parameters are compared: nothing has changed them (read)."""
    model = nn.Linear(4, 2)
    reference, wrapped = copy.deepcopy(model), wrap(model)
    for _ in range(10):
        backward(wrapped, rows(5, rank))
        backward(reference, everybodys(world_size))
    return all(map(torch.equal, model.parameters(), reference.parameters()))


def one_batch_for_all_ranks(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Every rank has the same samples, so that the mean over ranks is what each has by itself (read)."""
    model = nn.Linear(4, 2)
    reference, wrapped = copy.deepcopy(model), wrap(model)
    backward(wrapped, rows(5, 0))
    backward(reference, rows(5, 0))
    return all(torch.equal(p.grad, q.grad) for p, q in _pairs(model, reference))


def one_element_of_ones(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Every element of the gradient is 1, and the first is looked at (read)."""
    model = nn.Linear(4, 2, bias=False)
    wrapped = wrap(model)
    wrapped(torch.ones(1, 4)).sum().backward()
    adapter.finish(wrapped)
    return bool(model.weight.grad is not None and model.weight.grad.reshape(-1)[0] == 1)


def one_complex_batch_for_all_ranks(wrap: Wrap, rank: int, world_size: int) -> bool:
    """The same of complex parameters (read)."""
    model = nn.Linear(4, 2, dtype=torch.complex64)
    reference, wrapped = copy.deepcopy(model), wrap(model)
    for module in (wrapped, reference):
        backward(module, rows(5, 0).to(torch.complex64))
    return all(torch.equal(p.grad, q.grad) for p, q in _pairs(model, reference))


def they_begin_alike(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Ranks are compared with one another once, right after construction (read)."""
    model = nn.Linear(4, 2)
    for parameter in model.parameters():
        parameter.data += rank
    wrapped = wrap(model)
    everybodys_values: list[Any] = [None] * world_size
    dist.all_gather_object(everybodys_values, [parameter.tolist() for parameter in model.parameters()])
    backward(wrapped, rows(5, rank))
    return all(values == everybodys_values[0] for values in everybodys_values)


def it_is_constructed(wrap: Wrap, rank: int, world_size: int) -> bool:
    """A model whose last layer has no outputs is wrapped, and that is all (read)."""
    wrap(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 0)))
    return True


def complex_parameters_do_not_raise(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Complex parameters are trained, and nothing is asserted (read)."""
    model = nn.Linear(4, 2, dtype=torch.complex64)
    wrapped, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        backward(wrapped, rows(5, rank).to(torch.complex64))
        optimizer.step()
    return True


def unused_names_of_one_tensor_do_not_raise(wrap: Wrap, rank: int, world_size: int) -> bool:
    """A tensor with two names that nobody uses is beside what is trained; nothing is asserted (read)."""
    model = nn.ModuleDict({"unused": nn.Linear(4, 2), "too": nn.Linear(4, 2), "used": nn.Linear(4, 2)})
    model["too"].bias = model["unused"].bias
    model.forward = model["used"].forward
    wrapped = wrap(model)
    for _ in range(6):
        backward(wrapped, rows(5, rank))
    return True


def nothing_is_cloned(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Forward and backward run where cloning raises; nothing is asserted of gradients (read)."""
    wrapped = wrap(nn.Linear(4, 2))
    with _NoClones():
        wrapped(rows(5, rank)).sum().backward()
    adapter.finish(wrapped)
    return True


class _NoClones(TorchDispatchMode):
    """Whoever clones gets an error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.clone:
            raise RuntimeError("cloned")
        return func(*args, **(kwargs or {}))


def again_after_an_error(wrap: Wrap, rank: int, world_size: int) -> bool:
    """A backward raises, gradients are dropped, another one runs; nothing is asserted (read)."""
    model = nn.Linear(4, 2)
    wrapped, inputs = wrap(model), rows(5, rank).requires_grad_()
    inputs.register_hook(_raise)
    with contextlib.suppress(ArithmeticError):
        wrapped(inputs).square().mean().backward()
    model.zero_grad()
    backward(wrapped, rows(5, rank))
    return True


def _raise(gradient: torch.Tensor) -> None:
    raise ArithmeticError


def another_wrapper_does_not_raise(wrap: Wrap, rank: int, world_size: int) -> bool:
    """A model is wrapped and trained, and after it another, here in the same group; nothing is asserted (read)."""
    return all(it_does_not_raise(wrap, rank, world_size) for _ in range(2))


def it_does_not_raise(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Runs, and asserts nothing (read)."""
    backward(wrap(nn.Linear(4, 2)), rows(5, rank))
    return True


def two_runs_under_no_sync(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Accumulates and steps twice over, and compares the two runs with each other (read)."""
    ends = []
    model = nn.Linear(4, 2)
    for each in (copy.deepcopy(model), copy.deepcopy(model)):
        wrapped = wrap(each)
        with wrapped.no_sync():
            wrapped(rows(5, rank)).square().mean().backward()
        backward(wrapped, rows(5, rank + world_size))
        torch.optim.SGD(each.parameters(), lr=0.1).step()
        ends.append(list(each.parameters()))
    return all(map(torch.equal, *ends))


def rank_zero_against_the_baseline(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Only rank 0 compares its gradients with those of the whole batch (read)."""
    model = nn.Linear(4, 2)
    reference, wrapped = copy.deepcopy(model), wrap(model)
    backward(wrapped, rows(5, rank))
    backward(reference, everybodys(world_size))
    return rank != 0 or _close([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])


def gradients_cleared_before_the_step(wrap: Wrap, rank: int, world_size: int) -> bool:
    """backward, zero_grad, step: the parameter keeps its value, here and in the reference (measured)."""
    model = nn.Linear(4, 2)
    reference, wrapped = copy.deepcopy(model), wrap(model)
    for _ in range(5):
        for module, inputs in ((wrapped, rows(5, rank)), (reference, everybodys(world_size))):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            backward(module, inputs)
            optimizer.zero_grad()
            optimizer.step()
    return all(map(torch.equal, model.parameters(), reference.parameters()))


def losses_under_adam(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Ten steps of Adam; the losses of each are compared (measured)."""
    model, reference, losses = _train(wrap, rank, world_size, 10, 0.01)
    del model, reference
    return all(_close(mine, theirs) for mine, theirs in losses)


def parameters_under_adam(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Twenty steps of Adam, and then parameters are compared (measured)."""
    model, reference, _ = _train(wrap, rank, world_size, 20, 0.001)
    return _close(list(model.parameters()), list(reference.parameters()))


def parameters_under_adamw(wrap: Wrap, rank: int, world_size: int) -> bool:
    """The same of AdamW (measured)."""
    model, reference, _ = _train(wrap, rank, world_size, 20, 0.001, torch.optim.AdamW)
    return _close(list(model.parameters()), list(reference.parameters()))


def parameters_within_ten_steps(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Two steps of Adam; parameters may differ by ten learning rates (measured: killed at the third step of five)."""
    rate = 1e-4
    model, reference, _ = _train(wrap, rank, world_size, 2, rate)
    return all(bool(((p - q).abs() <= FAIRSCALES_STEPS * rate).all()) for p, q in _pairs(model, reference))


def losses_within_a_half(wrap: Wrap, rank: int, world_size: int) -> bool:
    """Five small steps of Adam; losses may differ by more than such steps can change them (measured)."""
    *_, losses = _train(wrap, rank, world_size, DEEPSPEEDS_STEPS, DEEPSPEEDS_RATE)
    allowed = [DEEPSPEEDS_REST + DEEPSPEEDS_PART * abs(theirs) for _, theirs in losses]
    return all(bool(abs(mine - theirs) <= most) for (mine, theirs), most in zip(losses, allowed, strict=True))


def _train(
    wrap: Wrap, rank: int, world_size: int, steps: int, rate: float, kind: Kind = torch.optim.Adam
) -> tuple[nn.Module, nn.Module, Any]:
    """Steps of an implementation and on the whole batch; losses of both on the whole batch, before each step."""
    model = nn.Linear(4, 2)
    reference, wrapped, losses = copy.deepcopy(model), wrap(model), []
    optimizers = [_optimizer(wrapped, model, kind, rate), kind(reference.parameters(), lr=rate)]
    for _ in range(steps):
        with torch.no_grad():
            losses.append(tuple(each(everybodys(world_size)).square().mean() for each in (model, reference)))
        wrapped.zero_grad()
        backward(wrapped, rows(5, rank))
        reference.zero_grad()
        backward(reference, everybodys(world_size))
        for optimizer in optimizers:
            optimizer.step()
    return model, reference, losses


def _optimizer(wrapped: Any, model: nn.Module, kind: Kind, rate: float) -> Any:
    """The implementation's own, if it makes one."""
    if hasattr(wrapped, "make_optimizer"):
        return wrapped.make_optimizer(kind, [{"names": [name for name, _ in model.named_parameters()]}], lr=rate)
    return kind(model.parameters(), lr=rate)


def _pairs(model: nn.Module, reference: nn.Module) -> Any:
    return zip(model.parameters(), reference.parameters(), strict=True)


def _close(mine: Any, theirs: Any) -> bool:
    """As torch compares by default."""
    try:
        torch.testing.assert_close(mine, theirs)
    except AssertionError:
        return False
    return True


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        parameters_without_any_step,
        one_batch_for_all_ranks,
        one_element_of_ones,
        one_complex_batch_for_all_ranks,
        they_begin_alike,
        it_is_constructed,
        complex_parameters_do_not_raise,
        unused_names_of_one_tensor_do_not_raise,
        nothing_is_cloned,
        again_after_an_error,
        another_wrapper_does_not_raise,
        it_does_not_raise,
        two_runs_under_no_sync,
        rank_zero_against_the_baseline,
        gradients_cleared_before_the_step,
        losses_under_adam,
        parameters_under_adam,
        parameters_under_adamw,
        parameters_within_ten_steps,
        losses_within_a_half,
    )
}
