"""Starts the SMB servers of tests and measurements: Lazuli, and Samba's smbd as the reference.

Both are context managers with the same attributes: `port`, `shares`, `process`. Both listen on the loopback, keep
all data in the given directory, and accept the same user and password. Uses the standard library only.
"""

import base64
import contextlib
import email.utils
import hashlib
import hmac
import os
import pwd
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
USER = f"{ACCOUNT}%{KEY}"
HOST = "127.0.0.1"
READY_SECONDS = 30
STOP_SECONDS = 30
SERVICES = ("blob", "queue", "table", "file")


def free_port() -> int:
    """Returns a free port below the ephemeral ports, which clients may take at any moment."""
    for _ in range(200):
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return port
    raise RuntimeError("no free port between 20000 and 32000")


def wait_for_port(port: int, process: subprocess.Popen):
    """Waits until the port accepts connections. Fails if the process ends or the time is up."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args[0]} ended with {process.returncode} before it was ready")
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args[0]} does not answer on port {port}")


class Lazuli:
    """A Lazuli server on free ports with a new data directory. Creates its shares over REST."""

    name = "lazuli"

    def __init__(self, binary: str, directory: Path, shares: list[str], *options: str):
        self.binary, self.directory, self.shares, self.options = binary, Path(directory), shares, options
        self.port = free_port()

    def __enter__(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [self.binary, "serve", "--data", str(self.directory / "data"), "--console-port", "0"]
        command += ["--smb-port", str(self.port), *self.options]
        for service in SERVICES:
            command += [f"--{service}-port", "0"]
        self.log = open(self.directory / "lazuli.log", "w")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.said = {}
        for line in self.process.stdout:
            if found := re.match(r"\s+(\w+)\s+(\S.*)", line):
                self.said[found[1]] = found[2].strip()
            if "connect" in self.said:
                break
        if "connect" not in self.said:
            raise RuntimeError(f"the server did not become ready, see {self.log.name}")
        wait_for_port(self.port, self.process)
        for share in self.shares:
            create_share(self.said["file"], share)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()


    def panics(self) -> list[str]:
        """Returns the lines of the log that report a bug."""
        return [line for line in Path(self.log.name).read_text().splitlines() if "panicked at" in line]


def create_share(endpoint: str, share: str):
    """Calls Create Share, signed with the account key."""
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    signed = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    to_sign = "PUT" + "\n" * 12 + f"{signed}/{ACCOUNT}/{ACCOUNT}/{share}\nrestype:share"
    signature = hmac.new(base64.b64decode(KEY), to_sign.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
    url = f"{endpoint.rstrip('/')}/{share}?restype=share"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()


SMB_CONF = """
[global]
    server role = standalone server
    security = user
    passdb backend = tdbsam:{here}/private/passdb.tdb
    private dir = {here}/private
    lock directory = {here}/lock
    state directory = {here}/state
    cache directory = {here}/cache
    pid directory = {here}/pid
    ncalrpc dir = {here}/ncalrpc
    log file = {here}/smbd.log
    log level = 0
    smb ports = {port}
    interfaces = 127.0.0.1
    bind interfaces only = yes
    disable netbios = yes
    load printers = no
    printing = bsd
    printcap name = /dev/null
    username map = {here}/users.map
    guest account = {guest}
    map to guest = never
    smb encrypt = default
    server min protocol = SMB2_02
    kernel oplocks = no
    posix locking = no
    strict locking = yes
    durable handles = yes
    ea support = yes
    store dos attributes = yes
    map archive = no
    map hidden = no
    map readonly = no
    map system = no
    dos filemode = yes
    create mask = 0777
    directory mask = 0777
    vfs objects = {modules}
    follow symlinks = no
"""

SHARE_CONF = """
[{share}]
    path = {path}
    read only = no
"""


class Samba:
    """A private smbd without files outside of its directory. Started by root, it runs as the user `nobody`."""

    name = "samba"

    def __init__(self, directory: Path, shares: list[str], modules: str | None = None):
        self.directory, self.shares = Path(directory).resolve(), shares
        self.port = free_port()
        root = os.geteuid() == 0
        self.unix_user = "nobody" if root else pwd.getpwuid(os.geteuid()).pw_name
        # Only root may store security descriptors as extended attributes.
        self.modules = modules if modules is not None else "streams_xattr acl_xattr" if root else "streams_xattr"

    def __enter__(self):
        here = self.directory
        owner = pwd.getpwnam(self.unix_user)
        for name in ("private", "lock", "state", "cache", "pid", "ncalrpc"):
            (here / name).mkdir(parents=True, exist_ok=True)
        here.chmod(0o755)
        guest = "daemon" if self.unix_user == "nobody" else "nobody"
        conf = SMB_CONF.format(here=here, port=self.port, guest=guest, modules=self.modules)
        for share in self.shares:
            path = here / "shares" / share
            path.mkdir(parents=True, exist_ok=True)
            if os.geteuid() == 0:
                os.chown(path, owner.pw_uid, owner.pw_gid)
            conf += SHARE_CONF.format(share=share, path=path)
        (here / "users.map").write_text(f"{self.unix_user} = {ACCOUNT}\n")
        self.conf = here / "smb.conf"
        self.conf.write_text(conf)
        with open(here / "passwd.log", "w") as log:
            subprocess.run(
                ["smbpasswd", "-c", self.conf, "-L", "-a", "-s", self.unix_user],
                input=f"{KEY}\n{KEY}\n", text=True, check=True, stdout=log, stderr=log,
            )
        self.log = open(here / "smbd.out", "w")
        # smbd forks a process for each connection. In a session of their own, all can be stopped at once.
        self.process = subprocess.Popen(
            ["smbd", "--foreground", "--no-process-group", "-s", self.conf],
            stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, start_new_session=True,
        )
        wait_for_port(self.port, self.process)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()


def main() -> int:
    """servers.py BINARY|smbd -- COMMAND…: runs a command while a server runs. SMB_PORT and SMB_SHARE name its share."""
    which, separator, *command = sys.argv[1:]
    if separator != "--" or not command:
        print(main.__doc__)
        return 2
    with tempfile.TemporaryDirectory(prefix="smb-server-") as directory:
        os.chmod(directory, 0o755)
        here, shares = Path(directory) / "server", ["share"]
        with Samba(here, shares) if which == "smbd" else Lazuli(which, here, shares) as server:
            variables = {"SMB_PORT": str(server.port), "SMB_SHARE": "share", "SMB_USER": ACCOUNT, "SMB_PASSWORD": KEY}
            return subprocess.run(command, env={**os.environ, **variables}).returncode


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
