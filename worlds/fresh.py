"""What an example must not inherit from the one before it on the same process or thread."""

import torch


def fresh_state() -> None:
    """Sets what torch keeps per thread or process, and an implementation may have changed, to how torch begins.

    Each is looked at first, since setting takes longer than finding it right.
    """
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
    if torch.get_default_dtype() is not torch.float32:
        torch.set_default_dtype(torch.float32)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)


def seed() -> None:
    """Random numbers of torch start from the same seed in every example.

    `torch.manual_seed` would ask every accelerator too, which takes 0.1 ms.
    """
    torch.default_generator.manual_seed(0)
