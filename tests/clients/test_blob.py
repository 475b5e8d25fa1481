"""The blob service through the unmodified Python library."""

import hashlib
import io
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
import requests
from azure.core import MatchConditions
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.storage.blob import (
    AccessPolicy,
    AccountSasPermissions,
    BlobBlock,
    BlobClient,
    BlobLeaseClient,
    BlobSasPermissions,
    BlobServiceClient,
    BlobType,
    ContainerClient,
    ContainerSasPermissions,
    ContentSettings,
    DelimitedJsonDialect,
    DelimitedTextDialect,
    PublicAccess,
    ResourceTypes,
    StandardBlobTier,
    generate_account_sas,
    generate_blob_sas,
    generate_container_sas,
)

from conftest import ACCOUNT, KEY

MIB = 1 << 20


def soon():
    return datetime.now(timezone.utc) + timedelta(hours=1)


@pytest.fixture(scope="module")
def service(server):
    return BlobServiceClient.from_connection_string(server.connection_string, retry_total=0)


@pytest.fixture
def container(service):
    client = service.create_container(f"test-{uuid.uuid4().hex[:20]}")
    yield client
    try:
        client.delete_container()
    except HttpResponseError:
        pass


def refused(status, code, call, *args, **kwargs):
    with pytest.raises(HttpResponseError) as error:
        call(*args, **kwargs)
    assert (error.value.status_code, error.value.error_code) == (status, code), error.value
    return error.value


# The two programs of "Managing concurrency in Blob storage".


def test_article_optimistic_a_stale_etag_is_refused(container):
    blob = container.get_blob_client("optimistic")
    first = blob.upload_blob(b"first", overwrite=True)
    second = blob.upload_blob(b"second, by another client", overwrite=True)
    assert first["etag"] != second["etag"]
    error = refused(
        412,
        "ConditionNotMet",
        blob.upload_blob,
        b"from a stale copy",
        overwrite=True,
        etag=first["etag"],
        match_condition=MatchConditions.IfNotModified,
    )
    assert isinstance(error, ResourceModifiedError)
    assert blob.download_blob().readall() == b"second, by another client"
    blob.upload_blob(b"fresh", overwrite=True, etag=second["etag"], match_condition=MatchConditions.IfNotModified)


def test_article_pessimistic_only_the_holder_writes(container):
    blob = container.get_blob_client("pessimistic")
    blob.upload_blob(b"first")
    lease = BlobLeaseClient(blob)
    lease.acquire(lease_duration=15)
    blob.upload_blob(b"by the holder", overwrite=True, lease=lease)
    refused(412, "LeaseIdMissing", blob.upload_blob, b"by nobody", overwrite=True)
    refused(409, "LeaseAlreadyPresent", BlobLeaseClient(blob).acquire, lease_duration=15)
    lease.break_lease(lease_break_period=0)
    refused(412, "LeaseLost", blob.upload_blob, b"by the holder of the past", overwrite=True, lease=lease)
    blob.upload_blob(b"by anonymous", overwrite=True)


# Large bodies.


def test_300_mib_are_uploaded_and_downloaded_in_parallel_blocks_with_md5(container):
    piece = os.urandom(MIB)
    body = b"".join(i.to_bytes(8, "big") + piece[8:] for i in range(300))
    blob = BlobClient(
        container.url.rsplit("/", 1)[0],
        container.container_name,
        "large",
        credential=KEY,
        max_block_size=8 * MIB,
        max_single_get_size=8 * MIB,
        max_chunk_get_size=4 * MIB,
    )
    blob.upload_blob(body, max_concurrency=4, validate_content=True, overwrite=True)
    got = blob.download_blob(max_concurrency=4, validate_content=True).readall()
    assert hashlib.sha256(got).digest() == hashlib.sha256(body).digest()
    committed, uncommitted = blob.get_block_list("all")
    assert len(committed) == 38 and not uncommitted


def test_bodies_carry_a_crc64_of_each_segment_both_ways(container):
    body = os.urandom(9 * MIB + 5)
    for kind, length in [(BlobType.BLOCKBLOB, len(body)), (BlobType.APPENDBLOB, 4 * MIB), (BlobType.PAGEBLOB, 4 * MIB)]:
        blob = container.get_blob_client(f"validated-{kind}")
        blob.upload_blob(io.BytesIO(body), length=length, blob_type=kind, validate_content="crc64")
        assert blob.download_blob(validate_content="crc64").readall() == body[:length]
        part = blob.download_blob(offset=7, length=3 * MIB, validate_content="crc64")
        assert part.readall() == body[7 : 7 + 3 * MIB]
    blob = container.get_blob_client("validated-empty")
    blob.upload_blob(b"", validate_content="crc64")
    assert blob.download_blob(validate_content="crc64").readall() == b""


def test_a_download_in_progress_is_of_one_version(container):
    blob = container.get_blob_client("changing")
    blob.upload_blob(b"a" * (9 * MIB))
    url = blob.url + "?" + blob_sas(blob, "r")
    with requests.get(url, stream=True, timeout=30) as reply:
        chunks = reply.iter_content(64 << 10)
        got = bytearray(next(chunks))
        blob.upload_blob(b"b" * (9 * MIB), overwrite=True)
        blob.delete_blob()
        for chunk in chunks:
            got += chunk
    assert bytes(got) == b"a" * (9 * MIB)


# Conditions and races.


def test_create_if_absent_has_one_winner(container):
    def create(i):
        try:
            container.get_blob_client("once").upload_blob(str(i).encode())
            return i
        except ResourceExistsError:
            return None

    with ThreadPoolExecutor(32) as pool:
        winners = [i for i in pool.map(create, range(32)) if i is not None]
    assert len(winners) == 1
    assert container.get_blob_client("once").download_blob().readall() == str(winners[0]).encode()


def test_no_increment_is_lost(container):
    blob = container.get_blob_client("counter")
    blob.upload_blob(b"0")

    def increment(_):
        client = container.get_blob_client("counter")
        while True:
            read = client.download_blob()
            value = int(read.readall())
            try:
                client.upload_blob(
                    str(value + 1).encode(),
                    overwrite=True,
                    etag=read.properties.etag,
                    match_condition=MatchConditions.IfNotModified,
                )
                return
            except ResourceModifiedError:
                pass

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(increment, range(64)))
    assert blob.download_blob().readall() == b"64"


def test_conditions_on_reads_and_deletes_are_evaluated(container):
    blob = container.get_blob_client("b")
    etag = blob.upload_blob(b"x")["etag"]
    error = refused(
        304, "ConditionNotMet", blob.download_blob, etag=etag, match_condition=MatchConditions.IfModified
    )
    assert error.status_code == 304
    refused(412, "ConditionNotMet", blob.download_blob, etag='"0x1"', match_condition=MatchConditions.IfNotModified)
    past = datetime.now(timezone.utc) - timedelta(days=1)
    refused(412, "ConditionNotMet", blob.delete_blob, if_unmodified_since=past)
    assert blob.get_blob_properties(if_modified_since=past).etag == etag


# Blob types.


def test_blocks_are_staged_listed_and_committed(container):
    blob = container.get_blob_client("blocks")
    for i in range(3):
        blob.stage_block(f"{i:08}", bytes([i]) * 1000, validate_content=True)
    assert not blob.exists()
    committed, uncommitted = blob.get_block_list("all")
    assert not committed and [b.id for b in uncommitted] == ["00000000", "00000001", "00000002"]
    blob.commit_block_list([BlobBlock("00000002"), BlobBlock("00000000")], metadata={"a": "b"})
    assert blob.download_blob().readall() == bytes([2]) * 1000 + bytes([0]) * 1000
    committed, uncommitted = blob.get_block_list("all")
    assert [(b.id, b.size) for b in committed] == [("00000002", 1000), ("00000000", 1000)] and not uncommitted
    refused(400, "InvalidBlockList", blob.commit_block_list, [BlobBlock("00000009")])
    assert [b.name for b in container.list_blobs(include=["uncommittedblobs"])] == ["blocks"]


def test_append_blobs_grow_and_seal(container):
    blob = container.get_blob_client("log")
    blob.create_append_blob()
    assert int(blob.append_block(b"one\n")["blob_append_offset"]) == 0
    assert int(blob.append_block(b"two\n", appendpos_condition=4)["blob_append_offset"]) == 4
    refused(412, "AppendPositionConditionNotMet", blob.append_block, b"x", appendpos_condition=4)
    refused(412, "MaxBlobSizeConditionNotMet", blob.append_block, b"x", maxsize_condition=8)
    assert blob.download_blob().readall() == b"one\ntwo\n"
    blob.seal_append_blob()
    refused(409, "BlobIsSealed", blob.append_block, b"x")
    assert blob.get_blob_properties().is_append_blob_sealed
    container.upload_blob("stream", b"z" * (9 * MIB), blob_type=BlobType.APPENDBLOB)
    assert container.download_blob("stream").readall() == b"z" * (9 * MIB)


def test_parallel_appends_keep_every_byte(container):
    container.get_blob_client("log").create_append_blob()

    def append(i):
        container.get_blob_client("log").append_block(f"{i:06}\n".encode())

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(append, range(400)))
    lines = container.download_blob("log").readall().split()
    assert sorted(lines) == [f"{i:06}".encode() for i in range(400)]


def test_page_blobs_are_sparse_and_list_their_ranges(container):
    blob = container.get_blob_client("disk")
    blob.create_page_blob(8 << 40, sequence_number=3)
    blob.upload_page(b"p" * 1024, offset=512, length=1024)
    blob.upload_page(b"q" * 512, offset=(8 << 40) - 512, length=512)
    snapshot = blob.create_snapshot()
    blob.clear_page(offset=512, length=512)
    blob.upload_page(b"r" * 512, offset=4096, length=512)
    ranges = [(r.start, r.end, r.cleared) for r in blob.list_page_ranges()]
    assert ranges == [(1024, 1535, False), (4096, 4607, False), ((8 << 40) - 512, (8 << 40) - 1, False)]
    changed = {(r.start, r.end, r.cleared) for r in blob.list_page_ranges(previous_snapshot=snapshot["snapshot"])}
    assert changed == {(512, 1023, True), (4096, 4607, False)}
    assert blob.download_blob(offset=0, length=1536).readall() == bytes(1024) + b"p" * 512
    blob.set_sequence_number("increment", None)
    assert blob.get_blob_properties().page_blob_sequence_number == 4
    refused(
        412,
        "SequenceNumberConditionNotMet",
        blob.upload_page,
        b"s" * 512,
        offset=0,
        length=512,
        if_sequence_number_lt=4,
    )
    blob.resize_blob(1024)
    assert blob.get_blob_properties().size == 1024


# Properties, snapshots, tags, tiers.


def test_properties_and_metadata_are_returned_as_set(container):
    blob = container.get_blob_client("b")
    blob.upload_blob(b"x", metadata={"one": "1"}, content_settings=ContentSettings(content_type="text/plain"))
    blob.set_http_headers(ContentSettings(content_type="text/html", cache_control="no-cache"))
    blob.set_blob_metadata({"two": "2"})
    found = blob.get_blob_properties()
    assert found.metadata == {"two": "2"}
    assert (found.content_settings.content_type, found.content_settings.cache_control) == ("text/html", "no-cache")
    container.set_container_metadata({"of": "container"})
    assert container.get_container_properties().metadata == {"of": "container"}


def test_snapshots_keep_their_state(container):
    blob = container.get_blob_client("b")
    blob.upload_blob(b"old")
    snapshot = blob.create_snapshot()["snapshot"]
    blob.upload_blob(b"new", overwrite=True)
    of_old = container.get_blob_client("b", snapshot=snapshot)
    assert of_old.download_blob().readall() == b"old"
    assert [b.snapshot for b in container.list_blobs(include=["snapshots"])] == [snapshot, None]
    refused(409, "SnapshotsPresent", blob.delete_blob)
    of_old.delete_blob()
    blob.delete_blob(delete_snapshots="include")
    with pytest.raises(ResourceNotFoundError):
        blob.get_blob_properties()


def test_tags_find_blobs_and_guard_writes(service, container):
    for i in range(4):
        container.upload_blob(f"b{i}", b"x", tags={"kind": "even" if i % 2 == 0 else "odd", "run": container.container_name})
    found = service.find_blobs_by_tags(f"\"kind\"='even' AND \"run\"='{container.container_name}'")
    assert sorted(b.name for b in found) == ["b0", "b2"]
    blob = container.get_blob_client("b0")
    blob.set_blob_tags({"kind": "prime"})
    assert blob.get_blob_tags() == {"kind": "prime"}
    assert [b.name for b in container.find_blobs_by_tags("\"kind\"='even'")] == ["b2"]
    refused(412, "ConditionNotMet", blob.delete_blob, if_tags_match_condition="\"kind\"='odd'")
    blob.delete_blob(if_tags_match_condition="\"kind\"='prime'")


def test_an_archived_blob_is_rehydrated_before_it_is_read(container):
    blob = container.get_blob_client("b")
    blob.upload_blob(b"x", standard_blob_tier=StandardBlobTier.COOL)
    assert blob.get_blob_properties().blob_tier == "Cool"
    blob.set_standard_blob_tier(StandardBlobTier.ARCHIVE)
    refused(409, "BlobArchived", blob.download_blob)
    blob.set_standard_blob_tier(StandardBlobTier.HOT)
    assert blob.get_blob_properties().archive_status == "rehydrate-pending-to-hot"


# Listing, batches, copies, soft delete.


def test_listings_are_flat_or_by_directory(container):
    names = ["a/1", "a/2/x", "a/2/y", "b", "c%20d", "ä/ö", "spa ce", "q?&=#"]
    for name in names:
        container.upload_blob(name, b"")
    assert [b.name for b in container.list_blobs()] == sorted(names, key=str.encode)
    assert sorted(b.name for b in container.walk_blobs("a/")) == ["a/1", "a/2/"]
    pages = container.list_blobs(results_per_page=3).by_page()
    assert [len(list(page)) for page in pages] == [3, 3, 2]
    for name in names:
        assert container.download_blob(name).readall() == b""


def test_batches_delete_and_set_tiers(container):
    for i in range(10):
        container.upload_blob(f"b{i}", b"x")
    replies = list(container.set_standard_blob_tier_blobs(StandardBlobTier.COOL, *[f"b{i}" for i in range(10)]))
    assert [r.status_code for r in replies] == [200] * 10
    replies = list(container.delete_blobs(*[f"b{i}" for i in range(9)], "none", raise_on_any_failure=False))
    assert sorted(r.status_code for r in replies) == [202] * 9 + [404]
    assert [b.name for b in container.list_blobs()] == ["b9"]


def test_copies_have_the_content_and_metadata_of_their_source(service, container):
    source = container.get_blob_client("source")
    source.upload_blob(b"s" * (3 * MIB), metadata={"m": "1"})
    for i, how in enumerate([{}, {"requires_sync": True}]):
        copy = container.get_blob_client(f"copy{i}")
        url = source.url + "?" + blob_sas(source, "r") if how else source.url
        assert copy.start_copy_from_url(url, **how)["copy_status"] == "success"
        assert copy.download_blob().readall() == b"s" * (3 * MIB)
        assert copy.get_blob_properties().metadata == {"m": "1"}
    put = container.get_blob_client("put")
    put.upload_blob_from_url(source.url + "?" + blob_sas(source, "r"))
    assert put.get_blob_properties().size == 3 * MIB
    blocks = container.get_blob_client("blocks")
    blocks.stage_block_from_url("0001", source.url + "?" + blob_sas(source, "r"), source_offset=10, source_length=20)
    blocks.commit_block_list([BlobBlock("0001")])
    assert blocks.download_blob().readall() == b"s" * 20


def test_a_soft_deleted_blob_is_restored(service, container):
    from azure.storage.blob import RetentionPolicy

    service.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=True, days=1))
    try:
        blob = container.get_blob_client("b")
        blob.upload_blob(b"kept")
        blob.delete_blob()
        assert not blob.exists()
        assert [b.deleted for b in container.list_blobs(include=["deleted"])] == [True]
        blob.undelete_blob()
        assert blob.download_blob().readall() == b"kept"
    finally:
        service.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=False))


# Leases.


def test_container_leases_guard_deletion(container):
    lease = container.acquire_lease(lease_duration=-1)
    refused(412, "LeaseIdMissing", container.delete_container)
    container.upload_blob("b", b"blobs do not mind")
    container.delete_container(lease=lease)


def test_a_lease_has_one_holder_at_a_time(container):
    container.upload_blob("b", b"x")
    most = []
    lock = threading.Lock()
    holders = set()

    def hold(i):
        lease = BlobLeaseClient(container.get_blob_client("b"))
        won = 0
        for _ in range(10):
            try:
                lease.acquire(lease_duration=15)
            except ResourceExistsError:
                continue
            except HttpResponseError as error:
                assert error.status_code == 409
                continue
            with lock:
                holders.add(i)
                most.append(len(holders))
                won += 1
            with lock:
                holders.discard(i)
            lease.release()
        return won

    with ThreadPoolExecutor(32) as pool:
        assert sum(pool.map(hold, range(32))) > 0
    assert max(most) == 1


# Shared access signatures.


def blob_sas(blob, letters, **more):
    return generate_blob_sas(
        ACCOUNT, blob.container_name, blob.blob_name, account_key=KEY, permission=letters, expiry=soon(), **more
    )


def test_every_kind_of_signature_allows_what_it_grants(service, container, server):
    endpoint = server.endpoints["blob"]
    blob = container.get_blob_client("b")
    blob.upload_blob(b"x")
    snapshot = blob.create_snapshot()["snapshot"]
    account = generate_account_sas(
        ACCOUNT, KEY, ResourceTypes(container=True, object=True), AccountSasPermissions(read=True, list=True), soon()
    )
    whole = generate_container_sas(
        ACCOUNT, container.container_name, account_key=KEY, permission=ContainerSasPermissions(read=True), expiry=soon()
    )
    container.set_container_access_policy(
        {"readers": AccessPolicy(ContainerSasPermissions(read=True), expiry=soon(), start=None)}
    )
    policy = generate_container_sas(ACCOUNT, container.container_name, account_key=KEY, policy_id="readers")
    for sas in [account, whole, policy, blob_sas(blob, BlobSasPermissions(read=True))]:
        reader = BlobClient(endpoint, container.container_name, "b", credential=sas, retry_total=0)
        assert reader.download_blob().readall() == b"x"
        refused(403, "AuthorizationPermissionMismatch", reader.upload_blob, b"y", overwrite=True)
    of_snapshot = generate_blob_sas(
        ACCOUNT, container.container_name, "b", snapshot=snapshot, account_key=KEY, permission="r", expiry=soon()
    )
    reader = BlobClient(endpoint, container.container_name, "b", snapshot=snapshot, credential=of_snapshot, retry_total=0)
    assert reader.download_blob().readall() == b"x"
    creator = BlobClient(
        endpoint, container.container_name, "b", credential=blob_sas(blob, BlobSasPermissions(create=True)), retry_total=0
    )
    refused(403, "UnauthorizedBlobOverwrite", creator.upload_blob, b"y", overwrite=True)
    named = requests.get(blob.url + "?" + blob_sas(blob, "r", content_disposition="attachment"), timeout=30)
    assert named.headers["Content-Disposition"] == "attachment"


def test_anonymous_clients_read_public_containers(container, server):
    container.upload_blob("b", b"public")
    container.set_container_access_policy({}, public_access=PublicAccess.CONTAINER)
    anonymous = ContainerClient(server.endpoints["blob"], container.container_name, retry_total=0)
    assert [b.name for b in anonymous.list_blobs()] == ["b"]
    assert anonymous.download_blob("b").readall() == b"public"
    refused(401, "NoAuthenticationInformation", anonymous.upload_blob, "c", b"x")


def test_queries_select_columns_and_rows(container):
    blob = container.get_blob_client("stock.csv")
    blob.upload_blob(b"name,price\r\nmouse,12.5\r\nkeyboard\r\nscreen,80\r\n")
    errors = []
    reader = blob.query_blob(
        "SELECT name, price FROM BlobStorage WHERE price > 20",
        blob_format=DelimitedTextDialect(has_header=True),
        output_format=DelimitedJsonDialect(),
        on_error=errors.append,
    )
    assert reader.readall() == b'{"name":"screen","price":"80"}\n'
    assert [(error.error, error.is_fatal, error.position) for error in errors] == [("InvalidColumnOrdinal", False, 24)]
    assert blob.query_blob("SELECT COUNT(*) FROM BlobStorage").readall() == b"4\n"
    refused(400, "InvalidInput", blob.query_blob, "SELECT everything")


def test_queries_of_large_blobs_stream(container):
    blob = container.get_blob_client("large.csv")
    line = b"100,200,300,400\n150,250,350,450\n"
    blob.upload_blob(line * (9 * MIB // len(line)))
    reader = blob.query_blob("SELECT _2 FROM BlobStorage WHERE _1 > 120")
    assert reader.readall() == b"250\n" * (9 * MIB // len(line))
    assert len(reader) == 9 * MIB
