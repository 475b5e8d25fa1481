"""Command-line tools that move data: AzCopy and rclone."""

import filecmp
import os
import subprocess
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from azure.storage.blob import (
    AccountSasPermissions,
    BlobServiceClient,
    ResourceTypes,
    generate_account_sas,
)
from azure.storage.fileshare import AccountSasPermissions as FilePermissions
from azure.storage.fileshare import ShareServiceClient
from azure.storage.fileshare import generate_account_sas as generate_file_account_sas

from conftest import ACCOUNT, KEY

AZCOPY = os.environ.get("AZCOPY")
RCLONE = os.environ.get("RCLONE")


@pytest.fixture(scope="module")
def service(server):
    return BlobServiceClient.from_connection_string(server.connection_string, retry_total=0)


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for name, size in [("a.txt", 10), ("dir/b.bin", 300_000), ("dir/deep/c.bin", 9 << 20), ("empty", 0), ("ä ö.txt", 5)]:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    return root


def same(left: Path, right: Path):
    names = lambda root: sorted(p.relative_to(root) for p in root.rglob("*") if p.is_file())
    assert names(left) == names(right)
    for name in names(left):
        assert filecmp.cmp(left / name, right / name, shallow=False), name


def run(command, **environment):
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_azcopy_moves_a_tree(server, service, tree, tmp_path):
    assert AZCOPY, "the Makefile installs AzCopy and names it in AZCOPY"
    one, two = (f"azcopy-{uuid.uuid4().hex[:12]}" for _ in range(2))
    service.create_container(one)
    service.create_container(two)
    sas = blob_signature()
    url = lambda container, path="": f"{server.endpoints['blob']}/{container}{path}?{sas}"
    home = {"AZCOPY_LOG_LOCATION": str(tmp_path / "log"), "AZCOPY_JOB_PLAN_LOCATION": str(tmp_path / "plan")}
    azcopy = lambda *arguments: run([AZCOPY, *arguments, "--log-level=ERROR"], **home)

    azcopy("copy", f"{tree}/*", url(one), "--recursive", "--from-to=LocalBlob", "--put-md5")
    azcopy("copy", url(one, "/*"), tmp_path / "down", "--recursive", "--from-to=BlobLocal", "--check-md5=FailIfDifferent")
    same(tree, tmp_path / "down")

    (tree / "a.txt").write_bytes(b"changed and longer than before")
    (tree / "empty").unlink()
    azcopy("sync", tree, url(one), "--recursive", "--delete-destination=true", "--from-to=LocalBlob")
    names = sorted(blob.name for blob in service.get_container_client(one).list_blobs())
    assert names == ["a.txt", "dir/b.bin", "dir/deep/c.bin", "ä ö.txt"]
    assert service.get_container_client(one).download_blob("a.txt").readall() == b"changed and longer than before"

    azcopy("copy", url(one, "/*"), url(two), "--recursive", "--from-to=BlobBlob")
    copied = {b.name: b.size for b in service.get_container_client(two).list_blobs()}
    assert copied == {b.name: b.size for b in service.get_container_client(one).list_blobs()}

    azcopy("remove", url(two, "/dir"), "--recursive", "--from-to=BlobTrash")
    assert sorted(b.name for b in service.get_container_client(two).list_blobs()) == ["a.txt", "ä ö.txt"]


def test_rclone_moves_a_tree(server, service, tree, tmp_path):
    assert RCLONE, "the Makefile installs rclone and names it in RCLONE"
    config = tmp_path / "rclone.conf"
    config.write_text(
        "[lazuli]\ntype = azureblob\n"
        f"account = {ACCOUNT}\nkey = {KEY}\nendpoint = {server.endpoints['blob']}\n"
    )
    container = f"rclone-{uuid.uuid4().hex[:12]}"
    rclone = lambda *arguments: run([RCLONE, "--config", config, "--retries=1", *arguments])

    rclone("copy", tree, f"lazuli:{container}")
    rclone("check", tree, f"lazuli:{container}")
    rclone("copy", f"lazuli:{container}", tmp_path / "down")
    same(tree, tmp_path / "down")

    (tree / "dir/b.bin").unlink()
    (tree / "new.txt").write_bytes(b"new")
    rclone("sync", tree, f"lazuli:{container}")
    rclone("check", tree, f"lazuli:{container}")
    listed = rclone("lsf", "-R", "--files-only", f"lazuli:{container}").splitlines()
    assert sorted(listed) == ["a.txt", "dir/deep/c.bin", "empty", "new.txt", "ä ö.txt"]
    rclone("copyto", f"lazuli:{container}/a.txt", f"lazuli:{container}/copied.txt")
    assert service.get_blob_client(container, "copied.txt").get_blob_properties().size == 10
    rclone("purge", f"lazuli:{container}")
    assert not service.get_container_client(container).exists()


@pytest.fixture(scope="module")
def shares(server):
    return ShareServiceClient.from_connection_string(server.connection_string, retry_total=0)


def listed_in(share, directory=""):
    found = []
    for entry in share.list_directories_and_files(directory):
        path = f"{directory}/{entry.name}".lstrip("/")
        found += listed_in(share, path) if entry.is_directory else [(path, entry.size)]
    return sorted(found)


def file_signature():
    return generate_file_account_sas(
        ACCOUNT,
        KEY,
        ResourceTypes(service=True, container=True, object=True),
        FilePermissions(read=True, write=True, delete=True, list=True, create=True),
        datetime.now(timezone.utc) + timedelta(hours=1),
    )


def blob_signature():
    return generate_account_sas(
        ACCOUNT,
        KEY,
        ResourceTypes(service=True, container=True, object=True),
        AccountSasPermissions(read=True, write=True, delete=True, list=True, add=True, create=True, tag=True),
        datetime.now(timezone.utc) + timedelta(hours=1),
    )


def test_azcopy_moves_a_tree_of_files(server, shares, tree, tmp_path):
    assert AZCOPY, "the Makefile installs AzCopy and names it in AZCOPY"
    one, two = (shares.create_share(f"azcopy-{uuid.uuid4().hex[:12]}") for _ in range(2))
    sas = file_signature()
    url = lambda share, path="": f"{server.endpoints['file']}/{share.share_name}{path}?{sas}"
    home = {"AZCOPY_LOG_LOCATION": str(tmp_path / "log"), "AZCOPY_JOB_PLAN_LOCATION": str(tmp_path / "plan")}
    azcopy = lambda *arguments: run([AZCOPY, *arguments, "--log-level=ERROR"], **home)
    sizes = lambda root: sorted((str(p.relative_to(root)), p.stat().st_size) for p in root.rglob("*") if p.is_file())

    azcopy("copy", f"{tree}/*", url(one), "--recursive", "--from-to=LocalFile", "--put-md5")
    assert listed_in(one) == sizes(tree)
    azcopy("copy", url(one, "/*"), tmp_path / "down", "--recursive", "--from-to=FileLocal", "--check-md5=FailIfDifferent")
    same(tree, tmp_path / "down")
    azcopy("copy", url(one, "/*"), url(two), "--recursive", "--from-to=FileFile")
    assert listed_in(two) == sizes(tree)
    azcopy("copy", url(two, "/*"), tmp_path / "again", "--recursive", "--from-to=FileLocal")
    same(tree, tmp_path / "again")
    for share in (one, two):
        share.delete_share()


def test_azcopy_moves_a_tree_between_blobs_and_files(server, service, shares, tree, tmp_path):
    """The server copies between its services. No content passes through the client."""
    assert AZCOPY, "the Makefile installs AzCopy and names it in AZCOPY"
    name = f"azcopy-{uuid.uuid4().hex[:12]}"
    container, share = service.create_container(name), shares.create_share(name)
    blobs = lambda path="": f"{server.endpoints['blob']}/{name}{path}?{blob_signature()}"
    files = lambda path="": f"{server.endpoints['file']}/{name}{path}?{file_signature()}"
    home = {"AZCOPY_LOG_LOCATION": str(tmp_path / "log"), "AZCOPY_JOB_PLAN_LOCATION": str(tmp_path / "plan")}
    azcopy = lambda *arguments: run([AZCOPY, *arguments, "--recursive", "--log-level=ERROR"], **home)

    azcopy("copy", f"{tree}/*", blobs(), "--from-to=LocalBlob")
    azcopy("copy", blobs("/*"), files("/from-blobs"), "--from-to=BlobFile")
    azcopy("copy", files("/from-blobs/*"), tmp_path / "down", "--from-to=FileLocal")
    same(tree, tmp_path / "down")
    azcopy("copy", files("/from-blobs/*"), blobs("/from-files"), "--from-to=FileBlob")
    azcopy("copy", blobs("/from-files/*"), tmp_path / "again", "--from-to=BlobLocal")
    same(tree, tmp_path / "again")
    container.delete_container()
    share.delete_share()


def test_rclone_moves_a_tree_of_files(server, shares, tree, tmp_path):
    assert RCLONE, "the Makefile installs rclone and names it in RCLONE"
    share = shares.create_share(f"rclone-{uuid.uuid4().hex[:12]}")
    config = tmp_path / "rclone.conf"
    config.write_text(
        "[lazuli]\ntype = azurefiles\n"
        f"account = {ACCOUNT}\nkey = {KEY}\nshare_name = {share.share_name}\nendpoint = {server.endpoints['file']}\n"
    )
    rclone = lambda *arguments: run([RCLONE, "--config", config, "--retries=1", *arguments])

    rclone("copy", tree, "lazuli:")
    rclone("check", "--download", tree, "lazuli:")
    rclone("copy", "lazuli:", tmp_path / "down")
    same(tree, tmp_path / "down")
    rclone("copyto", "lazuli:a.txt", "lazuli:copied.txt")
    assert share.get_file_client("copied.txt").download_file().readall() == (tree / "a.txt").read_bytes()
    rclone("deletefile", "lazuli:copied.txt")
    rclone("moveto", "lazuli:a.txt", "lazuli:dir/moved.txt")
    listed = rclone("lsf", "-R", "--files-only", "lazuli:").splitlines()
    assert sorted(listed) == ["dir/b.bin", "dir/deep/c.bin", "dir/moved.txt", "empty", "ä ö.txt"]
    rclone("purge", "lazuli:dir")
    share.delete_share()
