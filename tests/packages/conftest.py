"""Builds the packages once, from the debug binary that LAZULI names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def packages(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("packages")
    script = ROOT / "packaging" / "dist.py"
    binary = Path(os.environ["LAZULI"]).resolve()
    subprocess.run([sys.executable, script, "--binary", binary, "--out", out, "tar", "npm", "wheel", "rootfs"], check=True)
    return out


def only(packages: Path, pattern: str) -> Path:
    (found,) = packages.glob(pattern)
    return found


def new_environment(folder: Path) -> Path:
    """Creates an environment in which the clients of this one are visible, so that nothing is downloaded."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (own,) = (path for path in map(Path, sys.path) if path.name == "site-packages")
    (theirs,) = folder.glob("lib/python*/site-packages")
    (theirs / "clients.pth").write_text(f"{own}\n")
    return folder
