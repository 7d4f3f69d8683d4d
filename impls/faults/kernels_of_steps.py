"""Fused optimizer steps with one known fault each, as published code has them; P17 finds every one."""

import torch

from lockstep.impls.kernels import step as steps
from lockstep.impls.kernels.suite import Kernels


class StateInParamDtype(Kernels):
    """Stores the optimizer's state through the parameter's dtype: databricks/flashoptim#2."""

    @staticmethod
    def adamw_step(param, master, grad, exp_avg, exp_avg_sq, *, step, lr, betas, eps, weight_decay, coefficient=None):
        steps.adamw_step(
            param, master, grad, exp_avg, exp_avg_sq,
            step=step, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, coefficient=coefficient,
        )  # fmt: skip
        for state in (exp_avg, exp_avg_sq):
            state.copy_(state.to(param.dtype))


class StepOffByOne(Kernels):
    """Corrects the bias of the step after."""

    @staticmethod
    def adamw_step(param, master, grad, exp_avg, exp_avg_sq, *, step, lr, betas, eps, weight_decay):
        named = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        steps.adamw_step(param, master, grad, exp_avg, exp_avg_sq, step=step + 1, **named)


class ParameterUpdatedApart(Kernels):
    """Steps the 16-bit parameter itself instead of rounding the master."""

    @staticmethod
    def sgd_step(param, master, grad, momentum_buffer=None, *, lr, momentum=0.0, weight_decay=0.0, first=False):
        before = master.clone()
        named = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "first": first}
        steps.sgd_step(param, master, grad, momentum_buffer, **named)
        param.copy_(before.to(param.dtype) - (before - master).to(param.dtype))


class SgdUnscaled(Kernels):
    """Steps without the scale."""

    @staticmethod
    def sgd_step(param, master, grad, momentum_buffer=None, *, lr, momentum, weight_decay, first, scale=1.0):
        named = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "first": first}
        steps.sgd_step(param, master, grad, momentum_buffer, **named)


class AdamwUnscaled(Kernels):
    """The same in AdamW, whose parameters hardly show it."""

    @staticmethod
    def adamw_step(param, master, grad, exp_avg, exp_avg_sq, *, step, lr, betas, eps, weight_decay, scale=1.0):
        named = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        steps.adamw_step(param, master, grad, exp_avg, exp_avg_sq, step=step, **named)


class SgdSkipsNan(Kernels):
    """Takes what is NaN in a gradient for zero: training goes on, and nobody learns of it."""

    @staticmethod
    def sgd_step(param, master, grad, momentum_buffer=None, *, lr, momentum=0.0, weight_decay=0.0, first=False):
        named = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "first": first}
        steps.sgd_step(param, master, torch.where(grad.isnan(), 0, grad), momentum_buffer, **named)


class AdamwClampsInfinity(Kernels):
    """Takes an infinite gradient for the largest number of its dtype."""

    @staticmethod
    def adamw_step(param, master, grad, exp_avg, exp_avg_sq, *, step, lr, betas, eps, weight_decay):
        named = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        largest = torch.finfo(grad.dtype).max
        steps.adamw_step(param, master, grad.clamp(-largest, largest), exp_avg, exp_avg_sq, step=step, **named)
