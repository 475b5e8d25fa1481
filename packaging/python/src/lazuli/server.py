"""Starts and stops the binary that this package carries."""

import base64
import collections
import os
import re
import secrets
import shutil
import subprocess
import sysconfig
import threading

_SERVICES = ("blob", "queue", "table", "file")


def binary() -> str:
    """Returns the path of the binary: of this environment, of the user's scheme, or else of PATH."""
    schemes = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    for directory in schemes:
        path = os.path.join(directory, "lazuli")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("lazuli")
    if found is None:
        raise FileNotFoundError(f"the binary lazuli is neither in {' nor in '.join(schemes)} nor in PATH")
    return found


class Server:
    """A server on free ports of 127.0.0.1 with its data in memory. Use it as a context manager.

    `arguments` are further options of `lazuli serve`.
    """

    account_name = "test"

    def __init__(self, *arguments: str):
        self.account_key = base64.b64encode(secrets.token_bytes(64)).decode()
        self.urls: dict[str, str] = {}
        self._log: collections.deque[str] = collections.deque(maxlen=200)
        ports = [option for service in (*_SERVICES, "console", "smb") for option in (f"--{service}-port", "0")]
        self._process = subprocess.Popen(
            [binary(), "serve", "--in-memory", *ports, *arguments],
            env={**os.environ, "LAZULI_ACCOUNT": f"{self.account_name}:{self.account_key}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._log.extend, args=(self._process.stderr,), daemon=True).start()
        for line in self._process.stdout:
            if match := re.match(r"\s+(\w+)\s+(\w+://\S+)", line):
                self.urls[match[1]] = match[2]
            if line.lstrip().startswith("connect"):
                break
        if not all(service in self.urls for service in _SERVICES):
            self.stop()
            raise RuntimeError("lazuli did not start:\n" + "".join(self._log))
        # Nothing else is printed; reading on keeps the pipe from filling up.
        threading.Thread(target=self._process.stdout.read, daemon=True).start()

    @property
    def connection_string(self) -> str:
        """The connection string of all four services."""
        endpoints = "".join(f"{service.capitalize()}Endpoint={self.urls[service]};" for service in _SERVICES)
        name, key = self.account_name, self.account_key
        return f"DefaultEndpointsProtocol=http;AccountName={name};AccountKey={key};{endpoints}"

    def stop(self) -> None:
        """Stops the server. All of its data is lost."""
        self._process.terminate()
        try:
            self._process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
