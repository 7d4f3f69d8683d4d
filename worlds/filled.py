"""Imported first by the fork servers: takes back what told glibc to fill memory, which it has read when they started.

An example is to see the environment of its caller, and what it starts is to have memory as usual.
"""

import os

from worlds.process import FILL

os.environ.pop(FILL, None)
