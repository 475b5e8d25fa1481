"""`lazuli import azure`: running stores are imported and read back through the clients from both servers."""

import os
import re
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from azure.storage.blob import BlobServiceClient
from azure.storage.fileshare import ContentSettings, NTFSAttributes, ShareServiceClient

from conftest import ACCOUNT, KEY, start
import test_azurite_import
from test_azurite_import import Azurite, contents, fill

SDDL = "O:S-1-5-21-1-2-3-500G:S-1-5-21-1-2-3-513D:P(A;;FA;;;SY)(A;;0x1200a9;;;S-1-5-21-1-2-3-500)"
MANY = 400
OTHER_KEY = "c2VjcmV0LWtleS1vZi1hLXRlc3Q="


@pytest.fixture(autouse=True)
def fewer_objects(monkeypatch):
    monkeypatch.setattr(test_azurite_import, "BLOBS", 400)
    monkeypatch.setattr(test_azurite_import, "ENTITIES", 200)


def run_import(source, into, *options):
    command = [os.environ["LAZULI"], "import", "azure", "--from", "-", "--into", into, *options]
    return subprocess.run(command, input=source, capture_output=True, text=True)


def left_out(done):
    """The objects that the report lists as left out, without the reasons."""
    listed = done.stdout.partition("LEFT OUT")[2].splitlines()[1:]
    return sorted(line.strip().partition(": ")[0] for line in listed if line.startswith("  "))


def equal_already(done):
    """The number of blobs that were not copied again."""
    found = re.search(r"Equal already:(.*?)(Note|Not imported|Nothing|LEFT OUT)", done.stdout, re.DOTALL)
    blobs = re.search(r"(\d+)  blobs", found[1] if found else "")
    return int(blobs[1]) if blobs else 0


def comparable(seen):
    """Drops what the protocol does not reveal: leases, invisible messages, and uncommitted blocks."""
    result = {}
    for key, value in seen.items():
        if isinstance(key, tuple) and isinstance(value, tuple) and isinstance(value[0], bytes):
            value = value[:5] + value[7:]
            if key[1] == "blocks":
                value = value[:-1]
        elif isinstance(value, tuple) and len(value) == 4:
            value = value[:2] + value[3:]
        elif isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], list):
            value = (value[0], sorted(value[2]))
        if not (isinstance(key, tuple) and key[1] == "uncommitted"):
            result[key] = value
    return result


def assert_equal(found, expected):
    assert sorted(map(str, found.keys() ^ expected.keys())) == []
    assert [(key, found[key], value) for key, value in expected.items() if found[key] != value] == []


def fill_shares(connection_string):
    shares = ShareServiceClient.from_connection_string(connection_string)
    share = shares.create_share("office", metadata={"floor": "3"}, quota=7)
    key = share.create_permission_for_share(SDDL)
    reports = share.create_directory("reports ü", metadata={"year": "2026"})
    reports.set_http_headers(file_attributes=NTFSAttributes(directory=True, hidden=True), permission_key=key)
    old = reports.create_subdirectory("old %2F")
    sheet = old.upload_file("sheet & chart.txt", b"x" * 1000, metadata={"k": "v"})
    sheet.set_http_headers(ContentSettings(content_language="de"), file_attributes=NTFSAttributes(read_only=True, archive=True), permission_key=key)
    sparse = share.get_directory_client("").get_file_client("sparse")
    sparse.create_file(10_000_001)
    sparse.upload_range(b"q" * 700, 5_000_000, 700)
    share.get_directory_client("").upload_file("large", os.urandom(5 << 20))
    shares.create_share("empty")


def files(connection_string):
    """Everything in the shares that the client sees, apart from ETags, identifiers and change times of the server."""
    seen = {}
    shares = ShareServiceClient.from_connection_string(connection_string)

    def properties(client, one):
        times = (one.creation_time, one.last_write_time, one.change_time)
        permission = client[0].get_permission_for_share(one.permission_key)
        return one.metadata, str(one.file_attributes), times, permission

    def walk(share, path):
        directory = share.get_directory_client(path)
        seen[share.share_name, path] = properties((share,), directory.get_directory_properties())
        for entry in directory.list_directories_and_files():
            child = f"{path}/{entry['name']}".strip("/")
            if entry["is_directory"]:
                walk(share, child)
                continue
            file = share.get_file_client(child)
            one = file.get_file_properties()
            settings = {name: value for name, value in vars(one.content_settings).items() if name != "content_md5"}
            seen[share.share_name, child] = (*properties((share,), one), settings, file.download_file().readall())

    for one in shares.list_shares(include_metadata=True):
        seen[one.name] = (one.metadata, one.quota)
        walk(shares.get_share_client(one.name), "")
    return seen


def test_import_of_a_running_azurite_has_the_contents_that_it_serves(tmp_path):
    azurite = Azurite(tmp_path / "folder")
    fill(azurite.connection_string)
    expected = comparable(contents(azurite.connection_string))
    time.sleep(1.5)  # The messages that were read are visible again.
    counted = run_import(azurite.connection_string, tmp_path / "data", "--dry-run")
    assert counted.returncode == 0 and "To import:" in counted.stdout and not (tmp_path / "data").exists(), counted
    assert re.search(r"4\d\d  blobs\n", counted.stdout) and re.search(r" 201  entities\n", counted.stdout), counted
    done = run_import(azurite.connection_string, tmp_path / "data", "--receive-messages")
    azurite.stop()
    assert done.returncode == 1, done
    assert left_out(done) == [
        "blob photos/uncommitted", "queue work", "uncommitted blocks of /photos/blocks",
    ], done.stdout
    assert "2 of 102 messages: they are invisible" in done.stdout, done.stdout
    server = start(tmp_path / "data")
    found = comparable(contents(server.connection_string))
    server.stop()
    assert_equal(found, expected)


def test_import_that_was_killed_is_resumed_and_a_repeated_one_copies_nothing(tmp_path):
    source, target = start(tmp_path / "source"), start(tmp_path / "target", "--tls-self-signed")
    fill(source.connection_string)
    fill_shares(source.connection_string)
    container = BlobServiceClient.from_connection_string(source.connection_string).create_container("resumed")
    for number in range(MANY):
        container.upload_blob(f"{number:05}", b"%d" % number)
    # The target has an equal object already, a different one, and one that the source does not have.
    os.environ["REQUESTS_CA_BUNDLE"] = str(target.data / "tls" / "self-signed.crt")
    try:
        there = BlobServiceClient.from_connection_string(target.connection_string).create_container("resumed")
        there.upload_blob("00000", b"0")
        there.upload_blob("00001", b"another")
        there.upload_blob("zzz", b"only here")
        journal = tmp_path / "journal"
        command = [os.environ["LAZULI"], "import", "azure", "--from", source.connection_string]
        options = ["--into", target.data, "--journal", journal]
        process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and (not journal.exists() or len(journal.read_bytes()) < 200 * 33):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the import ended before it could be killed"
        remembered = len(journal.read_bytes().splitlines()) - 1
        resumed = run_import(source.connection_string, target.data, "--journal", journal)
        assert resumed.returncode == 1, resumed
        assert equal_already(resumed) >= remembered - 16, (remembered, resumed.stdout)
        assert left_out(resumed) == [
            "blob photos/uncommitted", "queue work", "uncommitted blocks of /photos/blocks",
        ], resumed.stdout
        assert "Note: 1 blobs at the destination that this run did not verify" in resumed.stdout, resumed.stdout
        assert there.get_blob_client("zzz").download_blob().readall() == b"only here"
        there.delete_blob("zzz")
        expected = {key: value for key, value in comparable(contents(source.connection_string)).items() if key != "work"}
        found = {key: value for key, value in comparable(contents(target.connection_string)).items() if key != "work"}
        assert_equal(found, expected)
        assert_equal(files(target.connection_string), files(source.connection_string))
        again = run_import(source.connection_string, target.data, "--journal", journal)
        imported = again.stdout.partition("Equal already:")[0]
        assert "blobs" not in imported and "  files" not in imported and "entities" not in imported, again.stdout
        assert "0  bytes of content" in imported, again.stdout
    finally:
        del os.environ["REQUESTS_CA_BUNDLE"]
        source.stop()
        target.stop()


class Hostile(BaseHTTPRequestHandler):
    """A source that answers as its mode says."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    mode = ""
    names = ["a/../../b", "..", "c?d=e&f", "g%2Fh", "ü €", "i#j", "m//n"]
    redirected = []

    def log_message(self, *_):
        pass

    def answer(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        url, query = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
        path, mode = url.path.removeprefix(f"/{ACCOUNT}"), type(self).mode
        if path.startswith("/elsewhere"):
            self.redirected.append(self.path)
        if "properties" in query.get("comp", []):
            return self.answer(b"<a/>")
        if "acl" in query.get("comp", []):
            return self.answer(b"<SignedIdentifiers/>")
        if "blocklist" in query.get("comp", []):
            return self.answer(b"<BlockList><CommittedBlocks/></BlockList>")
        if path == "":
            names = ["..", "evil", "EVIL/x", "e?restype=container"]
            listed = "".join(f"<Container><Name>{name}</Name></Container>" for name in names)
            return self.answer(f"<R><Containers>{listed}</Containers><NextMarker/></R>".encode())
        if path == "/evil" and "comp" in query:
            return self.list_blobs(query)
        name = unquote(path.removeprefix("/evil/"))
        if mode == "redirect":
            return self.answer(b"", 302, Location=f"http://{self.headers['Host']}/elsewhere/{ACCOUNT}/evil/x")
        body = name.encode()
        headers = {"x_ms_blob_type": "BlockBlob", "ETag": '"1"', "Content_Type": "text/plain"}
        if mode == "short" and self.command == "GET":
            body = body[:-1]
        if mode == "long" and self.command == "GET":
            body += b"x" * (1 << 20)
        self.answer(body, **headers)

    def list_blobs(self, query):
        mode = type(self).mode
        blob = "<Blob><Name>{}</Name><Properties><Etag>1</Etag><Content-Length>9</Content-Length></Properties></Blob>"
        names = [name.replace("&", "&amp;") for name in self.names]
        listed = "".join(blob.format(name) for name in names)
        marker = query.get("marker", ["0"])[0]
        if mode == "bomb":
            return self.answer(b'<!DOCTYPE R [<!ENTITY a "aaaa">]><R><Blobs>&a;</Blobs></R>')
        if mode == "huge":
            return self.answer(b"<R>" + b"<a/>" * (17 << 20))
        if mode == "same marker":
            return self.answer(f"<R><Blobs>{listed}</Blobs><NextMarker>m</NextMarker></R>".encode())
        if mode == "empty pages":
            return self.answer(f"<R><Blobs/><NextMarker>{int(marker) + 1}</NextMarker></R>".encode())
        self.answer(f"<R><Blobs>{listed}</Blobs><NextMarker/></R>".encode())


@pytest.mark.parametrize("mode, reason", [
    ("", None),
    ("short", "the server sent"),
    ("long", "the server sent"),
    ("redirect", "302"),
    ("same marker", "repeats its continuation token"),
    ("empty pages", "too many empty pages"),
    ("bomb", "a document type declaration"),
    ("huge", "too long"),
])
def test_hostile_source_is_reported_and_writes_nothing_but_its_blobs(server, tmp_path, mode, reason):
    name = "hostile" + re.sub("[^a-z]", "", mode)
    account = [os.environ["LAZULI"], "account", "add", name, "--key", OTHER_KEY, "--data", server.data]
    subprocess.run(account, capture_output=True, check=True)
    hostile = ThreadingHTTPServer(("127.0.0.1", 0), type("Mode", (Hostile,), {"mode": mode, "redirected": []}))
    threading.Thread(target=hostile.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{hostile.server_port}/{ACCOUNT}"
    source = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint}"
    done = run_import(source, server.data, "--account", name, "--journal", tmp_path / "journal")
    hostile.shutdown()
    assert done.returncode == 1 and "container EVIL/x: the name is invalid" in done.stdout, done
    blobs = BlobServiceClient(server.endpoints["blob"].replace(ACCOUNT, name), credential=OTHER_KEY)
    assert [container.name for container in blobs.list_containers()] == ["evil"]
    found = {blob.name for blob in blobs.get_container_client("evil").list_blobs()}
    if reason:
        assert reason in done.stdout, done.stdout
        assert hostile.RequestHandlerClass.redirected == []
        assert found <= set(Hostile.names)
    else:
        assert found == set(Hostile.names)
        # The client library would resolve names with dots.
        for one in (one for one in Hostile.names if ".." not in one):
            assert blobs.get_blob_client("evil", one).download_blob().readall() == one.encode()


def test_source_whose_certificate_is_unknown_is_refused(server, tmp_path):
    other = start(tmp_path / "other", "--tls-self-signed")
    done = run_import(other.connection_string, server.data, "--services", "blob", "--journal", tmp_path / "journal")
    other.stop()
    assert done.returncode == 1 and "certificate" in done.stdout, done
