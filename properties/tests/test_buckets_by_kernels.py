"""Averaging by kernels changes nothing on exact data: the same laws, the same bits."""

import json

import numpy as np

from lockstep.oracle.events import Backward, Finish, Step
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.implementations import look_up
from lockstep.properties.trial import Trial
from lockstep.worlds.contract import Job, World

PLAIN, KERNELS = "lockstep.impls.static_buckets:StaticBuckets", "lockstep.properties.tests.kernel_buckets:KernelBuckets"


def test_static_buckets_give_the_same_bits_with_kernels_and_without(of_kernels: World) -> None:
    trials = [Trial(each, of_kernels) for each in look_up([PLAIN, KERNELS], of_kernels)]
    for ranks in (2, 3, 5, 7):
        orders = tuple(((0, 1, 2), (2, 1, 0))[rank % 2] for rank in range(ranks))
        model = (Parameter((40, 5)), Parameter((3,)), Parameter((1,), "float64"))
        scenario = Scenario(ranks, model, (Backward(orders), Finish(), Step()), bucket_cap=64)
        plain, kernels = (trial.run(scenario).observations for trial in trials)
        for one, other in zip(plain, kernels, strict=True):
            assert all(
                (x is None and y is None) or x.tobytes() == y.tobytes()
                for x, y in zip(one["gradients"][1], other["gradients"][1], strict=True)
            )
            assert any(x is not None and x.any() for x in one["gradients"][1])


def test_the_kernels_are_what_averages(of_kernels: World) -> None:
    (report,) = of_kernels.run(Job("lockstep.properties.tests.kernel_buckets:averages", json.dumps(None), 1))
    assert report.result is not None, report.error
    assert report.result["calls"] == [3]
    assert (report.result["average"] == np.arange(100)).all()
