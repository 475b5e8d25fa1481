"""Blobs through adlfs, the file system of fsspec that pandas and Dask use."""

import os
import urllib.request
import uuid

import fsspec
import pytest


@pytest.fixture
def root(server):
    files = fsspec.filesystem("abfs", connection_string=server.connection_string, skip_instance_cache=True)
    container = f"fsspec-{uuid.uuid4().hex[:12]}"
    files.mkdir(container)
    yield files, container
    files.rm(container, recursive=True)
    assert not files.exists(container)


def test_files_of_several_blocks_are_written_and_read_in_parts(root):
    files, container = root
    content = os.urandom(9 << 20)
    with files.open(f"{container}/a/large", "wb", block_size=4 << 20) as file:
        file.write(content)
    with files.open(f"{container}/a/large", "rb") as file:
        file.seek(5_000_000)
        assert file.read(1000) == content[5_000_000:5_001_000]
    assert files.cat_file(f"{container}/a/large") == content
    with urllib.request.urlopen(files.sign(f"{container}/a/large")) as answer:
        assert answer.read() == content


def test_existing_directories_and_files_are_not_created_again(root):
    files, container = root
    files.pipe_file(f"{container}/once", b"1", mode="create")
    with pytest.raises(FileExistsError):
        files.pipe_file(f"{container}/once", b"2", mode="create")
    assert files.cat_file(f"{container}/once") == b"1"


def test_trees_are_listed_copied_and_removed(root):
    files, container = root
    names = ["a b", "ü€", "h#x", "p%20x", "plus+x", "amp&x", "k'q", "semi;x"]
    for number, name in enumerate(names):
        files.pipe_file(f"{container}/tree/{number % 3}/{name}.csv", name.encode())
    assert len(files.glob(f"{container}/tree/*/*.csv")) == len(names)
    assert [files.isdir(path) for path in files.ls(f"{container}/tree", detail=False)] == [True] * 3
    files.copy(f"{container}/tree", f"{container}/copy", recursive=True)
    files.rm(f"{container}/tree", recursive=True)
    assert not files.exists(f"{container}/tree")
    copied = files.cat(files.find(f"{container}/copy"))
    assert sorted(copied.values()) == sorted(name.encode() for name in names)
    with pytest.raises(FileNotFoundError):
        files.info(f"{container}/tree/0/a b.csv")
