"""Files over SMB and REST at once: each protocol respects the locks of the other.

smbprotocol on one side, the Python library of the file service on the other. The tables are those of the
specification: share modes, file leases, pending deletes, attributes and locks, oplock breaks.
"""

import contextlib
import re
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
import requests
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.storage.fileshare import (
    ContentSettings,
    FileSasPermissions,
    NTFSAttributes,
    ShareServiceClient,
    generate_file_sas,
)
from smbprotocol.change_notify import CompletionFilter, FileSystemWatcher
from smbprotocol.file_info import FileAttributes, FileBasicInformation
from smbprotocol.open import CreateDisposition, CreateOptions

from conftest import ACCOUNT, KEY
from smb_support import HOST, Client, Status
from smb_support import refused as smb_refused

CONTENT = b"0123456789"
ACCESSES = ["", "r", "w", "d", "rw", "rd", "wd", "rwd"]


@pytest.fixture(scope="module")
def service(server):
    return ShareServiceClient.from_connection_string(server.connection_string, retry_total=0)


@pytest.fixture
def share(service):
    return service.create_share(f"both-{uuid.uuid4().hex[:20]}")


@pytest.fixture
def smb(server, share):
    with Client(server.smb, share.share_name) as client:
        yield client


@pytest.fixture
def file(share):
    """A file with content, created over REST."""
    client = share.get_file_client("file")
    client.upload_file(CONTENT)
    return client


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as threads:
        yield threads


def refused(code, call, status=409):
    with pytest.raises(HttpResponseError) as refusal:
        call()
    assert (refusal.value.status_code, refusal.value.error_code) == (status, code)


def read(file, **options):
    return file.download_file(**options).readall()


def get_metadata(file, timeout=30):
    """Calls Get File Metadata, which the library does not have."""
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    permission = FileSasPermissions(read=True)
    sas = generate_file_sas(ACCOUNT, file.share_name, file.file_path, KEY, permission=permission, expiry=soon)
    answer = requests.get(f"{file.url}?comp=metadata&timeout={timeout}&{sas}", timeout=60)
    if not answer.ok:
        error = HttpResponseError(answer.text)
        error.status_code, error.error_code = answer.status_code, answer.headers["x-ms-error-code"]
        raise error


OPERATIONS = {
    "Create": lambda file, **options: file.create_file(len(CONTENT), **options),
    "Get": read,
    "Get Properties": lambda file, **options: file.get_file_properties(**options),
    "Get Metadata": get_metadata,
    "Set Properties": lambda file, **options: file.set_http_headers(ContentSettings(content_type="a/b"), **options),
    "Set Metadata": lambda file, **options: file.set_file_metadata({"a": "b"}, **options),
    "Delete": lambda file, **options: file.delete_file(**options),
    "Put Range": lambda file, **options: file.upload_range(b"abc", 2, 3, **options),
    "List Ranges": lambda file, **options: list(file.list_ranges(**options)),
    "Lease": lambda file, **options: file.acquire_lease(**options),
    "Resize": lambda file, **options: file.resize_file(100, **options),
}


def names(share):
    return [entry.name for entry in share.list_directories_and_files()]


# Share modes of SMB opens, and the REST operations that they block.

REFUSED_BY_SHARE_MODE = {
    "": {"Create", "Get", "Set Properties", "Set Metadata", "Delete", "Put Range", "List Ranges", "Lease", "Resize"},
    "r": {"Create", "Set Properties", "Set Metadata", "Delete", "Put Range", "Lease", "Resize"},
    "w": {"Create", "Get", "Delete", "List Ranges", "Lease"},
    "d": {"Create", "Get", "Set Properties", "Set Metadata", "Put Range", "List Ranges", "Delete", "Lease", "Resize"},
    "rw": {"Create", "Delete", "Lease"},
    "rd": {"Create", "Set Properties", "Set Metadata", "Put Range", "Delete", "Lease", "Resize"},
    "wd": {"Get", "List Ranges", "Delete", "Lease"},
    "rwd": {"Delete"},
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shared", REFUSED_BY_SHARE_MODE)
def test_share_modes_of_smb_opens_block_rest_operations(smb, file, shared, operation):
    handle = smb.open("file", "r", shared)
    if operation in REFUSED_BY_SHARE_MODE[shared]:
        refused("SharingViolation", lambda: OPERATIONS[operation](file))
        handle.close()
    OPERATIONS[operation](file)


@pytest.mark.parametrize("shared", REFUSED_BY_SHARE_MODE)
def test_listing_never_meets_a_share_mode(smb, share, file, shared):
    smb.open("file", "rwd", shared)
    assert names(share) == ["file"]


def test_rest_does_not_stop_rest(share, file, pool):
    """Two concurrent writers over REST both succeed."""
    writes = [pool.submit(file.upload_range, b"x", n, 1) for n in range(len(CONTENT))]
    for write in writes:
        write.result(timeout=30)
    assert read(file) == b"x" * len(CONTENT)


# Leases over REST.


@pytest.mark.parametrize("access", ACCESSES)
def test_acquiring_a_file_lease_against_the_access_of_smb_opens(smb, file, access):
    handle = smb.open("file", access)
    if set(access) & set("wd"):
        refused("SharingViolation", file.acquire_lease)
        handle.close()
    file.acquire_lease()


@pytest.mark.parametrize("access", ACCESSES)
def test_smb_opens_against_a_file_lease(smb, file, access):
    lease = file.acquire_lease()
    if set(access) & set("wd"):
        smb_refused(Status.SHARING_VIOLATION, lambda: smb.open("file", access))
    else:
        smb.open("file", access).close()
    lease.break_lease()
    smb.open("file", access).close()
    file.acquire_lease().release()
    smb.open("file", access).close()


def test_a_file_lease_shares_reading_only(smb, file):
    lease = file.acquire_lease()
    handle = smb.open("file", "r", "rwd")
    assert handle.read() == CONTENT
    handle.close()
    file.upload_range(b"abc", 0, 3, lease=lease)
    assert smb.open("file", "r").read() == b"abc3456789"


# Pending deletes.


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_on_a_file_marked_for_deletion_are_refused(smb, share, file, operation):
    handle = smb.open("file", "rd")
    handle.delete_on_close()
    refused("SMBDeletePending", lambda: OPERATIONS[operation](file))
    assert names(share) == []
    handle.delete_on_close(False)
    assert names(share) == ["file"] and read(file) == CONTENT
    handle.close()
    OPERATIONS[operation](file)


def test_a_file_marked_for_deletion_goes_with_its_last_handle(server, smb, share, file):
    with Client(server.smb, share.share_name) as other:
        first, second = smb.open("file", "rd"), other.open("file", "r")
        first.delete_on_close()
        first.close()
        refused("SMBDeletePending", file.get_file_properties)
        second.close()
    with pytest.raises(ResourceNotFoundError) as gone:
        file.get_file_properties()
    assert gone.value.error_code == "ResourceNotFound"
    file.upload_file(b"again")
    assert read(file) == b"again"


def test_delete_on_close_as_an_option_of_the_open(smb, share, file):
    handle = smb.open("file", "rd", options=CreateOptions.FILE_DELETE_ON_CLOSE)
    assert read(file) == CONTENT
    handle.close()
    assert names(share) == []


def test_a_connection_that_breaks_closes_its_handles(server, share, file):
    with Client(server.smb, share.share_name) as client:
        client.open("file", "rd").delete_on_close()
        refused("SMBDeletePending", lambda: read(file))
    deadline = time.monotonic() + 20
    with pytest.raises(ResourceNotFoundError):
        while time.monotonic() < deadline:
            with contextlib.suppress(ResourceExistsError):  # still pending
                read(file)


def test_deletes_over_rest_are_never_pending(smb, file):
    file.delete_file()
    open_it = dict(disposition=CreateDisposition.FILE_OPEN)
    smb_refused(Status.OBJECT_NAME_NOT_FOUND, lambda: smb.open("file", **open_it))


# Attributes.


@pytest.mark.parametrize("operation", ["Create", "Set Properties", "Set Metadata", "Put Range", "Delete", "Resize"])
def test_a_file_made_read_only_over_smb_is_read_only_over_rest(smb, file, operation):
    handle = smb.open("file", "r")
    handle.set_attributes(FileAttributes.FILE_ATTRIBUTE_READONLY)
    handle.close()
    refused("ReadOnlyAttribute", lambda: OPERATIONS[operation](file))
    assert read(file) == CONTENT
    file.set_http_headers(ContentSettings(), file_attributes="None")
    OPERATIONS[operation](file)


def test_nothing_is_copied_or_renamed_onto_a_read_only_file(smb, share, file):
    smb.open("file", "r").set_attributes(FileAttributes.FILE_ATTRIBUTE_READONLY)
    source = share.get_file_client("source")
    source.upload_file(b"new")
    refused("ReadOnlyAttribute", lambda: file.start_copy_from_url(source.url))
    refused("ReadOnlyAttribute", lambda: source.rename_file("file", overwrite=True))
    assert read(file) == CONTENT


def test_attributes_and_times_are_the_same_for_both(smb, share):
    file = share.get_file_client("file")
    then = datetime(2001, 2, 3, 4, 5, 6, 789012, tzinfo=timezone.utc)
    file.create_file(
        5, file_attributes=NTFSAttributes(hidden=True, system=True), file_creation_time=then, file_last_write_time=then
    )
    handle = smb.open("file", "r", disposition=CreateDisposition.FILE_OPEN)
    basic = handle.query(FileBasicInformation)
    # Create File over REST adds the archive attribute.
    assert basic["file_attributes"].get_value() == (
        FileAttributes.FILE_ATTRIBUTE_HIDDEN
        | FileAttributes.FILE_ATTRIBUTE_SYSTEM
        | FileAttributes.FILE_ATTRIBUTE_ARCHIVE
    )
    for time_ in ("creation_time", "last_write_time"):
        since_1601 = timedelta(microseconds=basic[time_].get_value() // 10)
        assert datetime(1601, 1, 1, tzinfo=timezone.utc) + since_1601 == then
    handle.set_attributes(FileAttributes.FILE_ATTRIBUTE_ARCHIVE | FileAttributes.FILE_ATTRIBUTE_HIDDEN)
    seen = file.get_file_properties()
    assert set(re.split(r"\s*\|\s*", seen.file_attributes)) == {"Archive", "Hidden"}
    assert seen.creation_time == then and seen.last_write_time == then


# Byte-range locks.


@pytest.mark.parametrize("exclusive", [True, False])
def test_put_range_needs_a_file_without_locks(smb, file, exclusive):
    file.upload_file(CONTENT + bytes(1024))
    handle = smb.open("file", "rw")
    handle.lock(8, 1, exclusive)
    refused("FileLockConflict", lambda: file.upload_range(b"a", 0, 1))
    refused("FileLockConflict", lambda: file.clear_range(512, 512))
    handle.unlock(8, 1)
    file.upload_range(b"a", 0, 1)
    handle.lock(0, 1)
    handle.close()
    file.upload_range(b"b", 1, 1)
    assert read(file) == b"ab23456789" + bytes(1024)


def test_get_is_refused_by_an_exclusive_lock_on_what_it_reads(smb, file):
    handle = smb.open("file", "rw")
    handle.lock(0, 5, exclusive=False)
    assert read(file) == CONTENT
    handle.unlock(0, 5)
    handle.lock(0, 5)
    refused("FileLockConflict", lambda: read(file))
    assert read(file, offset=5, length=5) == b"56789"
    handle.unlock(0, 5)
    assert read(file) == CONTENT


# Change notifications.


def test_changes_over_rest_are_not_notified(smb, share):
    directory = smb.directory("")
    watcher = FileSystemWatcher(directory.open)
    watcher.start(CompletionFilter.FILE_NOTIFY_CHANGE_FILE_NAME)
    share.get_file_client("over-rest").upload_file(b"x")
    smb.open("over-smb").close()
    changes = watcher.wait()
    assert [change["file_name"].get_value() for change in changes] == ["over-smb"]


# Oplock breaks: the lease before and after an operation. None: the operation does not change it.

READS = ("Get", "Get Properties", "Get Metadata", "List Ranges")
WRITES = ("Put Range", "Set Properties", "Set Metadata")
BLOCKING = [
    *[(operation, "RWH", "RH") for operation in READS],
    *[(operation, "RW", "R") for operation in READS],
    *[(operation, held, "") for operation in WRITES for held in ("RWH", "RW")],
]


@pytest.mark.parametrize("operation, held, after", BLOCKING)
def test_operations_that_wait_for_a_lease_break(smb, file, pool, operation, held, after):
    handle = smb.open("file", "rw", lease=held)
    assert set(handle.lease) == set(held)
    waiting = pool.submit(OPERATIONS[operation], file)
    seen = smb.next_break()
    assert (seen.key, set(seen.before), set(seen.after)) == (handle.lease_key, set(held), set(after))
    assert seen.must_acknowledge
    smb.no_break()
    assert not waiting.done()
    smb.acknowledge(seen)
    waiting.result(timeout=30)
    smb.no_break()


@pytest.mark.parametrize("operation", READS)
def test_reads_leave_a_lease_without_write_caching_alone(smb, file, operation):
    handle = smb.open("file", "rw", lease="RH")
    assert set(handle.lease) == set("RH")
    OPERATIONS[operation](file)
    smb.no_break()


@pytest.mark.parametrize("operation", WRITES)
def test_writes_take_a_read_lease_without_waiting(smb, file, operation):
    handle = smb.open("file", "rw", lease="RH")
    assert set(handle.lease) == set("RH")
    OPERATIONS[operation](file)
    seen = smb.next_break()
    assert (seen.key, set(seen.before), seen.after) == (handle.lease_key, set("RH"), "")
    if seen.must_acknowledge:
        smb.acknowledge(seen)
    smb.no_break()


@pytest.mark.parametrize("held", ["RWH", "RH", "RW"])
def test_listing_breaks_nothing(smb, share, file, held):
    smb.open("file", "rw", lease=held)
    assert names(share) == ["file"]
    smb.no_break()


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("held, after", [("RWH", "RW"), ("RH", "R")])
def test_delete_asks_for_cached_handles_to_be_closed(smb, file, pool, held, after, closes):
    handle = smb.open("file", "rw", lease=held)
    deleting = pool.submit(file.delete_file)
    seen = smb.next_break()
    assert (set(seen.before), set(seen.after)) == (set(held), set(after)) and seen.must_acknowledge
    smb.no_break()
    assert not deleting.done()
    if closes:
        handle.close()
        deleting.result(timeout=30)
    else:
        smb.acknowledge(seen)
        refused("SharingViolation", lambda: deleting.result(timeout=30))
        smb.no_break()


def test_delete_is_refused_at_once_by_a_handle_that_is_not_cached(smb, file):
    smb.open("file", "rw", lease="RW")
    refused("SharingViolation", file.delete_file)
    smb.no_break()


@pytest.mark.parametrize("closes", [True, False])
def test_a_sharing_conflict_breaks_a_cached_handle_first(smb, file, pool, closes):
    handle = smb.open("file", "rw", share="", lease="RWH")
    reading = pool.submit(read, file)
    seen = smb.next_break()
    assert "H" not in seen.after and seen.must_acknowledge
    if closes:
        handle.close()
        assert reading.result(timeout=30) == CONTENT
    else:
        smb.acknowledge(seen)
        refused("SharingViolation", lambda: reading.result(timeout=30))


@pytest.mark.parametrize("held", ["RWH", "RW"])
def test_get_returns_the_dirty_data_of_a_client(smb, file, pool, held):
    """The client answers the break as Windows does: it writes its dirty data, then acknowledges."""
    handle = smb.open("file", "rw", lease=held)
    reading = pool.submit(read, file)
    seen = smb.next_break()
    handle.write(b"kept in the cache, longer than before")
    smb.acknowledge(seen)
    assert reading.result(timeout=30) == b"kept in the cache, longer than before"


def test_properties_and_ranges_include_the_dirty_data_of_a_client(smb, file, pool):
    handle = smb.open("file", "rw", lease="RWH")
    asking = pool.submit(file.get_file_properties)
    seen = smb.next_break()
    handle.write(b"x" * 5000)
    smb.acknowledge(seen)
    assert asking.result(timeout=30).size == 5000
    assert [(one["start"], one["end"]) for one in file.list_ranges()] == [(0, 4999)]


@pytest.mark.parametrize("operation", ["Get", "Get Properties", "Put Range", "Set Metadata"])
def test_a_client_that_does_not_answer_delays_the_request_until_its_timeout(smb, file, operation):
    smb.open("file", "rw", lease="RWH")
    call = OPERATIONS[operation]
    refused("ClientCacheFlushDelay", lambda: call(file, timeout=2), status=500)
    smb.acknowledge(smb.next_break())
    call(file)


def test_oplocks_are_broken_as_leases_are(smb, file, pool):
    batch = 9
    handle = smb.open("file", "rw", oplock=batch)
    assert handle.open.oplock_level == batch
    reading = pool.submit(read, file)
    seen = smb.next_break()
    assert seen.file_id == handle.open.file_id
    handle.write(b"ABC")
    handle.close()
    assert reading.result(timeout=30) == b"ABC3456789"


# Each protocol sees the changes of the other at once.


def test_smb_writes_are_seen_over_rest_before_they_are_flushed(smb, share):
    handle = smb.open("file", "rw")
    file = share.get_file_client("file")
    for round_ in range(20):
        content = str(round_).encode() * 1000
        handle.write(content)
        assert read(file)[: len(content)] == content


def test_rest_writes_are_seen_over_smb_at_once(smb, file):
    handle = smb.open("file", "r")
    for round_ in range(20):
        file.upload_range(b"%02d" % round_, 0, 2)
        assert handle.read(0, 2) == b"%02d" % round_


def test_names_are_the_same_for_both(smb, share):
    share.create_directory("Dir")
    share.get_file_client("Dir/Made over REST").upload_file(b"rest")
    smb.open(r"dir\Made over SMB", "rw").write(b"smb")
    assert sorted(smb.names("DIR")) == ["Made over REST", "Made over SMB"]
    assert [entry.name for entry in share.list_directories_and_files("dir")] == ["Made over REST", "Made over SMB"]
    assert smb.open(r"DIR\made over rest", "r").read() == b"rest"
    assert read(share.get_file_client("DIR/made over smb")) == b"smb"


def test_each_protocol_sees_renames_of_the_other(smb, share, file):
    handle = smb.open("file", "rd")
    handle.rename("renamed over SMB")
    handle.close()
    moved = share.get_file_client("renamed over SMB")
    assert read(moved) == CONTENT
    moved.rename_file("renamed over REST")
    assert smb.names() == ["renamed over REST"]


def test_a_snapshot_is_a_previous_version(server, share, file):
    share.create_snapshot()
    file.upload_file(b"newer")
    command = ["smbclient", f"//{HOST}/{share.share_name}", "-p", str(server.smb), "-U", f"{ACCOUNT}%{KEY}", "-c"]
    said = subprocess.run([*command, "allinfo file"], capture_output=True, text=True, timeout=60).stdout
    (version,) = set(re.findall(r"@GMT-[0-9.]+-[0-9.]+", said))
    back = subprocess.run([*command, rf"get {version}\file -"], capture_output=True, timeout=60)
    assert CONTENT in back.stdout, back


# Handles.


def test_handles_are_listed_with_their_clients(server, smb, share, file):
    before = datetime.now(timezone.utc)
    smb.open("file", "rw")
    share.create_directory("dir")
    smb.open(r"dir\other", "d")
    (handle,) = file.list_handles()
    assert handle["path"] == "file" and handle["client_ip"].startswith(HOST)
    assert handle["file_id"] == file.get_file_properties().file_id
    assert handle["session_id"] and abs((handle["open_time"] - before).total_seconds()) < 60
    assert sorted(handle["access_rights"]) == ["Read", "Write"]
    everywhere = list(share.get_directory_client().list_handles(recursive=True))
    assert sorted(one["path"] for one in everywhere) == ["dir/other", "file"]
    assert [one["access_rights"] for one in everywhere if one["path"] == "dir/other"] == [["Delete"]]
    assert len({one["id"] for one in everywhere}) == 2


def test_a_handle_is_closed_by_force(smb, file):
    first = smb.open("file", "rw")
    refused("SharingViolation", file.delete_file)
    (handle,) = file.list_handles()
    assert file.close_handle(handle) == {"closed_handles_count": 1, "failed_handles_count": 0}
    smb_refused(Status.FILE_CLOSED, lambda: first.read())
    assert list(file.list_handles()) == []
    assert file.close_handle(handle["id"]) == {"closed_handles_count": 0, "failed_handles_count": 0}
    file.delete_file()


def test_all_handles_closed_by_force_free_what_they_held(server, smb, share, file):
    directory = share.create_directory("dir")
    smb.directory("dir")
    inner = smb.open(r"dir\inner", "rwd", "")
    inner.lock(0, 10)
    inner.delete_on_close()
    smb.open("file", "rw", lease="RWH")
    with Client(server.smb, share.share_name) as other:
        other.directory("dir")
        assert directory.close_all_handles(recursive=True)["closed_handles_count"] == 3
    assert [one["path"] for one in share.get_directory_client().list_handles(recursive=True)] == ["file"]
    assert file.close_all_handles() == {"closed_handles_count": 1, "failed_handles_count": 0}
    file.delete_file()
    directory.delete_directory()
