"""`python -m properties.models.again --impl NAME "ModelScenario(...)"`: one run of a real model under each law."""

import argparse

from properties.implementations import Unusable, look_up
from properties.law import sentence
from properties.models.scenario import ModelScenario
from properties.running.where import STARTED_HERE, decide
from properties.trial import Trial
from properties.verdict import HOLDS, NOT_CLAIMED, LawBroken, Refused


def main() -> None:
    """Prints how each law of `properties.test_models` ends on one run."""
    from properties import test_models

    parser = argparse.ArgumentParser(prog="python -m properties.models.again", description=main.__doc__)
    parser.add_argument("--impl", required=True, metavar="MODULE:NAME", help="what wraps the model, as for pytest")
    where = "where its ranks run (default: %(default)s)"
    parser.add_argument("--world", choices=STARTED_HERE, default="gloo", help=where)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="where its tensors are (default: cpu)")
    parser.add_argument(
        "--ranks-per-gpu", type=int, default=1, metavar="N", help="nccl: so many share one (default: 1)"
    )
    parser.add_argument("--any-order", action="store_true", help="sim: in the order of reduction that is drawn for it")
    parser.add_argument("scenario", help='as a report shows it: "ModelScenario(...)"')
    asked = parser.parse_args()
    try:
        scenario = eval(asked.scenario, {"__builtins__": {}, "ModelScenario": ModelScenario})
    except Exception as error:
        parser.error(f"{asked.scenario}: {error}")
    if not isinstance(scenario, ModelScenario):
        parser.error(f"{asked.scenario} is no ModelScenario(...)")
    try:
        world = decide([asked.world], asked.device, False, asked.ranks_per_gpu, False, asked.any_order).start(
            asked.world
        )
    except Unusable as error:
        parser.error(str(error))
    if world.ranks is not None and scenario.world_size > world.ranks:
        few = f"{asked.world} has {world.ranks} ranks here, and the scenario {scenario.world_size}"
        parser.error(f"{few}; --ranks-per-gpu lets more share a GPU")
    try:
        (implementation,) = look_up([asked.impl], world)
        for law in (test.law for test in vars(test_models).values() if hasattr(test, "law")):
            told = HOLDS if law.needs(implementation.claims) else NOT_CLAIMED
            if told == HOLDS:
                try:
                    law.check(Trial(implementation, world, any_order=asked.any_order), scenario)
                except Refused as refused:
                    told = f"refuses: {refused}"
                except LawBroken as broken:
                    told = f"{broken.verdict}: {broken.headline}"
            print(f"{law.number:4}{sentence(law)}: {told}")
    except Unusable as error:
        parser.error(str(error))
    finally:
        world.close()


if __name__ == "__main__":
    main()
