"""What an implementation promises. What is claimed is held against it; what is not claimed is not drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from oracle.program import AVERAGINGS, UNUSED


@dataclass(frozen=True)
class Claims:
    """The promises, with what is claimed for code that declares nothing (`for_undeclared` fills in the rest).

    Always claimed: the mean over ranks, equal replicas, the same collectives on every rank.
    """

    hook_order: bool = True  # right whatever order the hooks fire in, also where it differs between ranks
    accumulation: bool = True  # ``no_sync``
    bucket_cap: bool = False  # the constructor takes a cap, and the result does not depend on it
    several_dtypes: bool = False  # parameters of several dtypes in one module
    unused: str | None = None  # None: every trained parameter takes part; else what one that no rank used gets
    tied: bool = False
    buffers: str | None = None
    # Re-entrant activation checkpointing. None: not; "each once": a module runs in at most one recomputed segment;
    # "any": in several, so that the hook of a parameter fires once for each and the last makes its gradient final.
    reentrant: str | None = None
    most_ranks: int = 8  # world sizes up to this one
    kernels: bool = False  # a namespace of kernels, and no data parallelism: P17 and nothing else
    averaging: str = "sum then divide"  # how the mean is taken, one of oracle.program.AVERAGINGS

    def __post_init__(self) -> None:
        if self.averaging not in AVERAGINGS:
            raise ValueError(f"claims: averaging is one of {', '.join(map(repr, AVERAGINGS))}, not {self.averaging!r}")
        if self.most_ranks < 1:
            raise ValueError(f"claims: most_ranks is at least 1, not {self.most_ranks!r}")
        if self.unused not in (None, *UNUSED):
            raise ValueError(f"claims: unused is None or one of {', '.join(map(repr, UNUSED))}, not {self.unused!r}")


def read_claims(declared: Mapping[str, Any] | None, has_no_sync: bool, takes_cap: bool) -> Claims:
    """The claims of an implementation: what it declares, and what its shape says of the rest.

    Raises ValueError for a claim that does not exist or cannot be.
    """
    known = [field.name for field in fields(Claims)]
    for name in declared or {}:
        if name not in known:
            raise ValueError(f"claims: there is no claim {name!r}; there are {', '.join(known)}")
    if (declared or {}).get("accumulation") and not has_no_sync:
        raise ValueError("claims: accumulation needs a method no_sync")
    if (declared or {}).get("bucket_cap") and not takes_cap:
        raise ValueError(
            "claims: bucket_cap needs a constructor argument bucket_cap_mb, bucket_size_mb or bucket_cap_bytes"
        )
    return Claims(**{"accumulation": has_no_sync, "bucket_cap": takes_cap, **(declared or {})})
