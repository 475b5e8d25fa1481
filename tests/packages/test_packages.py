"""Builds the packages from the debug binary and uses each as a user would.

`make dist` builds the same packages, and deb and rpm, from the published binary.
"""

import json
import os
import re
import shutil
import subprocess
import tarfile
import urllib.request
from pathlib import Path

import pytest

from conftest import ROOT, new_environment, only

PORTS = [option for name in ("blob", "queue", "table", "file", "smb", "console") for option in (f"--{name}-port", "0")]


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
    environment = new_environment(tmp_path / "environment")
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


def test_examples_name_options_that_exist():
    options = subprocess.run([os.environ["LAZULI"], "serve", "--help"], capture_output=True, text=True, check=True).stdout
    flags = set(re.findall(r"^\s+(?:-\w, )?--([a-z-]+)", options, re.MULTILINE))
    assert len(flags) > 30, flags
    known = {f"LAZULI_{flag.upper().replace('-', '_')}" for flag in flags}
    # Variables of builds and tests.
    known |= {"LAZULI_COMMIT", "LAZULI_COMMIT_DATE", "LAZULI_VERSION", "LAZULI_BINARY"}
    # A variable that Kubernetes sets; the chart says how to avoid it.
    known.add("LAZULI_PORT")
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(path for path in (ROOT / "packaging").rglob("*") if path.is_file())]
    for page in pages:
        text = page.read_text()
        named = set(re.findall(r"\bLAZULI_[A-Z_]*[A-Z]\b", text))
        assert named <= known, f"{page}: {sorted(named - known)}"
        if page.suffix == ".toml" and page.parent.name == "systemd":
            keys = set(re.findall(r"^#? ?([a-z-]+) =", text, re.MULTILINE))
            assert keys and keys <= flags, f"{page}: {keys - flags}"
        for command in re.findall(r"\blazuli serve\b([^`\n]*)", text):
            unknown = set(re.findall(r"--([a-z-]+)", command)) - flags
            assert not unknown, f"{page}: lazuli serve has no {unknown}"


def test_helm_chart_lints_and_renders(tmp_path):
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed")
    chart = ROOT / "packaging" / "helm" / "lazuli"
    key = "photos:" + "A" * 86 + "=="
    values = ["--set", f"accounts.list={{{key}}}", "--set", "serviceMonitor.enabled=true"]
    subprocess.run([helm, "lint", "--strict", chart, *values], check=True)
    rendered = subprocess.run([helm, "template", "storage", chart, *values], capture_output=True, text=True, check=True).stdout
    kinds = set(re.findall(r"^kind: (\w+)", rendered, re.MULTILINE))
    assert kinds == {"ConfigMap", "Secret", "Service", "ServiceMonitor", "StatefulSet"}
    # No account, or the development key: the chart refuses.
    public = "devstoreaccount1:Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    for refused in ([], ["--set", f"accounts.list={{{public}}}"]):
        assert subprocess.run([helm, "template", "storage", chart, *refused], capture_output=True).returncode != 0


def test_compose_file_unit_and_workflows_are_well_formed():
    service = (ROOT / "packaging/systemd/lazuli.service").read_text()
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", ROOT / "packaging/systemd/lazuli.service"], capture_output=True, text=True)
        complaints = [line for line in done.stderr.splitlines() if "lazuli.service" in line and "not executable" not in line]
        assert not complaints, complaints
    assert "Type=notify" in service
