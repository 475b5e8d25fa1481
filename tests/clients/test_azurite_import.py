"""`lazuli import azurite`: a folder that the real Azurite wrote is read back through the clients from both servers."""

import base64
import json
import os
import socket
import subprocess
import time
import urllib.request
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.data.tables import EdmType, EntityProperty, TableServiceClient
from azure.storage.blob import (
    AccessPolicy, BlobBlock, BlobServiceClient, ContentSettings, ContainerSasPermissions, CorsRule, StandardBlobTier,
)
from azure.storage.queue import QueueServiceClient

from conftest import ACCOUNT, KEY, start

BLOBS, ENTITIES, MESSAGES = 1000, 1000, 100
SERVICES = ("blob", "queue", "table")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Azurite:
    """The real Azurite on a folder."""

    def __init__(self, folder: Path):
        ports = free_ports(3)
        program = Path(os.environ["NODE_MODULES"]) / ".bin" / "azurite"
        options = [option for name, port in zip(SERVICES, ports) for option in (f"--{name}Port", str(port))]
        self.folder = folder
        self.process = subprocess.Popen(
            [program, "--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location", folder, *options],
            stdout=subprocess.PIPE, text=True,
        )
        for line in self.process.stdout:
            if "Table service is successfully listening" in line:
                break
        endpoints = "".join(
            f"{name.capitalize()}Endpoint=http://127.0.0.1:{port}/{ACCOUNT};" for name, port in zip(SERVICES, ports)
        )
        self.connection_string = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoints}"

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)


def fill(connection_string):
    """Creates one of everything that Azurite knows, and many of the ordinary things."""
    blobs = BlobServiceClient.from_connection_string(connection_string)
    blobs.set_service_properties(cors=[CorsRule(["*"], ["GET"], max_age_in_seconds=7)])
    photos = blobs.create_container("photos", metadata={"Album": "Summer"})
    policy = AccessPolicy(ContainerSasPermissions(read=True), expiry=datetime(2040, 1, 1, tzinfo=timezone.utc))
    photos.set_container_access_policy({"readers": policy}, public_access="blob")
    content = ContentSettings(content_type="image/jpeg", cache_control="no-cache", content_language="de")
    cat = photos.upload_blob("dir/kätzchen ?.jpg", b"first" * 100, metadata={"k": "v"}, content_settings=content)
    cat.create_snapshot(metadata={"taken": "1"})
    cat.upload_blob(b"second", overwrite=True, tags={"animal": "cat", "a b": "c=d"})
    cat.create_snapshot()
    cat.upload_blob(b"third", overwrite=True)
    large = photos.get_blob_client("large")
    large.upload_blob(os.urandom(9 << 20))
    blocks = photos.get_blob_client("blocks")
    for number in range(3):
        blocks.stage_block(f"{number:04}", bytes([number]) * 1000)
    blocks.commit_block_list([BlobBlock("0000"), BlobBlock("0002"), BlobBlock("0001")])
    blocks.stage_block("0009", b"uncommitted")
    photos.get_blob_client("uncommitted").stage_block("0001", b"only")
    disk = photos.get_blob_client("disk")
    disk.create_page_blob(4096, sequence_number=5)
    disk.upload_page(b"p" * 512, 512, 512)
    disk.upload_page(b"q" * 1024, 2048, 1024)
    disk.clear_page(2048, 512)
    log = photos.get_blob_client("log")
    log.create_append_blob()
    log.append_block(b"one\n")
    log.append_block(b"two\n")
    photos.upload_blob("cool", b"x", standard_blob_tier=StandardBlobTier.COOL)
    photos.upload_blob("empty", b"")
    photos.get_blob_client("copy").start_copy_from_url(log.url.replace("log", "empty"))
    leased = photos.upload_blob("leased", b"x")
    leased.acquire_lease(lease_id=LEASE)
    blobs.create_container("leased").acquire_lease(lease_id=LEASE)
    many = blobs.create_container("many")
    for number in range(BLOBS):
        many.upload_blob(f"blob-{number:05}", b"%d" % number)

    queues = QueueServiceClient.from_connection_string(connection_string)
    work = queues.create_queue("work", metadata={"m": "1"})
    work.send_message("taken & <received>")
    work.receive_message(visibility_timeout=7200)
    work.send_message("hidden", visibility_timeout=3600)
    for number in range(MESSAGES):
        work.send_message(f"message {number} ü", time_to_live=-1)

    tables = TableServiceClient.from_connection_string(connection_string)
    people = tables.create_table("People")
    people.create_entity({
        "PartitionKey": "it's", "RowKey": "a=b;c", "text": "ü", "int": 5, "long": EntityProperty(5_000_000_000, EdmType.INT64),
        "double": 1.5, "whole": 2.0, "bool": True, "guid": uuid.UUID(int=7), "binary": b"\x00\x01",
        "time": datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc), "empty": "",
    })
    for first in range(0, ENTITIES, 100):
        entities = [{"PartitionKey": str(first), "RowKey": str(row), "n": row} for row in range(100)]
        people.submit_transaction([("create", entity) for entity in entities])


LEASE = "11111111-2222-3333-4444-555555555555"


def lower(metadata):
    """Metadata with names in lower case: the import cannot keep capitals, and reports how many names had them."""
    return {name.lower(): value for name, value in (metadata or {}).items()}


def contents(connection_string):
    """Everything that the clients see, without times, ETags and identifiers that the server chooses."""
    seen = {}
    blobs = BlobServiceClient.from_connection_string(connection_string)
    seen["cors"] = [vars(rule) for rule in blobs.get_service_properties()["cors"]]
    for container in blobs.list_containers(include_metadata=True):
        client = blobs.get_container_client(container.name)
        access = client.get_container_access_policy()
        policies = [(one.id, str(one.access_policy.permission), str(one.access_policy.expiry)[:19]) for one in access["signed_identifiers"]]
        seen[container.name] = (lower(container.metadata), container.public_access, container.lease.state, policies)
        snapshots = {}
        # The two servers list a blob and its snapshots in different orders.
        listed = client.list_blobs(include=["metadata", "snapshots", "tags", "uncommittedblobs"])
        for blob in sorted(listed, key=lambda blob: (blob.name, blob.snapshot or "")):
            number = snapshots[blob.name, bool(blob.snapshot)] = snapshots.get((blob.name, bool(blob.snapshot)), -1) + 1
            one = client.get_blob_client(blob.name, snapshot=blob.snapshot)
            settings = vars(blob.content_settings)
            key = (container.name, blob.name, number, bool(blob.snapshot))
            if blob.name == "uncommitted":
                seen[key] = [(block.id, block.size) for block in one.get_block_list("uncommitted")[1]]
                continue
            digest = settings.pop("content_md5")
            seen[key] = (
                one.download_blob().readall(), settings, str(blob.blob_type), lower(blob.metadata), blob.tags or {}, "" if blob.snapshot else blob.lease.state,
                blob.lease.duration, str(blob.blob_tier), blob.page_blob_sequence_number, digest and bytes(digest),
            )
            if blob.blob_type == "PageBlob":
                seen[key] += ([(page.start, page.end) for page in one.list_page_ranges()],)
            if blob.name == "blocks":
                seen[key] += tuple([(block.id, block.size) for block in kind] for kind in one.get_block_list("all"))
    queues = QueueServiceClient.from_connection_string(connection_string)
    for queue in queues.list_queues(include_metadata=True):
        client = queues.get_queue_client(queue.name)
        count = client.get_queue_properties().approximate_message_count
        texts = [message.content for page in client.receive_messages(messages_per_page=32, visibility_timeout=1).by_page() for message in page]
        seen[queue.name] = (lower(queue.metadata), count, texts[:MESSAGES])
    tables = TableServiceClient.from_connection_string(connection_string)
    for table in tables.list_tables():
        for entity in tables.get_table_client(table.name).list_entities():
            seen[table.name, entity["PartitionKey"], entity["RowKey"]] = dict(entity)
    return seen


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("azurite")
    azurite = Azurite(folder)
    fill(azurite.connection_string)
    # Azurite writes its databases every five seconds and when it stops.
    azurite.stop()
    return folder


def test_an_imported_folder_has_the_contents_that_azurite_served(folder, tmp_path):
    command = [os.environ["LAZULI"], "import", "azurite", folder, "--into", tmp_path / "data"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was left out." in done.stdout, done.stdout
    assert "Not imported for 1 of these: capital letters in names of metadata" in done.stdout, done.stdout
    azurite = Azurite(folder)
    expected = contents(azurite.connection_string)
    azurite.stop()
    server = start(tmp_path / "data")
    found = contents(server.connection_string)
    server.stop()
    assert sorted(map(str, found.keys() ^ expected.keys())) == []
    assert [(key, found[key], value) for key, value in expected.items() if found[key] != value] == []


def test_missing_content_is_listed_and_the_rest_is_imported(folder, tmp_path):
    copy = tmp_path / "folder"
    subprocess.run(["cp", "-r", folder, copy], check=True)
    for file in (copy / "__blobstorage__").iterdir():
        file.unlink()
    command = [os.environ["LAZULI"], "import", "azurite", copy, "--into", tmp_path / "data"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "blob photos/large" in done.stdout and "entities" in done.stdout, done.stdout


def test_blob_whose_content_is_missing_is_left_out_with_its_snapshots(folder, tmp_path):
    copy = tmp_path / "folder"
    subprocess.run(["cp", "-r", folder, copy], check=True)
    database = copy / "__azurite_db_blob__.json"
    documents = json.loads(database.read_text())
    blobs = next(one for one in documents["collections"] if one["name"] == "$BLOBS_COLLECTION$")["data"]
    cat = next(one for one in blobs if one["name"].endswith(" ?.jpg") and not one["snapshot"])
    for chunk in (cat.get("persistency"), *(block["persistency"] for block in cat.get("committedBlocksInOrder") or [])):
        if chunk:
            chunk["id"] = "missing"
    database.write_text(json.dumps(documents))
    command = [os.environ["LAZULI"], "import", "azurite", copy, "--into", tmp_path / "data"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "LEFT OUT: 3\n" in done.stdout, done
    assert done.stdout.count("its blob was not imported") == 2 and "  snapshots" not in done.stdout.replace("0  snapshots", ""), done
    server = start(tmp_path / "data")
    photos = BlobServiceClient.from_connection_string(server.connection_string).get_container_client("photos")
    names = {blob.name for blob in photos.list_blobs(include=["snapshots"])}
    server.stop()
    assert cat["name"] not in names and "large" in names


def test_a_folder_without_databases_is_refused(tmp_path):
    command = [os.environ["LAZULI"], "import", "azurite", tmp_path, "--into", tmp_path / "data"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "__azurite_db_blob__.json" in done.stderr
    assert not (tmp_path / "data").exists()
