"""What ranks sleep on: it comes as often as it is given, before or after somebody waits, whatever signals come."""

import ctypes
import signal
import threading
from collections.abc import Iterator

import pytest

from lockstep.worlds.sim import turn as module
from lockstep.worlds.sim.turn import Semaphore, turn

SECONDS = 0.2  # in which a thread that does not wait would be over


@pytest.fixture(params=["the system's", "Python's"])
def usual(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Semaphores of the system's, or none, as on macOS."""
    if request.param == "Python's":
        monkeypatch.setattr(module._system, "sem_init", lambda *_: -1)


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR1, before)


def taker(taken: threading.Event, of: module.Turn) -> threading.Thread:
    """A thread that waits for its turn, and then tells."""

    def take() -> None:
        of.acquire()
        taken.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread


@pytest.mark.usefixtures("usual")
def test_a_turn_that_was_given_before_anybody_waited_is_there_once() -> None:
    mine, first, second = turn(), threading.Event(), threading.Event()
    mine.release()
    taker(first, mine)
    assert first.wait(10.0)
    thread = taker(second, mine)
    assert not second.wait(SECONDS)
    mine.release()
    assert second.wait(10.0)
    thread.join()


def test_a_signal_is_no_turn(handler: None) -> None:
    mine, taken = turn(), threading.Event()
    assert isinstance(mine, Semaphore)
    thread = taker(taken, mine)
    for _ in range(3):
        assert thread.ident is not None
        signal.pthread_kill(thread.ident, signal.SIGUSR1)
        assert not taken.wait(SECONDS)
    mine.release()
    assert taken.wait(10.0)


def test_its_memory_is_enough_for_what_the_system_keeps_there() -> None:
    mine = Semaphore()
    mine.release()
    assert mine._memory.raw[32:] == bytes(ctypes.sizeof(mine._memory) - 32)
