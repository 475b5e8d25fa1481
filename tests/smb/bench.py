#!/usr/bin/env python3
"""Compares Lazuli with smbd: one client (Samba's smbclient), alternating rounds, medians and ratios.

The client writes and reads one large file, plain, signed and encrypted. Several clients at once create, write and
close many small files. smbd has its defaults, without modules that store more than files. If the client is the
limit, a figure says nothing about the server, so each figure comes with the client's use of a core.

    tests/smb/bench.py --lazuli target/release/lazuli
"""

import argparse
import contextlib
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from servers import HOST, USER, Lazuli, Samba

SHARE = "bench"
PROTECTIONS = {"plain": "off", "signed": "sign", "encrypted": "encrypt"}
GOAL = 0.8
CLIENT_SECONDS = 300


@dataclass
class Figure:
    """The measurements of one task on one server, by round."""

    values: list[float] = field(default_factory=list)
    client_cores: list[float] = field(default_factory=list)

    def median(self) -> float:
        return statistics.median(self.values)


def smbclient(server, protection: str, commands: list[str]) -> subprocess.Popen:
    """Starts a client. Commands and output go through files: a full pipe would stop the client."""
    command = ["smbclient", f"//{HOST}/{SHARE}", "-p", str(server.port), "-U", USER]
    command.append(f"--client-protection={protection}")
    script, said = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
    script.write("".join(f"{line}\n" for line in commands))
    script.seek(0)
    process = subprocess.Popen(command, stdin=script, stdout=said, stderr=subprocess.STDOUT)
    process.said = said
    script.close()
    return process


def finish(process: subprocess.Popen) -> str:
    process.wait(timeout=CLIENT_SECONDS)
    with process.said as output:
        output.seek(0)
        said = output.read()
    if process.returncode != 0 or "NT_STATUS" in said:
        raise RuntimeError(f"smbclient failed:\n{said[-2000:]}")
    return said


@contextlib.contextmanager
def measured(figure: Figure):
    """Records how much of a core the clients used."""
    begun, used = time.monotonic(), client_seconds()
    yield
    figure.client_cores.append((client_seconds() - used) / (time.monotonic() - begun))


def client_seconds() -> float:
    """Returns the processor time of all ended child processes: the clients, because the servers are still running."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def put(server, source: Path, protection: str) -> float:
    """Returns the MiB per second that smbclient reports, which exclude its start."""
    said = finish(smbclient(server, protection, [f"put {source} big"]))
    return float(re.search(r"\((\d+\.\d+) kb/s\)", said)[1]) / 1024


def get(server, protection: str) -> float:
    said = finish(smbclient(server, protection, ["get big /dev/null"]))
    return float(re.search(r"\((\d+\.\d+) KiloBytes/sec\)", said)[1]) / 1024


def small_files(server, source: Path, count: int, clients: int, round_: int) -> float:
    """Returns the files per second. Every client works in a directory of its own."""
    finish(smbclient(server, "off", [f"mkdir r{round_}c{client}" for client in range(clients)]))
    begun = time.monotonic()
    running = [
        smbclient(server, "off", [f"put {source} r{round_}c{client}\\f{n}" for n in range(count // clients)])
        for client in range(clients)
    ]
    for process in running:
        finish(process)
    return count // clients * clients / (time.monotonic() - begun)


def measure(servers, options, directory: Path) -> dict:
    """Runs all tasks on both servers in alternating order, for the given number of rounds."""
    big, small = directory / "big", directory / "small"
    with open(big, "wb") as file:
        for _ in range(options.mib):
            file.write(os.urandom(1 << 20))
    small.write_bytes(os.urandom(options.small_bytes))
    figures = {}

    def note(task, server, work):
        figure = figures.setdefault(task, {}).setdefault(server.name, Figure())
        # smbd answers long before its data is on disk. Flush it, so that the next measurement does not pay
        # for it.
        os.sync()
        with measured(figure):
            figure.values.append(work())

    for round_ in range(options.rounds):
        order = servers if round_ % 2 == 0 else servers[::-1]
        for name, protection in PROTECTIONS.items():
            for server in order:
                note(f"put {name}, MiB/s", server, lambda: put(server, big, protection))
            for server in order:
                note(f"get {name}, MiB/s", server, lambda: get(server, protection))
        for server in order:
            work = lambda: small_files(server, small, options.files, options.clients, round_)  # noqa: E731
            note(f"{options.clients} clients, small files/s", server, work)
        print(f"round {round_ + 1} of {options.rounds}", file=sys.stderr, flush=True)
    return figures


def table(figures: dict) -> str:
    lines = [f"{'':28}{'Lazuli':>10}{'Samba':>10}{'ratio':>8}   client's cores, Lazuli and Samba"]
    for task, by_server in figures.items():
        ours, theirs = by_server["lazuli"], by_server["samba"]
        ratio = ours.median() / theirs.median()
        cores = "  ".join(f"{statistics.median(one.client_cores):.2f}" for one in (ours, theirs))
        below = "" if ratio >= GOAL else f"   below {GOAL}"
        lines.append(f"{task:28}{ours.median():10.0f}{theirs.median():10.0f}{ratio:8.2f}   {cores}{below}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lazuli", default=os.environ.get("LAZULI"), help="a release build [default: $LAZULI]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256, help="size of the large file")
    parser.add_argument("--files", type=int, default=10_000, help="small files in a round")
    parser.add_argument("--small-bytes", type=int, default=1024)
    parser.add_argument("--clients", type=int, default=4, help="clients that write small files at a time")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--smbd-twice", action="store_true", help="smbd in both places: how far equal servers differ")
    options = parser.parse_args()
    if not options.lazuli and not options.smbd_twice:
        parser.error("name the binary with --lazuli or LAZULI")
    with tempfile.TemporaryDirectory(prefix="smb-bench-") as name, contextlib.ExitStack() as running:
        os.chmod(name, 0o755)
        directory = Path(name)
        if options.smbd_twice:
            ours = Samba(directory / "other", [SHARE], modules="")
            ours.name = "lazuli"
        else:
            ours = Lazuli(options.lazuli, directory / "lazuli", [SHARE])
        servers = [running.enter_context(ours), running.enter_context(Samba(directory / "samba", [SHARE], modules=""))]
        result = table(measure(servers, options, directory))
    print(result)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(result + "\n")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers stop with it
    sys.exit(main())
