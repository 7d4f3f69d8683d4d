"""One run of a real model under each law.

`python -m lockstep.properties.models.again --impl NAME "ModelScenario(...)"`.
"""

import argparse

from lockstep.properties.implementations import Unusable, look_up
from lockstep.properties.law import sentence
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.running.where import add_world, start_for
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import HOLDS, NOT_CLAIMED, LawBroken, Refused


def main() -> None:
    """Prints how each law of `properties.test_models` ends on one run."""
    from lockstep.properties import test_models

    parser = argparse.ArgumentParser(prog="python -m lockstep.properties.models.again", description=main.__doc__)
    parser.add_argument("--impl", required=True, metavar="MODULE:NAME", help="what wraps the model, as for pytest")
    add_world(parser)
    parser.add_argument("--any-order", action="store_true", help="sim: in the order of reduction that is drawn for it")
    parser.add_argument("scenario", help='as a report shows it: "ModelScenario(...)"')
    asked = parser.parse_args()
    try:
        scenario = eval(asked.scenario, {"__builtins__": {}, "ModelScenario": ModelScenario})
    except Exception as error:
        parser.error(f"{asked.scenario}: {error}")
    if not isinstance(scenario, ModelScenario):
        parser.error(f"{asked.scenario} is no ModelScenario(...)")
    world = start_for(parser, asked, scenario.world_size, asked.any_order)
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
