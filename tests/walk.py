#!/usr/bin/env python3
"""Picks random functions and comments for a reader's exercise.

    walk.py [--count N] [--seed SEED] [--of functions|comments] [PATH]…

A reader opens each place and explains it without looking elsewhere. Where that fails, the name or the comment needs work. The same seed
picks the same places in the same revision. Paths are prefixes, such as crates/store.
"""

import argparse
import random
import re
import subprocess
from pathlib import Path

from source_text import COMMENT, DOC, MODULE_DOC, texts

ROOT = Path(__file__).resolve().parent.parent
FUNCTION = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?fn (\w+)", re.MULTILINE)


def sources(prefixes):
    listed = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.splitlines() if name.startswith(tuple(prefixes))]


def functions(name, source):
    for found in FUNCTION.finditer(source):
        yield f"{name}:{source.count(chr(10), 0, found.start(1)) + 1}", f"fn {found[1]}"


def comments(name, source):
    for text in texts(Path(name), source):
        if text.kind in (COMMENT, DOC, MODULE_DOC):
            yield f"{name}:{text.line}", text.text


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=20)
    options.add_argument("--seed", default="1")
    options.add_argument("--of", choices=["functions", "comments"])
    options.add_argument("paths", nargs="*", default=["crates/"])
    chosen = options.parse_args()
    kinds = {"functions": functions, "comments": comments}
    random_of = random.Random(chosen.seed)
    for kind in [chosen.of] if chosen.of else kinds:
        found = [place for name in sources(chosen.paths) for place in kinds[kind](name, (ROOT / name).read_text(encoding="utf-8"))]
        print(f"# {chosen.count} of {len(found)} {kind}, seed {chosen.seed}\n")
        for place, text in sorted(random_of.sample(found, min(chosen.count, len(found)))):
            print(place)
            print("    " + text.replace("\n", "\n    ") + "\n")


if __name__ == "__main__":
    main()
