"""The programs in examples/, run as their README says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MINIMUM_GO = (1, 25)


def run(server, *command):
    """Runs a program against the server and returns the lines that it prints."""
    environment = {
        **os.environ,
        "AZURE_STORAGE_CONNECTION_STRING": server.connection_string,
        "SMB_PORT": str(server.smb),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_blob_example_counts_every_increment(server):
    etags, refused, held = run(server, sys.executable, str(EXAMPLES / "blob_etag_and_lease.py"))
    assert re.fullmatch(r"ETags: 4 clients counted to 40; \d+ attempts were repeated", etags)
    assert refused == "Lease: a write without the lease was refused with 412 LeaseIdMissing"
    assert held == "Lease: the blob holds 'from the holder'"


def test_queue_example_redelivers_the_message(server):
    # A module finds the libraries in the folder that contains it.
    program = Path(os.environ["NODE_MODULES"]).parent / "queue_visibility.mjs"
    shutil.copyfile(EXAMPLES / program.name, program)
    assert run(server, "node", str(program)) == [
        'first consumer: received "resize cat.jpg", dequeue count 1',
        "second consumer: received undefined while the message is invisible",
        'second consumer: received "resize cat.jpg", dequeue count 2',
        "first consumer: its late delete was refused with 404 MessageNotFound",
        "second consumer: deleted the message; 0 messages are left",
    ]


def test_table_example_never_overdraws(server):
    if not shutil.which("go"):
        pytest.skip("Go is not installed")
    version = subprocess.run(["go", "env", "GOVERSION"], check=True, capture_output=True, text=True).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < MINIMUM_GO:
        pytest.skip(f"{version.strip()} is too old")
    withdrawals, balance = run(server, "go", "run", "-C", str(EXAMPLES / "table_etag_retry"), ".")
    expected = r"30 withdrawals of 5 succeeded, 10 were refused; \d+ attempts were repeated"
    assert re.fullmatch(expected, withdrawals)
    assert balance == "balance: 0"


def test_share_example_respects_locks_of_the_other_protocol(server):
    assert run(server, sys.executable, str(EXAMPLES / "share_locks.py")) == [
        "SMB: read b'hello over REST'",
        "REST: a write was refused with 409 SharingViolation",
        "REST: a write was refused with 409 FileLockConflict",
        "REST: wrote b'HELLO'",
        "SMB: read b'HELLO over REST'",
    ]
