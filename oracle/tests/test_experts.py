"""Experts' gradients beside those of every token by itself, on any mesh; and norms beside one rank that has all."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.experts import EXPERT_DIVISORS, Mesh, divisor, gradient, squared_norm
from lockstep.oracle.tests.examples import examples

EXPERTS = 4
meshes = st.sampled_from([Mesh(data, expert) for data in (1, 2, 3) for expert in (1, 2, 4)])


@st.composite
def tokens(draw, mesh):
    """By rank, the tokens that begin there: each has an expert and a gradient of two elements."""
    token = st.tuples(st.integers(0, EXPERTS - 1), st.tuples(st.integers(-9, 9), st.integers(-9, 9)))
    return [draw(st.lists(token, max_size=4)) for _ in range(mesh.world_size)]


def routed(mesh, begun):
    """By expert, what backward leaves on each rank that has it: the sum over the tokens that were sent there."""
    left = {}
    for expert in range(EXPERTS):
        for rank in mesh.holders(expert, EXPERTS):
            row = range(rank // mesh.expert * mesh.expert, (rank // mesh.expert + 1) * mesh.expert)
            here = [each for source in row for number, each in begun[source] if number == expert]
            left.setdefault(expert, []).append([sum(column) for column in zip((0, 0), *here, strict=True)])
    return left


@examples(200)
@given(st.data(), meshes)
def test_divided_by_the_world_a_mesh_trains_like_one_that_has_every_expert_on_every_rank(data, mesh):
    begun = data.draw(tokens(mesh))
    for expert, parts in routed(mesh, begun).items():
        every = [each for rank in begun for number, each in rank if number == expert]
        plain = tuple(Fraction(sum(column), mesh.world_size) for column in zip((0, 0), *every, strict=True))
        assert gradient(parts, divisor(mesh, "world")) == plain
        assert gradient(parts, divisor(mesh, "group")) == tuple(mesh.expert * element for element in plain)


@given(meshes)
def test_each_rank_is_in_one_group_and_each_expert_on_as_many_ranks(mesh):
    members = [rank for each in range(mesh.expert) for rank in mesh.group(each)]
    assert sorted(members) == list(range(mesh.world_size))
    held = [expert for expert in range(EXPERTS) for _ in mesh.holders(expert, EXPERTS)]
    assert all(held.count(expert) == mesh.data for expert in range(EXPERTS))


def test_a_mesh_by_hand():
    mesh = Mesh(2, 2)
    assert [mesh.holders(expert, 4) for expert in range(4)] == [(0, 2), (0, 2), (1, 3), (1, 3)]
    assert gradient([(3, 0), (5, 2)], divisor(mesh, "world")) == (2, Fraction(1, 2))
    assert gradient([(3, 0), (5, 2)], divisor(mesh, "group")) == (4, 1)
    assert squared_norm([(Fraction(3),), (Fraction(2), Fraction(6))]) == 49


@pytest.mark.parametrize("policy", EXPERT_DIVISORS)
def test_where_each_rank_has_every_expert_the_policies_agree(policy):
    assert divisor(Mesh(3, 1), policy) == 3


def test_impossible_meshes_and_policies_are_refused():
    with pytest.raises(ValueError, match="at least one of each"):
        Mesh(0, 2)
    with pytest.raises(ValueError, match="each has as many"):
        Mesh(1, 2).expert_rank(0, 3)
    with pytest.raises(ValueError, match="there are world, group"):
        divisor(Mesh(1, 1), "tokens")
