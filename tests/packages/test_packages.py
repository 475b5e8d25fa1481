"""Builds the packages from the debug binary and uses each as a user would.

`make dist` builds the same packages, and deb and rpm, from the published binary.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PORTS = [option for name in ("blob", "queue", "table", "file", "smb", "console") for option in (f"--{name}-port", "0")]


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


def is_served(command: list, folder: Path) -> None:
    """Starts a server by the command, asks its health, and stops it with SIGTERM."""
    command = [*map(str, command), "serve", "--in-memory", *PORTS]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        console = None
        for line in process.stdout:
            if match := re.match(r"\s+console\s+(\S+)", line):
                console = match[1]
            if line.lstrip().startswith("connect"):
                break
        with urllib.request.urlopen(f"{console}/healthz", timeout=30) as reply:
            assert reply.status == 200
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


def test_archive_contains_a_binary_that_serves(packages, tmp_path):
    with tarfile.open(only(packages, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"lazuli", "LICENSE", "completions/lazuli.bash", "man/lazuli.1", "systemd/lazuli.service"} <= names
    is_served([folder / "lazuli"], tmp_path)


def test_npm_packages_install_programs_that_serve(packages, tmp_path):
    (tmp_path / "package.json").write_text("{}")
    tarballs = sorted(packages.glob("lazuli-*.tgz"))
    assert len(tarballs) == 3, tarballs
    options = ["--offline", "--no-audit", "--no-fund", "--silent"]
    # The packages name each other by version. npm finds them by the overrides, because nothing is published.
    overrides = {}
    for tarball in tarballs:
        name = re.sub(r"-\d+\.\d+\.\d+.*", "", tarball.name)
        overrides[name] = f"file:{tarball}"
    everything = {"dependencies": overrides, "overrides": {name: f"${name}" for name in overrides}}
    (tmp_path / "package.json").write_text(json.dumps(everything))
    subprocess.run(["npm", "install", *options], cwd=tmp_path, check=True)
    is_served([tmp_path / "node_modules/.bin/lazuli"], tmp_path)
    version = subprocess.run(["npx", "--offline", "lazuli", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert version.stdout.startswith("lazuli "), version
    program = subprocess.run(["npx", "--offline", "azurite", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert program.returncode == 0, program


def test_wheel_installs_the_binary_and_a_pytest_fixture(packages, tmp_path):
    wheel = only(packages, "*.whl")
    assert re.search(r"py3-none-manylinux_2_\d+_\w+\.whl$", wheel.name), wheel.name
    environment = tmp_path / "environment"
    # The clients of this environment are visible in the new one, so that nothing is downloaded.
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    (own,) = (path for path in map(Path, sys.path) if path.name == "site-packages")
    (theirs,) = environment.glob("lib/python*/site-packages")
    (theirs / "clients.pth").write_text(f"{own}\n")
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    is_served([environment / "bin" / "lazuli"], tmp_path)
    is_served([python, "-m", "lazuli"], tmp_path)
    (tmp_path / "test_fixture.py").write_text(
        "from azure.storage.blob import BlobServiceClient\n"
        "\n"
        "def upload(lazuli):\n"
        "    container = BlobServiceClient.from_connection_string(lazuli.connection_string).create_container('photos')\n"
        "    container.upload_blob('cat.jpg', b'meow')\n"
        "    assert container.download_blob('cat.jpg').readall() == b'meow'\n"
        "\n"
        "def test_upload(lazuli):\n"
        "    upload(lazuli)\n"
        "\n"
        "def test_data_of_the_other_test_is_not_visible(lazuli):\n"
        "    upload(lazuli)\n"
        "\n"
        "def test_session(lazuli_session):\n"
        "    upload(lazuli_session)\n"
    )
    done = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr


def test_root_file_system_of_the_image_runs_alone(packages, tmp_path):
    root = packages / "rootfs"
    inside = ["/usr/bin/lazuli"]
    enter = ["chroot", "--userspec=65532:65532", root] if os.getuid() == 0 else ["unshare", "-r", "chroot", root]
    is_served([*enter, *inside], tmp_path)
    names = {str(path.relative_to(root)) for path in root.rglob("*")}
    assert {"usr/bin/lazuli", "usr/bin/azurite", "etc/passwd", "data", "tmp"} <= names


def test_image_builds_and_becomes_healthy(packages, tmp_path):
    engine = shutil.which("docker") or shutil.which("podman")
    if engine is None or subprocess.run([engine, "info"], capture_output=True).returncode != 0:
        pytest.skip("no container engine runs here; the root file system was tested instead")
    (tmp_path / "Dockerfile").write_text(
        "FROM scratch\nCOPY rootfs /\nUSER 65532:65532\nWORKDIR /data\nENV LAZULI_HOST=0.0.0.0 LAZULI_CONSOLE_PORT=10080\n"
        "ENTRYPOINT [\"/usr/bin/lazuli\"]\nCMD [\"serve\"]\n"
    )
    shutil.copytree(packages / "rootfs", tmp_path / "rootfs", symlinks=True)
    subprocess.run([engine, "build", "-q", "-t", "lazuli-test", tmp_path], check=True)
    started = [engine, "run", "-d", "--rm", "-e", "LAZULI_ACCOUNT=test:" + "A" * 86 + "==", "lazuli-test"]
    container = subprocess.run(started, check=True, capture_output=True, text=True).stdout.strip()
    try:
        health = [engine, "exec", container, "/usr/bin/lazuli", "health", "--wait", "60"]
        subprocess.run(health, check=True)
    finally:
        subprocess.run([engine, "stop", container], check=True, capture_output=True)


def test_compose_file_unit_and_workflows_are_well_formed():
    service = (ROOT / "packaging/systemd/lazuli.service").read_text()
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", ROOT / "packaging/systemd/lazuli.service"], capture_output=True, text=True)
        complaints = [line for line in done.stderr.splitlines() if "lazuli.service" in line and "not executable" not in line]
        assert not complaints, complaints
    assert "Type=notify" in service
