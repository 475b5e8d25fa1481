"""Starts a real server on free ports for the whole session, with all that clients need to reach it."""

import os
import re
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import requests
from azure.storage.fileshare import AccountSasPermissions, ResourceTypes, generate_account_sas

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
SERVICES = ("blob", "queue", "table", "file")


@dataclass
class Server:
    """A running server: its endpoints by service, its SMB port, its connection string and its process."""

    endpoints: dict
    smb: int
    console: str
    connection_string: str
    data: Path
    process: subprocess.Popen

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=30) == 0, "a drained server exits with 0"


def start(data: Path, *options: str) -> Server:
    """Starts the binary that LAZULI names on free ports, and reads its ready block."""
    command = [os.environ["LAZULI"], "serve", "--data", str(data), "--smb-port", "0", "--console-port", "0", *options]
    for service in SERVICES:
        command += [f"--{service}-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    said = {}
    for line in process.stdout:
        if found := re.match(r"\s+(\w+)\s+(\S.*)", line):
            said[found[1]] = found[2].strip()
        if "connect" in said:
            break
    assert "connect" in said, f"the server did not become ready: {said}"
    endpoints = {service: said[service] for service in SERVICES}
    return Server(endpoints, int(said["smb"].rpartition(":")[2]), said["console"], said["connect"], data, process)


def keep_deleted_shares(server: Server, verify=True):
    """Enables soft delete of shares. Some libraries do not know this property."""
    everything = AccountSasPermissions(read=True, write=True)
    expiry = datetime.now(timezone.utc) + timedelta(hours=1)
    sas = generate_account_sas(ACCOUNT, KEY, ResourceTypes(service=True), everything, expiry=expiry)
    policy = "<ShareDeleteRetentionPolicy><Enabled>true</Enabled><Days>7</Days></ShareDeleteRetentionPolicy>"
    body = f"<StorageServiceProperties>{policy}</StorageServiceProperties>"
    target = f"{server.endpoints['file']}/?restype=service&comp=properties&{sas}"
    answer = requests.put(target, data=body, headers={"x-ms-version": "2023-11-03"}, verify=verify)
    assert answer.status_code == 202, answer.text


@pytest.fixture(scope="session")
def server():
    with tempfile.TemporaryDirectory() as directory:
        running = start(Path(directory) / "data")
        yield running
        running.stop()
