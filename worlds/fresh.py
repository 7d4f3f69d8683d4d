"""What an example must not inherit from the one before it on the same process or thread."""

import torch


def fresh_state() -> None:
    """Sets what torch keeps per thread or process, and an implementation may have changed, to how torch begins.

    Random numbers start from the same seed in every example. `torch.manual_seed` would ask every accelerator too, which
    takes 0.1 ms.
    """
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    torch.default_generator.manual_seed(0)
