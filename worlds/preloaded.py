"""Imported first by the fork servers, of all that they import for their children.

What told glibc to fill memory, and to keep none back, is taken back, which glibc has read when they started, and so is
what told Python from where to import: an example is to see the environment of its caller, and what it starts is to run
as usual. No garbage is collected: what torch's import makes stays, and going through it again and again is a quarter of
the time that it takes, the last time at the end.
"""

import atexit
import gc
import json
import os

from lockstep.worlds.process import TAKEN_BACK

for name, value in json.loads(os.environ.pop(TAKEN_BACK, "{}")).items():
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
gc.disable()
atexit.register(os._exit, 0)
