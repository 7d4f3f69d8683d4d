"""Loaders of packages that Lockstep does not need: each keeps what it claims, where its package is installed."""

import pytest

from lockstep.properties.catalogue import every_law
from lockstep.properties.law import concerns
from lockstep.properties.searching.search import search
from lockstep.properties.tests.trials import trial_of
from lockstep.worlds.contract import World

PACKAGES = {
    "torchdata_data:TorchdataLoader": "torchdata",
    "accelerate_data:AccelerateLoader": "accelerate",
    "fabric_data:FabricLoader": "lightning_fabric",
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_loader_keeps_what_it_claims(request: pytest.FixtureRequest, name: str) -> None:
    pytest.importorskip(PACKAGES[name])
    gloo: World = request.getfixturevalue("gloo")
    trial = trial_of(f"lockstep.impls.frameworks.{name}", gloo)
    for law in every_law().values():
        if concerns(law, trial.claims):
            assert search(law, trial, 10, seed_value=0).failures == [], law.name
