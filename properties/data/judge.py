"""Compare the samples that ranks got with the oracle's rules. Each function returns the first error in words, or ""."""

from collections.abc import Collection, Sequence

from lockstep.oracle.dealing import most_apart, tally, totals
from lockstep.properties.claims import Claims
from lockstep.properties.data.dealing import Dealing

Items = Sequence[Sequence[int]]
# The meaning of each policy for a remainder, in words.
LETS = {
    "repeat": "every sample is dealt, and all ranks get equally many",
    "uneven": "every sample is dealt once, and some ranks get fewer",
    "drop": "no sample is dealt twice, and all ranks get equally many",
}


def remainder_of(dealing: Dealing, claims: Claims) -> str:
    """The policy for samples that the ranks cannot share evenly."""
    return "drop" if dealing.drop_last else claims.remainder


def samples_of(items: Items) -> list[int]:
    """All samples in order."""
    return [sample for item in items for sample in item]


def wrong_shares(
    dealing: Dealing, shares: Sequence[Items], samples: Collection[int], remainder: str, more: Collection[int] = ()
) -> str:
    """The error in the samples that ranks got. ``more``: samples that may also be dealt, to even out."""
    given = [samples_of(items) for items in shares]
    found, allowed = tally(given, samples), totals(len(samples), len(shares), dealing.unit, remainder)
    if strangers := set(found.foreign) - (set(more) if remainder == "repeat" else set()):
        return f"{_dealt(min(strangers), given)}, and is not to be dealt."
    if found.missing and remainder != "drop":
        return f"No rank gets sample {found.missing[0]} ({_claim(remainder)})."
    if found.repeated and remainder != "repeat":
        return f"{_dealt(found.repeated[0], given)} ({_claim(remainder)})."
    sizes = [len(share) for share in given]
    if max(sizes) - min(sizes) > most_apart(dealing.unit, remainder):
        return f"The ranks get {_listed(sizes)} samples ({_claim(remainder)})."
    if sum(sizes) not in allowed:
        limit = f"at most {allowed[-1]}" if sum(sizes) > allowed[-1] else f"at least {allowed[0]}"
        return f"The ranks get {sum(sizes)} samples of {len(samples)} in all; {limit} are due ({_claim(remainder)})."
    return wrong_batches(dealing, shares, remainder) if dealing.batch else ""


def wrong_batches(dealing: Dealing, shares: Sequence[Items], remainder: str) -> str:
    """The error in the sizes and numbers of batches."""
    for rank, items in enumerate(shares):
        for place, item in enumerate(items):
            full = place < len(items) - 1
            if len(item) != dealing.batch if full else not 0 < len(item) <= dealing.batch:
                return f"Batch {place} of rank {rank} has {len(item)} samples; batches of {dealing.batch} are due."
    numbers = [len(items) for items in shares]
    if remainder != "uneven" and len(set(numbers)) > 1:
        return f"The ranks get {_listed(numbers)} batches ({_claim(remainder)})."
    return ""


def wrong_lengths(shares: Sequence[Items], lengths: Sequence[int | None]) -> str:
    """The error in the values of `len` on each rank."""
    for rank, (items, length) in enumerate(zip(shares, lengths, strict=True)):
        if length is not None and length != len(items):
            return f"On rank {rank} `len` says {length}, and {len(items)} come."
    return ""


def first_difference(rank: int, got: Items, wanted: Items, what: str) -> str:
    """The first place where a rank's items differ from the expected ones, and the expected next item."""
    for place, (mine, right) in enumerate(zip(got, wanted, strict=False)):
        if list(mine) != list(right):
            return f"{what} item {place} of rank {rank} is {_item(mine)}; {_item(right)} is due."
    if len(got) != len(wanted):
        due = f"; item {len(got)}, {_item(wanted[len(got)])}, is due next" if len(got) < len(wanted) else ""
        return f"{what} rank {rank} gets {len(got)} items, where {len(wanted)} are left{due}."
    return ""


def _item(item: Sequence[int]) -> str:
    return f"sample {item[0]}" if len(item) == 1 else f"samples {_listed(item)}"


def _dealt(sample: int, given: Sequence[Sequence[int]]) -> str:
    """The ranks to which a sample was dealt."""
    to = [f"rank {rank}" for rank, share in enumerate(given) for each in share if each == sample]
    return f"Sample {sample} is dealt to {_listed(to)}"


def _listed(values: Sequence[object]) -> str:
    told = [str(value) for value in values]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def _claim(remainder: str) -> str:
    return f'"{remainder}" is claimed: {LETS[remainder]}'
