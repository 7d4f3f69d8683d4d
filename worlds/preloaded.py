"""Imported first by the fork servers, of all that they import for their children.

What told glibc to fill memory, and to keep none back, is taken back, which glibc has read when they started: an example
is to see the environment of its caller, and what it starts is to have memory as usual. No garbage is collected: what
torch's import makes stays, and going through it again and again is a quarter of the time that it takes, the last time
at the end.
"""

import atexit
import gc
import os

from worlds.process import ALL_SHARED, FILL, TUNABLES

os.environ.pop(FILL, None)
if others := os.environ.pop(TUNABLES, "").removesuffix(ALL_SHARED).removesuffix(":"):
    os.environ[TUNABLES] = others
gc.disable()
atexit.register(os._exit, 0)
