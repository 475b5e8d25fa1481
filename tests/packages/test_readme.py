"""Runs the snippets of README.md, and of pages of the book: in order, in one shell, with one home and one data directory.

A comment before a code block says how the block is run:

    <!-- not run: REASON -->           The block needs what a test does not have. The run lists it.
    <!-- in the background -->         The server starts, and goes on running.
    <!-- az: … -->                     The Azure CLI is replaced by the script `az`, unless it is installed.
    <!-- azurite-data: … -->           The real Azurite has written this folder.

A block of text shows what the block before it prints; … stands for anything. The blocks run in a network
namespace of their own, so that the ports of the README are free. Where that is not permitted, the test replaces the ports.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conftest import ROOT, new_environment, only

HERE = Path(__file__).resolve().parent
MAX_LINES = 120
PORTS = {
    "LAZULI_BLOB_PORT": "10000", "LAZULI_QUEUE_PORT": "10001", "LAZULI_TABLE_PORT": "10002", "LAZULI_FILE_PORT": "10003",
    "LAZULI_SMB_PORT": "10445", "LAZULI_CONSOLE_PORT": "10080",
}
AZURITE_PORTS = ("11000", "11001", "11002")
# Turns the loopback interface on (SIOCSIFFLAGS with IFF_UP and IFF_RUNNING), then runs the command.
LOOPBACK = """
import fcntl, os, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 0x41))
os.execvp(sys.argv[1], sys.argv[1:])
"""
# What must be stored at the end of the README.
EXPECTED = """
import os
from azure.data.tables import TableClient
from azure.storage.blob import ContainerClient
from azure.storage.fileshare import ShareDirectoryClient
connection = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
photos = ContainerClient.from_connection_string(connection, "photos")
assert photos.download_blob("cat.jpg").readall() == b"meow\\n"
assert {blob.name for blob in photos.list_blobs()} == {"cat.jpg", "dog.jpg"}
assert TableClient.from_connection_string(connection, "dogs").get_entity("de", "1")["Name"] == "Max"
assert [file.name for file in ShareDirectoryClient.from_connection_string(connection, "docs", "").list_directories_and_files()] == ["cat.jpg"]
imported = connection.split(";BlobEndpoint=")[0] + ";BlobEndpoint=http://127.0.0.1:11000/devstoreaccount1;"
assert ContainerClient.from_connection_string(imported, "kept").download_blob("from-azurite.txt").readall() == b"kept"
"""


# The pages whose blocks are run, each with a program that checks the result.
PAGES = {"README.md": EXPECTED, "docs/oidc.md": "", "docs/hosts.md": ""}


@dataclass
class Block:
    """A code block: its page, line, language and text, and the comment before it, as kind and remark."""

    page: str
    line: int
    language: str
    text: str
    kind: str
    remark: str

    @property
    def title(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> list[Block]:
    pattern = re.compile(r"(?:^<!-- ([^:>]+?)(?:: (.+?))? -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Block(page, text.count("\n", 0, found.start(3)) + 1, found[3], found[4], found[1] or "", found[2] or "")
        for found in pattern.finditer(text)
    ]


def namespace() -> list[str] | None:
    """Returns a command that runs another one without any network, or None if that is not permitted."""
    for unshare in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        command = [*unshare, sys.executable, "-c", LOOPBACK]
        if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return None


def free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def script_of(blocks: list[Block], packages: Path, out: Path, expected: str) -> str:
    """Returns one shell script that runs the blocks, in order, and writes the output of each to a file."""
    archive = only(packages, "*.tar.gz").name.removesuffix(".tar.gz")
    lines = [
        "set -eu -o pipefail",
        "servers=()",
        'stop() { trap - EXIT; for pid in "${servers[@]}"; do kill $pid; done; for pid in "${servers[@]}"; do wait $pid; done; }',
        "trap 'code=$?; cat ${printed:-}; stop; exit $code' EXIT",
    ]
    for block in blocks:
        if block.language == "text" or block.kind == "not run":
            continue
        text = re.sub(r"lazuli-[\d.]+-x86_64-linux", archive, block.text)
        if block.language == "python":
            text = f"python3 - <<'END OF BLOCK'\n{text}END OF BLOCK\n"
        printed = out / str(block.line)
        lines.append(f"echo '== {block.title}'")
        if block.kind == "azurite-data":
            lines.append(f"python3 {HERE}/azurite_folder.py {os.environ['NODE_MODULES']}/.bin/azurite azurite-data 11000")
        if block.kind == "in the background":
            lines.append(f"{text.rstrip()} > {printed} 2> {printed}.log &")
            lines.append("servers+=($!)")
            wait = "sleep 0.1; kill -0 $! || { cat %s.log; exit 1; }" % printed
            lines.append(f"until grep -q '^  connect ' {printed}; do {wait}; done")
        else:
            # Braces keep variables and functions for the next block.
            lines.append(f"printed={printed}\n{{\n{text}}} > $printed\ncat $printed; unset printed")
        if "dist-packages" in block.text:
            lines.append("lazuli --version")
    lines += ["echo '== what is stored at the end'", f"python3 - <<'END OF BLOCK'\n{expected}\nEND OF BLOCK", "stop"]
    return "\n".join(lines) + "\n"


def assert_printed(block: Block, before: Block, out: Path) -> None:
    """Compares what a block printed with the text after it."""
    printed = (out / str(before.line)).read_text()
    # A release build names its commit.
    printed = re.sub(r"^(Lazuli \S+) \(.*\) is", r"\1 is", printed)
    pattern = "".join(re.escape(part) if part != "…" else "[^\n]*" for part in re.split("(…)", block.text))
    assert re.match(pattern, printed), f"{block.title} is not what was printed:\n{printed}"


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run_in_order(page, packages, tmp_path, capfd):
    text = (ROOT / page).read_text()
    blocks = blocks_of(page, text)
    assert len(blocks) == text.count("\n```") // 2, "every code block has a language"
    assert {block.language for block in blocks} <= {"sh", "python", "text"}
    kinds = {"", "not run", "in the background", "az", "azurite-data"}
    assert {block.kind for block in blocks} <= kinds
    is_readme = page == "README.md"

    home, work, out, programs = (tmp_path / name for name in ("home", "work", "out", "programs"))
    for folder in (home, work, out, programs):
        folder.mkdir()
    environment = new_environment(tmp_path / "environment")
    # The packages are where `make dist` would put them.
    (work / "target").mkdir()
    (work / "target" / "dist-packages").symlink_to(packages)
    (work / "examples").symlink_to(ROOT / "examples")
    if not is_readme:
        (programs / "lazuli").symlink_to(packages / "stage" / "lazuli")
    replaced = []
    if is_readme and shutil.which("az") is None:
        az = (HERE / "az").read_text().replace("/usr/bin/env python3", str(environment / "bin" / "python3"))
        (programs / "az").write_text(az)
        (programs / "az").chmod(0o755)
        replaced.append("az (not installed): by the Python SDK")
    for name, variable in (("azcopy", "AZCOPY"), ("rclone", "RCLONE")):
        (programs / name).symlink_to(os.environ[variable])

    script = script_of(blocks, packages, out, PAGES[page])
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("LAZULI", "AZURITE", "AZURE", "PYTHON"))},
        "HOME": str(home), "PATH": f"{environment}/bin:{programs}:{os.environ['PATH']}",
        "AZCOPY_LOG_LOCATION": str(home), "AZCOPY_JOB_PLAN_LOCATION": str(home),
    }
    command = namespace()
    if command is None:
        replaced.append("ports: by free ones")
        used = [*PORTS.values(), *AZURITE_PORTS]
        free = dict(zip(used, free_ports(len(used))))
        with_free = lambda text: re.sub("|".join(used), lambda port: free[port[0]], text)
        script = with_free(script)
        blocks = [replace(block, text=with_free(block.text)) for block in blocks]
        variables |= {name: free[port] for name, port in PORTS.items()}
    (tmp_path / "snippets.sh").write_text(script)
    done = subprocess.run(
        [*(command or []), "bash", tmp_path / "snippets.sh"], cwd=work, env=variables, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
    )
    with capfd.disabled():
        print()
        for block in blocks:
            if block.kind == "not run":
                print(f"not run: {block.title}: {block.remark}")
        for line in replaced:
            print(f"replaced: {line}")
    assert done.returncode == 0, done.stdout
    for before, block in zip(blocks, blocks[1:]):
        if block.language == "text":
            assert_printed(block, before, out)


@pytest.mark.parametrize("wrong", ["false", "lazuli no-such-command", "exit 3"])
def test_a_snippet_that_fails_fails_the_run(packages, tmp_path, wrong):
    script = script_of([Block("page", 1, "sh", f"{wrong}\ntrue\n", "", "")], packages, tmp_path, "")
    assert subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True).returncode != 0
