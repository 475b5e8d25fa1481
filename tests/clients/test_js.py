"""The JavaScript libraries, each in its own tests."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = sorted((Path(__file__).parent / "js").glob("*.test.mjs"))


@pytest.mark.parametrize("test", TESTS, ids=[test.name.split(".")[0] for test in TESTS])
def test_the_javascript_library(server, test):
    # A module finds the libraries in the folder that contains it.
    copy = Path(os.environ["NODE_MODULES"]).parent / test.name
    shutil.copyfile(test, copy)
    done = subprocess.run(
        ["node", "--test", str(copy)],
        env={**os.environ, "CONNECTION": server.connection_string},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
