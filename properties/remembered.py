"""What failed before is tried again first: Hypothesis' database, as the laws use it."""

from collections.abc import Iterable

from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase


class Remembered(ExampleDatabase):
    """The part of a database that one search has for itself, which Hypothesis cannot tell from that of another law.

    What is new in it is kept only once the search is through: Hypothesis takes a failure that it finds there for the
    smallest, and that of a search which still goes on beside this one, or was stopped, is not.
    """

    def __init__(self, kept: ExampleDatabase, search: str) -> None:
        super().__init__()
        self._kept, self._search = kept, search.encode()
        self._new = InMemoryExampleDatabase()
        self._keys: set[bytes] = set()

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """What there is, of earlier searches and of this one."""
        yield from {*self._kept.fetch(self._own(key)), *self._new.fetch(key)}

    def save(self, key: bytes, value: bytes) -> None:
        """Takes note of an example."""
        self._keys.add(key)
        self._new.save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Forgets an example, that of an earlier search for good."""
        self._new.delete(key, value)
        self._kept.delete(self._own(key), value)

    def keep(self) -> None:
        """Hands on to later searches what this one has found."""
        for key in self._keys:
            for value in self._new.fetch(key):
                self._kept.save(self._own(key), value)

    def _own(self, key: bytes) -> bytes:
        return self._search + b" " + key
