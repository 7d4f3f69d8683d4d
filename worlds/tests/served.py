"""What supervised children run in the tests of `worlds.process`: ``serve(connection, *arguments)``."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch


def echo(connection: Connection, word: str) -> None:
    """Answers each message with itself and its process."""
    while True:
        connection.send((word, connection.recv(), os.getpid()))


def obey(connection: Connection) -> None:
    """Does what a message says."""
    while True:
        match connection.recv():
            case "print a little":
                print("on stdout")
                print("on stderr", file=sys.stderr)
                os.write(1, b"past Python\n")
                connection.send("printed")
            case "print":
                print("x" * 5000 + "the end")
                connection.send("printed")
            case "allocate":
                sizes = (4, 1 << 16, 1 << 22)  # floats; the last are a mapping of their own
                connection.send(([set(torch.empty(size).tolist()) for size in sizes], dict(os.environ)))
            case "addresses":
                of_the_library = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value
                connection.send([of_the_library, id(torch.nn.Parameter())])
            case "answer what cannot be read":
                connection.send(Unreadable(os._exit))
            case "exit":
                sys.exit(7)
            case "raise":
                raise KeyError("nobody catches this")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "return":
                return
            case "hang":
                connection.send("hanging")
                loop_for_ever()
            case "leave a process":
                connection.send((os.getpid(), subprocess.Popen(["sleep", "1000"]).pid))


class Unreadable:
    """Whoever reads it calls a function instead, without the argument that it needs."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __reduce__(self) -> tuple[Callable[..., object], tuple[()]]:
        return self._function, ()


def loop_for_ever() -> None:
    while True:
        time.sleep(0.01)
