"""The queue service through the unmodified Python library."""

import base64
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.storage.queue import (
    AccessPolicy,
    AccountSasPermissions,
    BinaryBase64DecodePolicy,
    BinaryBase64EncodePolicy,
    CorsRule,
    QueueClient,
    QueueSasPermissions,
    QueueServiceClient,
    ResourceTypes,
    TextBase64DecodePolicy,
    TextBase64EncodePolicy,
    generate_account_sas,
    generate_queue_sas,
)

from conftest import ACCOUNT, KEY, start


def soon():
    return datetime.now(timezone.utc) + timedelta(hours=1)


def fresh():
    return f"test-{uuid.uuid4().hex[:20]}"


@pytest.fixture(scope="module")
def service(server):
    return QueueServiceClient.from_connection_string(server.connection_string, retry_total=0)


@pytest.fixture
def queue(service):
    client = service.create_queue(fresh())
    yield client
    try:
        client.delete_queue()
    except HttpResponseError:
        pass


def refused(status, code, call):
    with pytest.raises(HttpResponseError) as refusal:
        call()
    assert (refusal.value.status_code, refusal.value.error_code) == (status, code)
    return refusal.value


def texts(messages):
    return [message.content for message in messages]


def test_queues_are_created_listed_and_deleted(service):
    prefix = fresh()
    names = [f"{prefix}-{n}" for n in range(5)]
    for name in names:
        service.create_queue(name, metadata={"is": name})
    listed = list(service.list_queues(name_starts_with=prefix, include_metadata=True, results_per_page=2))
    assert [(queue.name, queue.metadata) for queue in listed] == [(name, {"is": name}) for name in names]
    # The library raises an error for 204, too.
    for metadata, status in [({"is": names[0]}, 204), ({"is": "other"}, 409)]:
        with pytest.raises(ResourceExistsError) as refusal:
            service.create_queue(names[0], metadata=metadata)
        assert (refusal.value.status_code, refusal.value.error_code) == (status, "QueueAlreadyExists")
    for name in names:
        service.delete_queue(name)
    assert list(service.list_queues(name_starts_with=prefix)) == []
    with pytest.raises(ResourceNotFoundError):
        service.delete_queue(names[0])
    service.create_queue(names[0])
    service.delete_queue(names[0])


def test_metadata_and_message_counts_are_returned(queue):
    queue.set_queue_metadata({"color": "blue"})
    for n in range(3):
        queue.send_message(str(n))
    properties = queue.get_queue_properties()
    assert (properties.metadata, properties.approximate_message_count) == ({"color": "blue"}, 3)
    queue.set_queue_metadata({})
    assert queue.get_queue_properties().metadata == {}


def test_a_message_is_sent_received_updated_and_deleted(queue):
    sent = queue.send_message("first")
    assert sent.id and sent.pop_receipt and sent.expires_on - sent.inserted_on == timedelta(days=7)
    seen = queue.peek_messages()
    assert [(m.id, m.content, m.dequeue_count) for m in seen] == [(sent.id, "first", 0)]
    got = queue.receive_message(visibility_timeout=60)
    assert (got.id, got.content, got.dequeue_count) == (sent.id, "first", 1)
    assert got.next_visible_on - got.inserted_on >= timedelta(seconds=59)
    assert queue.peek_messages() == [] and queue.receive_message() is None
    updated = queue.update_message(got, visibility_timeout=0, content="second")
    assert updated.pop_receipt != got.pop_receipt and updated.content == "second"
    refused(404, "MessageNotFound", lambda: queue.delete_message(got.id, got.pop_receipt))
    again = queue.receive_message()
    assert (again.content, again.dequeue_count) == ("second", 2)
    queue.delete_message(again)
    refused(404, "MessageNotFound", lambda: queue.delete_message(again))
    refused(404, "MessageNotFound", lambda: queue.update_message(again, visibility_timeout=0))


def test_messages_are_received_in_pages_and_cleared(queue):
    for n in range(40):
        queue.send_message(str(n))
    assert texts(queue.peek_messages(32)) == [str(n) for n in range(32)]
    got = list(queue.receive_messages(messages_per_page=16, visibility_timeout=60, max_messages=40))
    assert texts(got) == [str(n) for n in range(40)]
    queue.clear_messages()
    assert queue.get_queue_properties().approximate_message_count == 0
    refused(404, "MessageNotFound", lambda: queue.delete_message(got[0]))
    queue.send_message("after")
    assert texts(queue.receive_messages()) == ["after"]


def test_messages_appear_and_expire_on_time(queue):
    queue.send_message("later", visibility_timeout=3)
    queue.send_message("short", time_to_live=3)
    ever = queue.send_message("ever", time_to_live=-1)
    assert ever.expires_on.year == 9999
    assert texts(queue.peek_messages(5)) == ["short", "ever"]
    time.sleep(3.2)
    assert sorted(texts(queue.peek_messages(5))) == ["ever", "later"]
    assert queue.get_queue_properties().approximate_message_count == 2
    for call, code in [
        (lambda: queue.send_message("a", visibility_timeout=10, time_to_live=10), "InvalidQueryParameterValue"),
        (lambda: queue.send_message("a", visibility_timeout=604_801), "OutOfRangeQueryParameterValue"),
        (lambda: queue.receive_message(visibility_timeout=604_801), "OutOfRangeQueryParameterValue"),
    ]:
        refused(400, code, call)


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "<xml attribute=\"1\">&amp; 'quoted' ]]></xml>",
        "  spaces\tand\nlines\r\nof both \r kinds  ",
        "日本語 é ñ 😀👩‍👩‍👧‍👦",
        "!@#$%^&*()_+`-=[]|};'\":,./?><`~",
        "x" * 65_536,
        "&" * 65_536,
    ],
    ids=["plain", "markup", "whitespace", "unicode", "special", "largest", "largest-escaped"],
)
def test_texts_are_received_as_sent(queue, text):
    queue.send_message(text)
    assert queue.peek_messages()[0].content == text
    got = queue.receive_message()
    assert got.content == text
    updated = queue.update_message(got, visibility_timeout=0, content=text[::-1])
    assert updated.content == text[::-1] and queue.receive_message().content == text[::-1]


def test_texts_that_are_too_long_or_invalid_are_refused(queue):
    refused(413, "RequestBodyTooLarge", lambda: queue.send_message("x" * 65_537))
    refused(413, "RequestBodyTooLarge", lambda: queue.send_message("é" * 32_769))
    refused(400, "InvalidXmlDocument", lambda: queue.send_message("\x01"))
    assert queue.get_queue_properties().approximate_message_count == 0


def test_base64_policies_encode_and_decode(server, queue):
    def client(encode, decode):
        return QueueClient.from_connection_string(
            server.connection_string, queue.queue_name, message_encode_policy=encode, message_decode_policy=decode
        )

    binary = client(BinaryBase64EncodePolicy(), BinaryBase64DecodePolicy())
    content = bytes(range(256)) * 100
    binary.send_message(content)
    assert queue.peek_messages()[0].content == base64.b64encode(content).decode()
    got = binary.receive_message()
    assert got.content == content
    binary.delete_message(got)
    text = client(TextBase64EncodePolicy(), TextBase64DecodePolicy())
    text.send_message("<é😀>")
    assert queue.peek_messages()[0].content == base64.b64encode("<é😀>".encode()).decode()
    assert text.receive_message().content == "<é😀>"


def test_only_the_current_pop_receipt_deletes_a_message(queue):
    queue.send_message("a")
    queue.send_message("b")
    a, b = queue.receive_message(), queue.receive_message()
    refused(400, "PopReceiptMismatch", lambda: queue.delete_message(a.id, b.pop_receipt))
    refused(400, "InvalidQueryParameterValue", lambda: queue.delete_message(a.id, a.pop_receipt + "Random"))
    refused(404, "MessageNotFound", lambda: queue.delete_message(a.id + "Random", a.pop_receipt))
    refused(404, "MessageNotFound", lambda: queue.delete_message(str(uuid.uuid4()), a.pop_receipt))
    queue.delete_message(a)
    queue.delete_message(b)


def test_signatures_allow_what_they_grant(server, service, queue):
    def client(sas):
        return QueueClient(server.endpoints["queue"], queue.queue_name, credential=sas, retry_total=0)

    def of_queue(**fields):
        return client(generate_queue_sas(ACCOUNT, queue.queue_name, KEY, **fields))

    producer = of_queue(permission=QueueSasPermissions(add=True), expiry=soon())
    consumer = of_queue(permission=QueueSasPermissions(process=True), expiry=soon())
    reader = of_queue(permission=QueueSasPermissions(read=True), expiry=soon())
    updater = of_queue(permission=QueueSasPermissions(update=True), expiry=soon())
    producer.send_message("a")
    assert texts(reader.peek_messages()) == ["a"]
    assert reader.get_queue_properties().approximate_message_count == 1
    got = consumer.receive_message()
    updated = updater.update_message(got, visibility_timeout=0)
    for call in [
        lambda: producer.peek_messages(),
        lambda: reader.receive_message(),
        lambda: consumer.send_message("b"),
        lambda: updater.delete_message(updated.id, updated.pop_receipt),
    ]:
        refused(403, "AuthorizationPermissionMismatch", call)
    with pytest.raises(HttpResponseError) as refusal:
        consumer.clear_messages()
    assert refusal.value.status_code == 403
    consumer.delete_message(updated.id, updated.pop_receipt)

    expired = of_queue(permission=QueueSasPermissions(read=True), expiry=datetime.now(timezone.utc) - timedelta(hours=1))
    with pytest.raises(ClientAuthenticationError):
        expired.peek_messages()

    everything = AccountSasPermissions(read=True, write=True, delete=True, list=True, add=True, update=True, process=True, create=True)
    sas = generate_account_sas(ACCOUNT, KEY, ResourceTypes(service=True, container=True, object=True), everything, soon())
    account = QueueServiceClient(server.endpoints["queue"], credential=sas)
    assert queue.queue_name in [found.name for found in account.list_queues()]
    one = account.create_queue(fresh())
    one.send_message("b")
    assert texts(one.receive_messages()) == ["b"]
    one.clear_messages()
    one.delete_queue()


def test_a_stored_policy_grants_access_until_it_is_removed(server, queue):
    sas = generate_queue_sas(ACCOUNT, queue.queue_name, KEY, policy_id="workers")
    client = QueueClient(server.endpoints["queue"], queue.queue_name, credential=sas, retry_total=0)
    with pytest.raises(ClientAuthenticationError):
        client.send_message("a")
    start = datetime.now(timezone.utc) - timedelta(hours=1)
    policy = AccessPolicy(permission=QueueSasPermissions(add=True, process=True), start=start, expiry=soon())
    queue.set_queue_access_policy({"workers": policy})
    kept = queue.get_queue_access_policy()
    assert set(kept) == {"workers"} and kept["workers"].permission == "ap"
    client.send_message("a")
    assert texts(client.receive_messages()) == ["a"]
    refused(403, "AuthorizationPermissionMismatch", client.peek_messages)
    queue.set_queue_access_policy({})
    assert queue.get_queue_access_policy() == {}
    with pytest.raises(ClientAuthenticationError):
        client.send_message("a")


def test_service_properties_are_stored(service):
    rule = CorsRule(["https://a.example"], ["GET", "PUT"], max_age_in_seconds=5)
    service.set_service_properties(cors=[rule])
    kept = service.get_service_properties()["cors"]
    assert [(one.allowed_origins, one.max_age_in_seconds) for one in kept] == [("https://a.example", 5)]
    service.set_service_properties(cors=[])


def test_a_message_that_fails_too_often_goes_to_the_poison_queue(service, queue):
    """A Functions host makes a failed message visible again, and moves it to the poison queue after five attempts."""
    poison = service.create_queue(f"{queue.queue_name}-poison")
    queue.send_message("bad")
    queue.send_message("good")
    handled, tries = [], 0
    while message := queue.receive_message(visibility_timeout=600):
        if message.content == "good":
            handled.append(message.content)
            queue.delete_message(message)
        elif message.dequeue_count > 5:
            poison.send_message(message.content)
            queue.delete_message(message)
        else:
            tries += 1
            assert message.dequeue_count == tries
            queue.update_message(message, visibility_timeout=0)
    assert (handled, tries) == (["good"], 5)
    assert texts(poison.peek_messages(5)) == ["bad"] and queue.peek_messages() == []
    poison.delete_queue()


def test_each_message_reaches_one_of_many_workers(queue):
    messages = 300
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: queue.send_message(str(n)), range(messages)))
    done, lock = [], threading.Lock()

    def work(_):
        while got := list(queue.receive_messages(messages_per_page=8, max_messages=8, visibility_timeout=600)):
            for message in got:
                queue.delete_message(message)
            with lock:
                done.extend(texts(got))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sorted(map(int, done)) == list(range(messages))


def test_everything_survives_a_restart(tmp_path):
    running = start(tmp_path / "data")
    name = fresh()
    queue = QueueClient.from_connection_string(running.connection_string, name)
    queue.create_queue(metadata={"a": "1"})
    for n in range(50):
        queue.send_message(str(n))
    held = queue.receive_message(visibility_timeout=600)
    running.stop()
    running = start(tmp_path / "data")
    queue = QueueClient.from_connection_string(running.connection_string, name)
    properties = queue.get_queue_properties()
    assert (properties.metadata, properties.approximate_message_count) == ({"a": "1"}, 50)
    queue.delete_message(held)
    got = texts(queue.receive_messages(messages_per_page=32, visibility_timeout=600))
    assert got == [str(n) for n in range(1, 50)]
    running.stop()
