"""The module that fork servers import first of all that they import for their children.

It undoes settings that only the start of a fork server needs. glibc has read by then to fill memory and to keep none
back. Python has read by then from where to import. So an example sees the environment of its caller, and processes that
it starts run as usual. Garbage collection is off: the objects of torch's import stay, and going through them again and
again would be a quarter of the import's time.
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
