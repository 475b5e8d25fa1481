"""The file service through the unmodified Python library."""

import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from io import BytesIO

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobServiceClient, generate_blob_sas
from azure.storage.fileshare import (
    AccessPolicy,
    AccountSasPermissions,
    ContentSettings,
    CorsRule,
    FileSasPermissions,
    NTFSAttributes,
    ResourceTypes,
    ShareClient,
    ShareFileClient,
    ShareSasPermissions,
    ShareServiceClient,
    generate_account_sas,
    generate_file_sas,
    generate_share_sas,
)

from conftest import ACCOUNT, KEY, keep_deleted_shares, start

SDDL = "O:S-1-5-21-2127521184-1604012920-1887927527-21560751G:S-1-5-21-2127521184-1604012920-1887927527-513D:AI(A;;FA;;;SY)(A;;FA;;;BA)"


def soon():
    return datetime.now(timezone.utc) + timedelta(hours=1)


def fresh():
    return f"test-{uuid.uuid4().hex[:20]}"


@pytest.fixture(scope="module")
def service(server):
    return ShareServiceClient.from_connection_string(server.connection_string, retry_total=0)


@pytest.fixture
def share(service):
    client = service.create_share(fresh())
    yield client
    try:
        client.delete_share(delete_snapshots="include")
    except HttpResponseError:
        pass


def refused(status, code, call):
    with pytest.raises(HttpResponseError) as refusal:
        call()
    assert (refusal.value.status_code, refusal.value.error_code) == (status, code)
    return refusal.value


def upload(share, path, data=b""):
    client = share.get_file_client(path)
    client.upload_file(data)
    return client


def read(client, **options):
    return client.download_file(**options).readall()


def names(listed):
    return [entry.name for entry in listed]


def test_shares_are_created_listed_and_deleted(service):
    prefix = fresh()
    all_names = [f"{prefix}-{n}" for n in range(3)]
    for name in all_names:
        service.create_share(name, metadata={"is": name}, quota=7)
    listed = list(service.list_shares(name_starts_with=prefix, include_metadata=True, results_per_page=2))
    assert [(s.name, s.metadata, s.quota) for s in listed] == [(name, {"is": name}, 7) for name in all_names]
    refused(409, "ShareAlreadyExists", lambda: service.create_share(all_names[0]))
    for name in all_names:
        service.delete_share(name)
    assert list(service.list_shares(name_starts_with=prefix)) == []
    refused(404, "ShareNotFound", lambda: service.delete_share(all_names[0]))


def test_properties_and_policies_of_a_share_are_returned_as_set(share):
    share.set_share_metadata({"color": "blue"})
    share.set_share_quota(3)
    share.set_share_properties(access_tier="Hot")
    properties = share.get_share_properties()
    assert (properties.metadata, properties.quota, properties.access_tier) == ({"color": "blue"}, 3, "Hot")
    assert properties.etag and properties.last_modified
    policy = AccessPolicy(permission=ShareSasPermissions(read=True, list=True), expiry=soon(), start=soon())
    share.set_share_access_policy({"readers": policy})
    kept = share.get_share_access_policy()["signed_identifiers"]
    assert [(one.id, one.access_policy.permission) for one in kept] == [("readers", "rl")]


def test_permissions_are_stored_once_and_have_a_key(share):
    key = share.create_permission_for_share(SDDL)
    assert share.get_permission_for_share(key) == SDDL and share.create_permission_for_share(SDDL) == key
    refused(400, "FileInvalidPermissionKey", lambda: share.get_permission_for_share("1*1"))
    refused(400, "FileInvalidPermission", lambda: share.create_permission_for_share("nonsense"))
    file = share.get_file_client("f")
    file.create_file(1, file_permission=SDDL)
    assert file.get_file_properties().permission_key == key
    other = share.get_file_client("g")
    other.create_file(1, permission_key=key)
    assert other.get_file_properties().permission_key == key


def test_directories_are_created_changed_and_found(share):
    directory = share.create_directory("Dir", metadata={"a": "1"})
    refused(409, "ResourceAlreadyExists", lambda: share.create_directory("dIR"))
    refused(404, "ParentNotFound", lambda: share.create_directory("none/sub"))
    sub = directory.create_subdirectory("sub")
    assert directory.exists() and sub.exists() and not share.get_directory_client("Dir/none").exists()
    properties = directory.get_directory_properties()
    assert properties.metadata == {"a": "1"}
    assert properties.file_id and properties.parent_id and properties.server_encrypted
    assert sub.get_directory_properties().parent_id == properties.file_id
    directory.set_directory_metadata({"b": "2"})
    created = datetime(2020, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    directory.set_http_headers(file_attributes="ReadOnly|Directory", file_creation_time=created)
    properties = directory.get_directory_properties()
    assert properties.metadata == {"b": "2"} and "ReadOnly" in properties.file_attributes
    assert properties.creation_time == created
    directory.set_http_headers(file_attributes=NTFSAttributes(directory=True))


def test_only_empty_directories_are_deleted(share):
    directory = share.create_directory("dir")
    directory.upload_file("f", b"x")
    refused(409, "DirectoryNotEmpty", directory.delete_directory)
    directory.delete_file("f")
    directory.delete_directory()
    refused(404, "ResourceNotFound", directory.delete_directory)


def test_a_path_is_either_a_file_or_a_directory(share):
    """The Azure CLI sends this request before it shows the address of a file, and for each file that it has uploaded."""
    share.create_directory("d")
    upload(share, "f")
    exists = lambda path: (share.get_directory_client(path).exists(), share.get_file_client(path).exists())
    assert [exists(path) for path in ("d", "f", "none")] == [(True, False), (False, True), (False, False)]
    refused(409, "ResourceTypeMismatch", lambda: share.create_directory("f"))
    refused(409, "ResourceTypeMismatch", lambda: upload(share, "d"))


def test_listings_are_sorted_and_paged(share):
    share.create_directory("c")
    for name in ["b", "A", "ä ö &"]:
        upload(share, name, b"12345")
    include = ["timestamps", "etag", "attributes", "permissionkey"]
    listed = list(share.list_directories_and_files(include=include, include_extended_info=True))
    # The library returns the directories of a page first.
    assert names(listed) == ["c", "A", "b", "ä ö &"] and [entry.size for entry in listed[1:]] == [5, 5, 5]
    assert [entry.is_directory for entry in listed] == [True, False, False, False]
    a, found = share.get_file_client("a").get_file_properties(), listed[1]
    assert (found.etag, found.file_id, found.permission_key) == (a.etag, a.file_id, a.permission_key)
    assert found.file_attributes == a.file_attributes and found.last_write_time and found.creation_time
    assert names(share.list_directories_and_files(name_starts_with="B")) == ["b"]
    assert names(share.list_directories_and_files(results_per_page=1)) == ["A", "b", "c", "ä ö &"]
    refused(404, "ResourceNotFound", lambda: list(share.list_directories_and_files("none")))


@pytest.mark.parametrize("name", ["with space", "日本語", "a%20b", "semi;colon=&+", "[x]{y}!@#$^()~`'", ".hidden", "a..b"])
def test_names_are_listed_as_sent(share, name):
    client = upload(share, f"Dir-{name}" if name == ".hidden" else name, name.encode())
    assert read(client) == name.encode()
    expected = client.file_name
    assert names(share.list_directories_and_files()) == [expected]


@pytest.mark.parametrize("name", ["a:b", "a*b", "a|b", "CON", "lpt1", "x" * 256])
def test_invalid_names_are_refused(share, name):
    client = share.get_file_client(name)
    refused(400, "InvalidFileOrDirectoryPathName", lambda: client.create_file(1))


def test_properties_of_a_file_are_returned_as_set(share):
    file = share.get_file_client("F.txt")
    refused(404, "ResourceNotFound", file.get_file_properties)
    assert not file.exists()
    written = datetime(2021, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
    md5 = bytearray(range(16))
    settings = ContentSettings("text/x", "enc", "de", "attachment", "no-cache", md5)
    file.create_file(
        1000,
        content_settings=settings,
        metadata={"a": "1"},
        file_attributes="Hidden|Archive",
        file_creation_time=written,
        file_last_write_time=written,
        file_change_time=written,
    )
    properties = file.get_file_properties()
    kept = properties.content_settings
    assert (kept.content_type, kept.content_encoding, kept.content_language) == ("text/x", "enc", "de")
    assert (kept.content_disposition, kept.cache_control, kept.content_md5) == ("attachment", "no-cache", md5)
    assert (properties.size, properties.metadata, properties.file_type) == (1000, {"a": "1"}, "File")
    assert properties.file_attributes == "Hidden|Archive" or properties.file_attributes == "Hidden | Archive"
    assert properties.creation_time == properties.last_write_time == properties.change_time == written
    assert properties.lease.status == "unlocked" and properties.server_encrypted
    file.set_file_metadata({"b": "2"})
    file.set_http_headers(ContentSettings("text/y"))
    properties = file.get_file_properties()
    assert (properties.metadata, properties.content_settings.content_type) == ({"b": "2"}, "text/y")
    assert properties.content_settings.cache_control is None and properties.last_write_time == written
    file.resize_file(10)
    properties = file.get_file_properties()
    assert properties.size == 10 and properties.last_write_time > written
    assert properties.content_settings.content_type == "text/y"
    file.delete_file()
    refused(404, "ResourceNotFound", file.delete_file)


def test_a_read_only_file_is_neither_written_nor_deleted(share):
    file = share.get_file_client("f")
    file.create_file(10, file_attributes="ReadOnly")
    refused(409, "ReadOnlyAttribute", lambda: file.upload_range(b"x", 0, 1))
    refused(409, "ReadOnlyAttribute", file.delete_file)
    file.set_http_headers(ContentSettings(), file_attributes="None")
    file.upload_range(b"x", 0, 1)
    file.delete_file()


def test_contents_of_all_sizes_are_read_as_written(share):
    for size in [0, 1, 511, 512, 4096, 4 << 20, (9 << 20) + 17]:
        data = os.urandom(size)
        file = share.get_file_client(f"f{size}")
        file.upload_file(data, max_concurrency=4, validate_content=size == 4096)
        assert read(file, max_concurrency=4) == data
        if size > 100:
            assert read(file, offset=10, length=50) == data[10:60]
            assert read(file, offset=10, length=50, validate_content=True) == data[10:60]
            assert read(file, offset=size - 5) == data[-5:]
    stream = BytesIO(b"from a stream" * 1000)
    file = share.get_file_client("stream")
    file.upload_file(stream, length=13_000)
    into = BytesIO()
    assert file.download_file().readinto(into) == 13_000 and into.getvalue() == b"from a stream" * 1000
    assert b"".join(file.download_file().chunks()) == into.getvalue()


def test_ranges_are_written_cleared_and_listed(share):
    file = share.get_file_client("f")
    file.create_file(1 << 20)
    assert file.get_ranges() == []
    file.upload_range(b"a" * 1024, 0, 1024, validate_content=True)
    file.upload_range(b"b" * 1024, 8192, 1024)
    assert [(r["start"], r["end"]) for r in file.get_ranges()] == [(0, 1023), (8192, 9215)]
    assert [(r["start"], r["end"]) for r in file.get_ranges(8000, 1000)] == [(8192, 8999)]
    assert [(r.start, r.end, r.cleared) for r in file.list_ranges()] == [(0, 1023, False), (8192, 9215, False)]
    file.clear_range(0, 512)
    assert [(r["start"], r["end"]) for r in file.get_ranges()] == [(512, 1023), (8192, 9215)]
    assert read(file, offset=500, length=20) == bytes(12) + b"a" * 8
    kept = datetime(2021, 5, 6, 7, 8, 9, tzinfo=timezone.utc)
    file.set_http_headers(ContentSettings(), file_last_write_time=kept)
    file.upload_range(b"c", 0, 1, file_last_write_mode="preserve")
    assert file.get_file_properties().last_write_time == kept
    file.upload_range(b"c", 0, 1, file_last_write_mode="now")
    assert file.get_file_properties().last_write_time > kept
    refused(416, "InvalidRange", lambda: file.upload_range(b"x" * 10, (1 << 20) - 5, 10))
    refused(416, "InvalidRange", lambda: read(file, offset=1 << 20, length=10))
    empty = upload(share, "empty")
    assert read(empty) == b""


def test_a_file_lease_guards_writes_and_deletion(share):
    file = upload(share, "f", b"x")
    lease = file.acquire_lease()
    properties = file.get_file_properties()
    assert (properties.lease.state, properties.lease.status, properties.lease.duration) == ("leased", "locked", "infinite")
    refused(412, "LeaseIdMissing", lambda: file.upload_range(b"y", 0, 1))
    refused(412, "LeaseIdMissing", file.delete_file)
    file.upload_range(b"y", 0, 1, lease=lease)
    file.set_file_metadata({"a": "1"}, lease=lease)
    assert read(file, lease=lease) == b"y" == read(file)
    refused(412, "LeaseIdMismatchWithFileOperation", lambda: file.delete_file(lease=str(uuid.uuid4())))
    refused(409, "LeaseAlreadyPresent", lambda: file.acquire_lease(str(uuid.uuid4())))
    lease.change(str(uuid.uuid4()))
    changed = lease.id
    lease.release()
    refused(412, "LeaseNotPresentWithFileOperation", lambda: file.delete_file(lease=changed))
    lease = file.acquire_lease()
    assert lease.break_lease() == 0
    file.delete_file()


def test_a_share_lease_guards_deletion(service, share):
    lease = share.acquire_lease(lease_duration=15)
    properties = share.get_share_properties(lease=lease)
    assert (properties.lease.state, properties.lease.duration) == ("leased", "fixed")
    refused(412, "LeaseIdMissing", share.delete_share)
    lease.renew()
    share.set_share_metadata({"a": "1"}, lease=lease)
    lease.change(str(uuid.uuid4()))
    assert lease.break_lease(lease_break_period=0) == 0
    lease.release()
    lease = share.acquire_lease()
    share.delete_share(lease=lease)


def test_usage_counts_the_bytes_of_files(share):
    upload(share, "f", bytes(1000))
    assert share.get_share_stats() == 1000


def test_share_snapshots_keep_their_state(service, share):
    file = upload(share, "dir-less", b"before")
    share.create_directory("d").upload_file("in", b"inside")
    snapshot = share.create_snapshot(metadata={"s": "1"})["snapshot"]
    file.upload_range(b"after!", 0, 6)
    upload(share, "new", b"new")
    share.get_file_client("d/in").delete_file()
    then = service.get_share_client(share.share_name, snapshot=snapshot)
    assert then.get_share_properties().metadata == {"s": "1"}
    assert names(then.list_directories_and_files()) == ["d", "dir-less"]
    assert read(then.get_file_client("dir-less")) == b"before" and read(file) == b"after!"
    assert read(then.get_file_client("d/in")) == b"inside"
    listed = list(service.list_shares(name_starts_with=share.share_name, include_snapshots=True))
    assert [s.snapshot for s in listed] == [snapshot, None] or [s.snapshot for s in listed] == [None, snapshot]
    refused(409, "ShareHasSnapshots", lambda: share.delete_share())
    then.delete_share()
    refused(404, "ShareNotFound", then.get_share_properties)


def test_ranges_changed_since_a_snapshot_are_listed(share):
    file = share.get_file_client("f")
    file.create_file(64 << 10)
    file.upload_range(b"a" * 4096, 0, 4096)
    file.upload_range(b"b" * 4096, 16384, 4096)
    snapshot = share.create_snapshot()["snapshot"]
    file.upload_range(b"c" * 512, 4096, 512)
    file.clear_range(16384, 4096)
    ranges, cleared = file.get_ranges_diff(snapshot)
    assert [(r["start"], r["end"]) for r in ranges] == [(4096, 4607)]
    assert [(r["start"], r["end"]) for r in cleared] == [(16384, 20479)]
    listed = [(r.start, r.end, r.cleared) for r in file.list_ranges_diff(snapshot)]
    assert sorted(listed) == [(4096, 4607, False), (16384, 20479, True)]
    file.delete_file()
    file.create_file(64 << 10)
    with pytest.raises(HttpResponseError) as refusal:
        file.get_ranges_diff(snapshot)
    assert refusal.value.status_code == 409


def test_deleted_shares_are_restored(tmp_path):
    running = start(tmp_path / "data")
    service = ShareServiceClient.from_connection_string(running.connection_string, retry_total=0)
    keep_deleted_shares(running)
    share = service.create_share(fresh())
    upload(share, "f", b"kept")
    share.delete_share()
    refused(404, "ShareNotFound", share.get_share_properties)
    (deleted,) = [s for s in service.list_shares(include_deleted=True) if s.deleted]
    assert deleted.name == share.share_name and deleted.remaining_retention_days in (6, 7)
    service.undelete_share(share.share_name, deleted.version)
    assert read(share.get_file_client("f")) == b"kept"
    running.stop()


def test_renames_keep_content_and_replace_only_on_request(share):
    share.create_directory("a")
    share.create_directory("b")
    file = upload(share, "a/f", b"content")
    file_id = file.get_file_properties().file_id
    moved = file.rename_file("b/G")
    assert read(moved) == b"content" and moved.get_file_properties().file_id == file_id
    assert not file.exists() and names(share.list_directories_and_files("b")) == ["G"]
    upload(share, "b/h", b"other")
    refused(409, "ResourceAlreadyExists", lambda: share.get_file_client("b/h").rename_file("b/g"))
    share.get_file_client("b/h").rename_file("b/g", overwrite=True)
    assert read(share.get_file_client("b/g")) == b"other"
    directory = share.get_directory_client("b").rename_directory("a/c")
    assert names(directory.list_directories_and_files()) == names(share.list_directories_and_files("a/c"))
    assert read(share.get_file_client("a/c/g")) == b"other"
    refused(404, "ParentNotFound", lambda: share.get_file_client("a/c/g").rename_file("none/x"))


def test_a_share_without_smb_clients_has_no_handles(share):
    directory = share.create_directory("d")
    file = directory.upload_file("f", b"x")
    assert list(directory.list_handles(recursive=True)) == [] == list(file.list_handles())
    assert directory.close_all_handles(recursive=True) == {"closed_handles_count": 0, "failed_handles_count": 0}
    assert file.close_all_handles() == {"closed_handles_count": 0, "failed_handles_count": 0}


def test_copies_have_the_content_and_properties_of_their_source(service, share):
    data = os.urandom(100_000)
    source = upload(share, "source", data)
    source.set_http_headers(ContentSettings("text/z", cache_control="no-store"))
    source.set_file_metadata({"of": "source"})
    target = share.get_file_client("target")
    started = target.start_copy_from_url(source.url)
    assert started["copy_status"] in ("success", "pending")
    properties = target.get_file_properties()
    assert (properties.copy.status, properties.copy.id) == ("success", started["copy_id"])
    assert (properties.copy.source, properties.copy.progress) == (source.url, "100000/100000")
    assert (properties.metadata, properties.content_settings.content_type) == ({"of": "source"}, "text/z")
    assert read(target) == data
    refused(409, "NoPendingCopyOperation", lambda: target.abort_copy(started["copy_id"]))
    target.start_copy_from_url(source.url, metadata={"own": "1"}, file_attributes="Hidden", file_permission=SDDL)
    properties = target.get_file_properties()
    assert (properties.metadata, properties.file_attributes) == ({"own": "1"}, "Hidden")
    assert share.get_permission_for_share(properties.permission_key) == SDDL
    refused(404, "ResourceNotFound", lambda: target.start_copy_from_url(source.url + "x"))
    other = service.create_share(fresh())
    other.get_file_client("f").start_copy_from_url(source.url, file_last_write_time="source", ignore_read_only=True)
    assert read(other.get_file_client("f")) == data
    assert other.get_file_client("f").get_file_properties().last_write_time == source.get_file_properties().last_write_time
    other.delete_share()


def test_ranges_are_copied_from_urls(server, service, share):
    data = os.urandom(8192)
    source = upload(share, "source", data)
    sas = generate_file_sas(ACCOUNT, share.share_name, ["source"], KEY, permission=FileSasPermissions(read=True), expiry=soon())
    target = share.get_file_client("target")
    target.create_file(16384)
    target.upload_range_from_url(f"{source.url}?{sas}", offset=4096, length=4096, source_offset=1024)
    assert read(target, offset=4096, length=4096) == data[1024:5120]
    assert [(r["start"], r["end"]) for r in target.get_ranges()] == [(4096, 8191)]


def copied(client):
    """Waits until the copy has ended."""
    for _ in range(600):
        properties = client.get_file_properties() if isinstance(client, ShareFileClient) else client.get_blob_properties()
        if properties.copy.status != "pending":
            return properties
        time.sleep(0.05)
    raise AssertionError("the copy does not end")


def test_blobs_and_files_are_copied_to_each_other(server, share):
    """The server reads the source itself, so no copy source needs to be allowed. The other service needs a signature."""
    container = BlobServiceClient.from_connection_string(server.connection_string).create_container(fresh())
    data = os.urandom(300_000)
    blob = container.upload_blob("b", data, metadata={"of": "blob"})
    sas = generate_blob_sas(ACCOUNT, container.container_name, "b", account_key=KEY, permission="r", expiry=soon())
    target = share.get_file_client("from-blob")
    assert target.start_copy_from_url(f"{blob.url}?{sas}")["copy_status"] == "pending"
    properties = copied(target)
    assert read(target) == data and properties.metadata == {"of": "blob"}
    assert (properties.copy.status, properties.copy.source) == ("success", blob.url)
    target.upload_range_from_url(f"{blob.url}?{sas}", offset=0, length=100, source_offset=100)
    assert read(target, offset=0, length=100) == data[100:200]
    refused(401, "CannotVerifyCopySource", lambda: target.start_copy_from_url(blob.url))
    file_sas = generate_file_sas(ACCOUNT, share.share_name, ["from-blob"], KEY, permission="r", expiry=soon())
    back = container.get_blob_client("back")
    back.start_copy_from_url(f"{target.url}?{file_sas}")
    assert copied(back).copy.status == "success"
    assert back.download_blob().readall() == data[100:200] + data[100:]
    container.delete_container()


def test_signatures_allow_what_they_grant(server, service, share):
    upload(share, "f", b"secret")
    endpoint = server.endpoints["file"]

    def client(sas, path="f"):
        return ShareFileClient(endpoint, share.share_name, path, credential=sas, retry_total=0)

    file_sas = generate_file_sas(
        ACCOUNT,
        share.share_name,
        ["f"],
        KEY,
        permission=FileSasPermissions(read=True),
        expiry=soon(),
        cache_control="no-store",
        content_disposition="inline",
        content_encoding="gzip-not",
        content_language="fr",
        content_type="text/overridden",
    )
    download = client(file_sas).download_file()
    settings = download.properties.content_settings
    assert download.readall() == b"secret"
    assert (settings.content_type, settings.cache_control, settings.content_language) == ("text/overridden", "no-store", "fr")
    refused(403, "AuthorizationPermissionMismatch", lambda: client(file_sas).upload_range(b"x", 0, 1))
    share_sas = generate_share_sas(
        ACCOUNT, share.share_name, KEY, permission=ShareSasPermissions(read=True, write=True, delete=True, list=True), expiry=soon()
    )
    client(share_sas).upload_range(b"S", 0, 1)
    shared = ShareClient(endpoint, share.share_name, credential=share_sas)
    assert names(shared.list_directories_and_files()) == ["f"]
    account_sas = generate_account_sas(
        ACCOUNT,
        KEY,
        ResourceTypes(service=True, container=True, object=True),
        AccountSasPermissions(read=True, write=True, delete=True, list=True, create=True),
        soon(),
    )
    account = ShareServiceClient(endpoint, credential=account_sas)
    assert share.share_name in names(account.list_shares())
    assert read(account.get_share_client(share.share_name).get_file_client("f")) == b"Secret"
    share.set_share_access_policy({"p": AccessPolicy(permission="r", expiry=soon())})
    by_policy = generate_share_sas(ACCOUNT, share.share_name, KEY, policy_id="p")
    assert read(client(by_policy)) == b"Secret"
    share.set_share_access_policy({})
    with pytest.raises(HttpResponseError) as refusal:
        read(client(by_policy))
    assert refusal.value.status_code == 403


def test_service_properties_are_stored(service):
    rule = CorsRule(["https://a.example"], ["GET", "PUT"], max_age_in_seconds=5)
    service.set_service_properties(cors=[rule])
    kept = service.get_service_properties()["cors"]
    assert [(one.allowed_origins, one.max_age_in_seconds) for one in kept] == [("https://a.example", 5)]
    service.set_service_properties(cors=[])


def test_a_stale_etag_is_refused(share):
    file = upload(share, "f", b"x")
    etag = file.get_file_properties().etag
    file.set_file_metadata({"a": "1"}, headers={"If-Match": etag})
    refused(412, "ConditionNotMet", lambda: file.set_file_metadata({"a": "2"}, headers={"If-Match": etag}))
    assert file.get_file_properties().metadata == {"a": "1"}


def test_ten_thousand_files_are_created_and_listed_concurrently(share):
    """Eight clients create 100 directories of 100 files each, list them, and delete them."""
    directories = [f"d{n:02}" for n in range(100)]

    def fill(directory):
        client = share.create_directory(directory)
        for n in range(100):
            client.get_file_client(f"f{n:02}").create_file(n)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fill, directories))
    assert names(share.list_directories_and_files()) == directories

    def walk(directory):
        return [(entry.name, entry.size) for entry in share.list_directories_and_files(directory)]

    with ThreadPoolExecutor(8) as pool:
        assert all(found == [(f"f{n:02}", n) for n in range(100)] for found in pool.map(walk, directories))


def test_no_range_of_many_writers_is_lost(share):
    """No range that one of many clients writes is lost."""
    file = share.get_file_client("f")
    file.create_file(64 * 1024)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: file.upload_range(bytes([n]) * 1024, n * 1024, 1024), range(64)))
    assert read(file) == b"".join(bytes([n]) * 1024 for n in range(64))


def test_everything_survives_a_restart(tmp_path):
    running = start(tmp_path / "data")
    share = ShareClient.from_connection_string(running.connection_string, fresh())
    share.create_share(quota=9)
    share.create_directory("d")
    data = os.urandom(300_000)
    file = upload(share, "d/f", data)
    before = file.get_file_properties()
    running.stop()
    running = start(tmp_path / "data")
    share = ShareClient.from_connection_string(running.connection_string, share.share_name)
    file = share.get_file_client("d/f")
    after = file.get_file_properties()
    assert read(file) == data and share.get_share_properties().quota == 9
    assert (after.etag, after.file_id, after.last_write_time) == (before.etag, before.file_id, before.last_write_time)
    running.stop()
