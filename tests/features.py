"""Compares the features that `cargo build` and `cargo test` choose for the workspace, and fails if they differ.

    features.py [REPOSITORY]

If they differ, every crate above the difference is built twice. What only tests need is listed among the dependencies of
crates/torture, where it counts for both.
"""

import os
import subprocess
import sys
from pathlib import Path


def chosen(repository, edges):
    """Returns the features of each package, as "name version" -> features."""
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "tree", "--workspace", "--edges", edges, "--format", "{p}|{f}", "--prefix", "none"]
    lines = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout.splitlines()
    packages = (line.removesuffix(" (*)").split("|") for line in lines if line)
    return {package: features for package, features in packages}


def main(repository):
    build, test = chosen(repository, "normal,build"), chosen(repository, "normal,build,dev")
    differing = [package for package in build if build[package] != test.get(package)]
    for package in differing:
        print(f"{package}: cargo build chooses {build[package]!r}, cargo test {test.get(package)!r}")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent))
