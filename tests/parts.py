"""Runs make targets one after the other and prints the seconds of each at the end.

    parts.py MAKE TARGET=NAME…

Stops at the first target that fails, and fails then.
"""

import subprocess
import sys
import time


def main(make: str, *parts: str) -> int:
    seconds = []
    failed = False
    for part in parts:
        target, _, name = part.partition("=")
        began = time.monotonic()
        failed = subprocess.run([make, target]).returncode != 0
        seconds.append((name, time.monotonic() - began))
        if failed:
            break
    print("\nSeconds of each part:")
    for name, taken in [*seconds, ("together", sum(taken for _, taken in seconds))]:
        print(f"{taken:8.0f}  {name}")
    if failed:
        print(f"Failed: {seconds[-1][0]}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
