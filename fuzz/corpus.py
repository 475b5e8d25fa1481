#!/usr/bin/env python3
"""Packs the inputs of a folder into one file of fuzz/corpus, or unpacks such a file: corpus.py
pack FILE FOLDER SEEDS, corpus.py unpack FILE FOLDER.

A file holds each input as its length (4 bytes, little-endian) and its bytes. Thousands of tiny inputs would
otherwise be thousands of files in every clone. `crates/torture/tests/corpora.rs` reads the same format."""

import hashlib
import pathlib
import struct
import sys

# All corpora together stay below 2 MiB.
MAX_BYTES = 48 << 10


def sorted_inputs(folder):
    return sorted((path.read_bytes() for path in folder.iterdir()), key=lambda data: (len(data), data))


def pack(file, folder, seeds):
    """Packs the seeds, which are never left out, and the inputs of the folder as far as there is room."""
    seeds = sorted_inputs(seeds)
    inputs = [data for data in sorted_inputs(folder) if data not in seeds]
    # Without room for all, take some of every size: small inputs fail early, and large ones reach the deepest
    # code.
    room = MAX_BYTES - sum(4 + len(data) for data in seeds)
    step = max(1, sum(4 + len(data) for data in inputs) / room)
    packed = b"".join(struct.pack("<I", len(data)) + data for data in seeds)
    for at in range(int(len(inputs) / step)):
        data = inputs[int(at * step)]
        if len(packed) + 4 + len(data) <= MAX_BYTES:
            packed += struct.pack("<I", len(data)) + data
    file.write_bytes(packed)


def unpack(file, folder):
    folder.mkdir(parents=True, exist_ok=True)
    packed = file.read_bytes() if file.exists() else b""
    while packed:
        (length,) = struct.unpack_from("<I", packed)
        data, packed = packed[4 : 4 + length], packed[4 + length :]
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    {"pack": pack, "unpack": unpack}[command](*map(pathlib.Path, paths))
