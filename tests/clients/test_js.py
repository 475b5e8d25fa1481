"""The JavaScript library, in its own tests."""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent / "js"


def test_the_javascript_library(server):
    modules = os.environ["NODE_MODULES"]
    link = HERE / "node_modules"
    if not link.exists():
        link.symlink_to(modules)
    done = subprocess.run(
        ["node", "--test", str(HERE / "blob.test.mjs")],
        env={**os.environ, "CONNECTION": server.connection_string},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
