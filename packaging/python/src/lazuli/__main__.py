"""`python -m lazuli` runs the binary."""

import os
import sys

from .server import binary

os.execv(binary(), ["lazuli", *sys.argv[1:]])
