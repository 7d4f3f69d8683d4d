"""The database of earlier failures, which Hypothesis tries first."""

from collections.abc import Iterable

from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase

# Endings of Hypothesis' keys for examples that it tries again but does not regard as the smallest.
TO_BE_SHRUNK, OF_TARGETS = b".secondary", b".pareto"


class Remembered(ExampleDatabase):
    """The part of a database that belongs to one search. Hypothesis itself cannot tell two laws apart.

    Hypothesis regards a stored failure as the smallest. A failure of a search that is still running, or was stopped,
    may not be. So until `keep` is called, new failures are stored as still to be shrunk, and nothing is deleted.
    """

    def __init__(self, kept: ExampleDatabase, search: str) -> None:
        super().__init__()
        self._kept, self._search = kept, search.encode()
        self._new = InMemoryExampleDatabase()
        self._gone: set[tuple[bytes, bytes]] = set()

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """The stored examples of earlier searches and of this one."""
        for value in {*self._kept.fetch(self._own(key)), *self._new.fetch(key)}:
            if (key, value) not in self._gone:
                yield value

    def save(self, key: bytes, value: bytes) -> None:
        """Store an example."""
        self._gone.discard((key, value))
        self._new.save(key, value)
        if not key.endswith((TO_BE_SHRUNK, OF_TARGETS)):
            self._kept.save(self._own(key + TO_BE_SHRUNK), value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget an example."""
        self._gone.add((key, value))
        self._new.delete(key, value)

    def keep(self) -> None:
        """Store the failures of this search as the smallest, for later searches."""
        for key, values in self._new.data.items():
            for value in values:
                self._kept.save(self._own(key), value)
        for key, value in self._gone:
            self._kept.delete(self._own(key), value)

    def _own(self, key: bytes) -> bytes:
        return self._search + b" " + key
