"""Builds the packages of a binary.

    dist.py [--binary FILE] [--out DIR] [PACKAGE…]

Without `--binary`, builds one with the profile `dist`. The packages are `tar`, `npm`, `wheel`, `rootfs`, `deb`, `rpm`
and `stage`; without names, all of them. `rootfs` is the root file system of the image. `deb` and `rpm` need cargo-deb and
cargo-generate-rpm, and `make dist` installs them. `npm` and `wheel` need npm and pip.
"""

import argparse
import gzip
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
MACHINE = platform.machine()
NPM_ARCH = {"x86_64": "x64", "aarch64": "arm64"}[MACHINE]
SHELLS = {"bash": "lazuli.bash", "zsh": "_lazuli", "fish": "lazuli.fish"}


def run(*command: object, **options) -> str:
    """Runs a command and returns what it prints. Raises an error if it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def build() -> Path:
    """Builds the binary that is published."""
    run("cargo", "build", "--profile", "dist", "--locked", "-p", "lazuli", cwd=ROOT)
    return target() / "dist" / "lazuli"


def target() -> Path:
    metadata = run("cargo", "metadata", "--format-version", "1", "--no-deps", cwd=ROOT)
    return Path(json.loads(metadata)["target_directory"])


def stage(binary: Path, out: Path) -> Path:
    """Writes what every package contains: the stripped binary, man pages, completions and documents."""
    staged = out / "stage"
    shutil.rmtree(staged, ignore_errors=True)
    (staged / "man").mkdir(parents=True)
    (staged / "completions").mkdir()
    run("objcopy", "--only-keep-debug", "--compress-debug-sections", binary, out / "lazuli.debug")
    run("strip", "-o", staged / "lazuli", binary)
    run("objcopy", f"--add-gnu-debuglink={out / 'lazuli.debug'}", staged / "lazuli")
    run(staged / "lazuli", "man", staged / "man")
    for shell, name in SHELLS.items():
        (staged / "completions" / name).write_text(run(staged / "lazuli", "completions", shell))
    for document in ("README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / document, staged)
    for file in ("systemd/lazuli.service", "systemd/lazuli.toml", "logrotate/lazuli"):
        (staged / file).parent.mkdir(exist_ok=True)
        shutil.copy(PACKAGING / file, staged / file)
    return staged


def tar(staged: Path, out: Path) -> Path:
    """The archive, with one folder at its top."""
    name = f"lazuli-{VERSION}-{MACHINE}-linux"
    path = out / f"{name}.tar.gz"
    with gzip.GzipFile(path, "wb", mtime=0) as file, tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(staged, name, filter=owned_by_root)
    return path


def owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = "root"
    return entry


def fill_in(folder: Path, **values: str) -> None:
    """Replaces @NAME@ in the text files of a folder."""
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".toml"):
            path.write_text(re.sub(r"@(\w+)@", lambda name: values[name[1]], path.read_text()))


def npm(staged: Path, out: Path) -> list[Path]:
    """The npm packages: the binary of this platform, `lazuli`, which runs it, and `lazuli-azurite`."""
    packed = []
    for name in ("platform", "lazuli", "lazuli-azurite"):
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / name
            shutil.copytree(PACKAGING / "npm" / name, package)
            fill_in(package, VERSION=VERSION, ARCH=NPM_ARCH)
            shutil.copy(ROOT / "LICENSE", package)
            if name == "platform":
                (package / "bin").mkdir()
                shutil.copy(staged / "lazuli", package / "bin")
            else:
                shutil.copy(PACKAGING / "npm" / "README.md", package)
            listed = json.loads(run("npm", "pack", "--json", "--silent", "--pack-destination", out, cwd=package))
            packed.append(out / listed[0]["filename"])
    return packed


def wheel(staged: Path, out: Path) -> Path:
    """The Python wheel. Its tag names the oldest glibc on which the binary runs."""
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "source", Path(folder) / "built"
        shutil.copytree(PACKAGING / "python", source)
        fill_in(source, VERSION=VERSION)
        (source / "bin").mkdir()
        shutil.copy(staged / "lazuli", source / "bin")
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, source)
        (path,) = built.iterdir()
        tag = f"manylinux_{oldest_glibc(staged / 'lazuli')}_{MACHINE}"
        run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, path)
        (path,) = built.iterdir()
        return Path(shutil.copy(path, out))


def oldest_glibc(binary: Path) -> str:
    """Returns the newest version of glibc that a symbol of the binary needs, as 2_36."""
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", binary))
    major, minor = max((int(major), int(minor)) for major, minor in versions)
    return f"{major}_{minor}"


def rootfs(staged: Path, out: Path) -> Path:
    """The root file system of the image, as the Dockerfile assembles it."""
    root = out / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    run(PACKAGING / "docker" / "rootfs.sh", staged / "lazuli", root)
    return root


def deb(staged: Path, out: Path) -> Path:
    """The Debian package. Its file list is in crates/lazuli/Cargo.toml and names target/dist-stage."""
    link_stage(staged)
    run("cargo", "deb", "-p", "lazuli", "--no-build", "--no-strip", "--output", out, cwd=ROOT)
    return max(out.glob("*.deb"), key=lambda path: path.stat().st_mtime)


def rpm(staged: Path, out: Path) -> Path:
    """The RPM package. Its file list is in crates/lazuli/Cargo.toml and names target/dist-stage."""
    link_stage(staged)
    run("cargo", "generate-rpm", "-p", "crates/lazuli", "--output", out, cwd=ROOT)
    return max(out.glob("*.rpm"), key=lambda path: path.stat().st_mtime)


def link_stage(staged: Path) -> None:
    link = ROOT / "target" / "dist-stage"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(staged.resolve())


# The folder `stage` alone is for `make install`.
PACKAGES = {make.__name__: make for make in (tar, npm, wheel, rootfs, deb, rpm)} | {"stage": lambda staged, out: staged}


def main() -> None:
    options = argparse.ArgumentParser(usage=__doc__)
    options.add_argument("--binary", type=Path)
    options.add_argument("--out", type=Path, default=ROOT / "target" / "dist-packages")
    options.add_argument("packages", nargs="*", choices=[*PACKAGES, []])
    options = options.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    staged = stage((options.binary or build()).resolve(), out)
    for name in options.packages or PACKAGES:
        made = PACKAGES[name](staged, out)
        for path in made if isinstance(made, list) else [made]:
            size = sum(file.lstat().st_size for file in path.rglob("*")) if path.is_dir() else path.stat().st_size
            print(f"{size / 1e6:8.1f} MB  {path}")


if __name__ == "__main__":
    main()
