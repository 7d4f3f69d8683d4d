"""Earlier failures, tried again first: Hypothesis' database, as the laws use it."""

from collections.abc import Iterable

from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase

# How Hypothesis ends its names of examples that it tries again too, but does not take for the smallest.
TO_BE_SHRUNK, OF_TARGETS = b".secondary", b".pareto"


class Remembered(ExampleDatabase):
    """The part of a database that one search has for itself, which Hypothesis cannot tell from that of another law.

    Hypothesis takes a failure that it finds there for the smallest. That of a search which goes on beside this one, or
    was stopped, is not: so until `keep` what is new counts as still to be shrunk, and nothing is forgotten.
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
        """Takes note of an example."""
        self._gone.discard((key, value))
        self._new.save(key, value)
        if not key.endswith((TO_BE_SHRUNK, OF_TARGETS)):
            self._kept.save(self._own(key + TO_BE_SHRUNK), value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Forgets an example."""
        self._gone.add((key, value))
        self._new.delete(key, value)

    def keep(self) -> None:
        """Leaves to later searches what this one has come to: its failures are the smallest."""
        for key, values in self._new.data.items():
            for value in values:
                self._kept.save(self._own(key), value)
        for key, value in self._gone:
            self._kept.delete(self._own(key), value)

    def _own(self, key: bytes) -> bytes:
        return self._search + b" " + key
