"""Compares the features that `cargo build` and `cargo test` choose for the workspace, and fails if they differ.

    features.py [REPOSITORY]

If they differ, every crate above the difference is built twice. What only tests need is listed among the dependencies of
crates/torture, where it counts for both.

Also fails if the lock file of the fuzzer lacks a dependency of one of our crates: then `fuzz/build` refuses to build.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path


def chosen(repository, edges):
    """Returns the features of each package, as "name version" -> features."""
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "tree", "--workspace", "--edges", edges, "--format", "{p}|{f}", "--prefix", "none"]
    lines = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout.splitlines()
    packages = (line.removesuffix(" (*)").split("|") for line in lines if line)
    return {package: features for package, features in packages}


def missing_in_fuzz_lock(repository):
    """Returns the dependencies of our crates that fuzz/Cargo.lock lacks, as (crate, dependency)."""
    locked = tomllib.loads((repository / "fuzz" / "Cargo.lock").read_text())["package"]
    manifests = (tomllib.loads(path.read_text()) for path in repository.glob("crates/*/Cargo.toml"))
    declared = {manifest["package"]["name"]: manifest.get("dependencies", {}) for manifest in manifests}
    for package in locked:
        present = {dependency.split()[0] for dependency in package.get("dependencies", [])}
        for dependency, options in declared.get(package["name"], {}).items():
            if not options.get("optional") and options.get("package", dependency) not in present:
                yield package["name"], dependency


def main(repository):
    build, test = chosen(repository, "normal,build"), chosen(repository, "normal,build,dev")
    differing = [package for package in build if build[package] != test.get(package)]
    for package in differing:
        print(f"{package}: cargo build chooses {build[package]!r}, cargo test {test.get(package)!r}")
    missing = list(missing_in_fuzz_lock(repository))
    for crate, dependency in missing:
        print(f"fuzz/Cargo.lock: {crate} lacks {dependency}; run `cargo metadata --manifest-path fuzz/Cargo.toml`")
    return int(bool(differing or missing))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent))
