"""The binary under the name `azurite`, with the options and variables of five public projects, and real clients against it.

docs/azurite.md names the projects. Their options are unchanged, apart from ports: where a project uses the default ports, which may be
taken on this machine, the options for free ports are added, and folders are in a temporary folder.
"""

import os
import subprocess
from pathlib import Path

import pytest
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient
from azure.storage.queue import QueueServiceClient

from conftest import ACCOUNT, KEY
from test_azurite_import import SERVICES, free_ports

OTHER_KEY = "c2VjcmV0LWtleS1vZi1hLXRlc3Q="
ANY = "0.0.0.0"
SETUPS = {
    # apache/opendal: fixtures/azblob/docker-compose-azurite.yml
    "opendal": ("azurite", ["--blobHost", ANY, "--skipApiVersionCheck"], {}),
    # delta-io/delta-rs: docker-compose.azure.yml
    "delta-rs": ("azurite", ["--blobHost", ANY, "--loose"], {}),
    # tensorflow/io: tests/test_azure/start_azure.sh
    "tensorflow-io": ("azurite-blob", ["--loose"], {}),
    # Azure/durabletask: eng/templates/test.yml
    "durabletask": ("azurite", ["--silent", "--location", "azurite1", "--debug", "azurite1\\debug.txt", "--queuePort"], {}),
    # testcontainers/testcontainers-node: packages/modules/azurite/src/azurite-container.ts, all choices
    "testcontainers-node": (
        "azurite",
        ["--blobHost", ANY, "--queueHost", ANY, "--tableHost", ANY, "--inMemoryPersistence", "--extentMemoryLimit", "64",
         "--skipApiVersionCheck"],
        {"AZURITE_ACCOUNTS": f"testaccount:{OTHER_KEY}"},
    ),
}

JAVASCRIPT = """
import { BlobServiceClient } from "@azure/storage-blob";
const container = BlobServiceClient.fromConnectionString(process.env.CONNECTION).getContainerClient("photos");
const blob = container.getBlockBlobClient("kitten");
await blob.upload("meow", 4);
console.log((await blob.downloadToBuffer()).toString());
"""


class Setup:
    """The program of a setup, started on free ports."""

    def __init__(self, folder: Path, name, options, variables):
        self.ports = dict(zip(SERVICES, free_ports(3)))
        program = folder / name
        program.symlink_to(os.environ["LAZULI"])
        options = list(options)
        if options[-1] == "--queuePort":
            options.append(str(self.ports["queue"]))
        for service, port in self.ports.items():
            if f"--{service}Port" not in options:
                options += [f"--{service}Port", str(port)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAZULI_", "AZURITE_"))}
        self.services = SERVICES if name == "azurite" else (name.removeprefix("azurite-"),)
        self.process = subprocess.Popen(
            [program, *options], cwd=folder, env={**clean, **variables}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        waiting = set(self.services)
        for line in self.process.stdout:
            for service in list(waiting):
                if f"Azurite {service.capitalize()} service is successfully listening at http://" in line:
                    waiting.remove(service)
            if not waiting:
                break
        assert not waiting, f"no line of {waiting}"
        account, _, key = variables.get("AZURITE_ACCOUNTS", f"{ACCOUNT}:{KEY}").partition(":")
        endpoints = "".join(
            f"{service.capitalize()}Endpoint=http://127.0.0.1:{port}/{account};" for service, port in self.ports.items()
        )
        self.connection_string = f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};{endpoints}"


@pytest.mark.parametrize("name", SETUPS)
def test_clients_work_with_the_options_of_public_projects(name, tmp_path):
    setup = Setup(tmp_path, *SETUPS[name])
    try:
        blobs = BlobServiceClient.from_connection_string(setup.connection_string)
        container = blobs.create_container("photos")
        container.upload_blob("cat", b"meow" * 1000, metadata={"k": "v"})
        assert container.download_blob("cat").readall() == b"meow" * 1000
        assert [blob.name for blob in container.list_blobs()] == ["cat"]
        if "queue" in setup.services:
            queue = QueueServiceClient.from_connection_string(setup.connection_string).create_queue("work")
            queue.send_message("hello")
            message = queue.receive_message()
            assert message.content == "hello"
            queue.delete_message(message)
        if "table" in setup.services:
            table = TableServiceClient.from_connection_string(setup.connection_string).create_table("People")
            table.create_entity({"PartitionKey": "p", "RowKey": "r", "age": 7})
            assert [entity["age"] for entity in table.query_entities("age gt 5")] == [7]
        done = subprocess.run(
            ["node", "--input-type=module", "--eval", JAVASCRIPT],
            cwd=Path(os.environ["NODE_MODULES"]).parent, env={**os.environ, "CONNECTION": setup.connection_string},
            capture_output=True, text=True, timeout=120,
        )
        assert done.stdout == "meow\n", done
        assert setup.process.poll() is None
    finally:
        setup.process.terminate()
        setup.process.wait(timeout=60)
    assert (tmp_path / "lazuli-data").exists() == (name in ("opendal", "delta-rs", "tensorflow-io"))
