"""Kernels that a user could hand over: plain torch, some right and some wrong, and not all that there could be."""

from typing import Any

import torch


class SomeKernels:
    """Packs in torch, without scaling, and takes norms of 32 bits without care for their range."""

    claims = {"kernels": True}

    @staticmethod
    def pack(tensors: list[torch.Tensor], bucket: torch.Tensor) -> None:
        if tensors:
            torch.cat([tensor.reshape(-1) for tensor in tensors], out=bucket)

    @staticmethod
    def unpack(bucket: torch.Tensor, tensors: list[torch.Tensor]) -> None:
        for tensor, part in zip(tensors, bucket.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    @staticmethod
    def norm(tensors: list[torch.Tensor]) -> Any:
        return sum(tensor.float().square().sum() for tensor in tensors) ** 0.5


def end_to_end(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The elements of all, in one tensor; a zero where there are none."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors] or [torch.zeros(1)])


def averaged(tensors: list[torch.Tensor], divisor: float) -> list[torch.Tensor]:
    """Divided in float32. On a GPU torch divides by a number of Python's by multiplying with its reciprocal."""
    return [tensor.float() / tensor.new_tensor(divisor, dtype=torch.float32) for tensor in tensors]


class FewArguments:
    """Right kernels with no argument more than each needs: no law may ask for one that is not there."""

    claims = {"kernels": True}

    pack, unpack = SomeKernels.pack, SomeKernels.unpack

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype, copy=True)

    @staticmethod
    def norm(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.linalg.vector_norm(end_to_end(tensors).double()).float()

    @staticmethod
    def average_and_clip_(tensors: list[torch.Tensor], divisor: float, max_norm: float) -> torch.Tensor:
        averages = averaged(tensors, divisor)
        norm = FewArguments.norm(averages)
        coefficient = torch.minimum(torch.ones(()), torch.tensor(max_norm) / (norm + 1e-6))
        for tensor, average in zip(tensors, averages, strict=True):
            tensor.copy_(average * coefficient)
        return norm

    @staticmethod
    def sgd_step(param: torch.Tensor, master: torch.Tensor, grad: torch.Tensor, lr: float) -> None:
        master -= lr * grad.float()
        param.copy_(master)

    @staticmethod
    def adamw_step(
        param: torch.Tensor,
        master: torch.Tensor,
        grad: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
        step: int,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        master *= 1 - lr * weight_decay
        exp_avg.lerp_(grad.float(), 1 - betas[0])
        exp_avg_sq.mul_(betas[1]).addcmul_(grad.float(), grad.float(), value=1 - betas[1])
        root = (exp_avg_sq.double().sqrt() / (1 - betas[1] ** step) ** 0.5).float() + eps
        master.addcdiv_(exp_avg, root, value=-lr / (1 - betas[0] ** step))
        param.copy_(master)


class ClipsAsTorchDoes(FewArguments):
    """Python's number over a tensor is a product with the tensor's reciprocal in torch: rounded twice."""

    @staticmethod
    def average_and_clip_(tensors: list[torch.Tensor], divisor: float, max_norm: float) -> torch.Tensor:
        averages = averaged(tensors, divisor)
        norm = FewArguments.norm(averages)
        coefficient = ClipsAsTorchDoes.of_norm(norm, max_norm)
        for tensor, average in zip(tensors, averages, strict=True):
            tensor.copy_(average * coefficient)
        return norm

    @staticmethod
    def clip_coefficient(tensors: list[torch.Tensor], max_norm: float) -> torch.Tensor:
        return ClipsAsTorchDoes.of_norm(FewArguments.norm(tensors), max_norm)

    @staticmethod
    def of_norm(norm: torch.Tensor, max_norm: float) -> torch.Tensor:
        return torch.clamp(max_norm / (norm + 1e-6), max=1.0)


class ClipsInFloat64(FewArguments):
    """Rounds neither norm nor coefficient before it multiplies."""

    @staticmethod
    def average_and_clip_(tensors: list[torch.Tensor], divisor: float, max_norm: float) -> torch.Tensor:
        averages = averaged(tensors, divisor)
        norm = torch.linalg.vector_norm(end_to_end(averages).double())
        coefficient = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for tensor, average in zip(tensors, averages, strict=True):
            tensor.copy_((average.double() * coefficient).float())
        return norm.float()


class DividesToClip(FewArguments):
    """Divides by (norm + 1e-6) / max_norm where that is larger than 1."""

    @staticmethod
    def average_and_clip_(tensors: list[torch.Tensor], divisor: float, max_norm: float) -> torch.Tensor:
        averages = averaged(tensors, divisor)
        norm = FewArguments.norm(averages)
        over = torch.clamp((norm + 1e-6) / max_norm, min=1.0)
        for tensor, average in zip(tensors, averages, strict=True):
            tensor.copy_(average / over)
        return norm


class OneFactor:
    """Right kernels that multiply or divide by one thing, and leave every dtype as it is."""

    claims = {"kernels": True}

    @staticmethod
    def pack(tensors: list[torch.Tensor], bucket: torch.Tensor, scale: float = 1.0) -> None:
        if tensors:
            SomeKernels.pack([tensor if scale == 1 else tensor * scale for tensor in tensors], bucket)

    @staticmethod
    def unpack(bucket: torch.Tensor, tensors: list[torch.Tensor], divisor: float) -> None:
        SomeKernels.unpack(bucket if divisor == 1 else bucket / divisor, tensors)

    @staticmethod
    def scale_(tensors: list[torch.Tensor], coefficient: torch.Tensor) -> None:
        for tensor in tensors:
            tensor.copy_(tensor.float() * coefficient)


class Raises:
    """A step that fails, and a norm that fails in many words."""

    claims = {"kernels": True}

    @staticmethod
    def norm(tensors: list[torch.Tensor], divisor: float = 1.0) -> torch.Tensor:
        raise RuntimeError("device-side assert\ntriggered, say,\nby an index")

    @staticmethod
    def sgd_step(param: torch.Tensor, master: torch.Tensor, grad: torch.Tensor, *, lr: float) -> None:
        raise ValueError(f"no {grad.dtype}")


class ForgetsStrides:
    """Takes what lies in memory for what is in row-major order, and cannot scale two tensors. Its norm is right."""

    claims = {"kernels": True}

    @staticmethod
    def pack(tensors: list[torch.Tensor], bucket: torch.Tensor) -> None:
        flat = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors]
        bucket.copy_(torch.cat([bucket[:0], *flat]))

    @staticmethod
    def scale_(tensors: list[torch.Tensor], divisor: float = 1.0) -> None:
        for tensor in tensors[:1]:
            tensor.div_(divisor)

    @staticmethod
    def norm(tensors: list[torch.Tensor]) -> torch.Tensor:
        return end_to_end(tensors).double().norm()
