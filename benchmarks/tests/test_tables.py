"""The tables of figures can be made. What stands in them is the machine's."""

from benchmarks import shares, worlds


def test_the_table_of_worlds_has_a_positive_ratio_for_each_pair_of_contestants() -> None:
    heading, columns, *table = worlds.lines(rounds=1, world_sizes=(2,))
    assert heading.startswith("An example on the simulated world and elsewhere, medians of 1 rounds")
    assert columns.split()[3:] == [f"{one}/{other}" for one, other in worlds.RATIOS]
    for implementation, line in zip(worlds.IMPLEMENTATIONS, table, strict=False):
        name, ranks, sim, _, inside, _, *ratios = line.split()
        assert (name, ranks) == (implementation.rpartition(":")[2], "2")
        assert float(sim) > 0
        assert float(inside) > 0
        assert len(ratios) == len(worlds.RATIOS)
        assert all(float(ratio) > 0 for ratio in ratios)


def test_every_part_of_a_laws_examples_takes_some_of_their_time() -> None:
    """A part of none is one that the law no longer comes through."""
    examples, seconds = shares.measure(examples=20)
    assert examples > 0
    assert seconds.keys() == {"drawing", "proof", "oracle", "world", "judging"}
    assert all(each > 0 for each in seconds.values()), seconds
