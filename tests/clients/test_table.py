"""The table service through the unmodified Python library."""

import threading
from datetime import datetime, timedelta, timezone
from uuid import UUID, uuid4

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.data.tables import (
    AccountSasPermissions,
    EdmType,
    EntityProperty,
    ResourceTypes,
    TableAccessPolicy,
    TableAnalyticsLogging,
    TableClient,
    TableCorsRule,
    TableMetrics,
    TableRetentionPolicy,
    TableSasPermissions,
    TableServiceClient,
    TableTransactionError,
    UpdateMode,
    generate_account_sas,
    generate_table_sas,
)
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.storage.blob import BlobServiceClient

from conftest import ACCOUNT, KEY

CREDENTIAL = AzureNamedKeyCredential(ACCOUNT, KEY)


@pytest.fixture(scope="module")
def service(server):
    return TableServiceClient.from_connection_string(server.connection_string, retry_total=0)


@pytest.fixture
def table(service):
    client = service.create_table(f"t{uuid4().hex[:20]}")
    yield client
    service.delete_table(client.table_name)


def code(caught):
    error = caught.value
    return error.status_code, error.response.headers.get("x-ms-error-code")


def customer(row="1", **properties):
    return {"PartitionKey": "customers", "RowKey": row, **properties}


# Tables


def test_tables_are_created_listed_and_deleted(service):
    names = [f"list{letter}{uuid4().hex[:8]}" for letter in "abc"]
    for name in names:
        service.create_table(name)
    with pytest.raises(ResourceExistsError) as caught:
        service.create_table(names[0].upper())
    assert code(caught) == (409, "TableAlreadyExists")
    assert service.create_table_if_not_exists(names[0]).table_name == names[0]
    found = [table.name for table in service.query_tables("TableName ge 'lista' and TableName lt 'listd'")]
    assert [name for name in found if name in names] == names
    pages = service.query_tables("TableName ge 'lista' and TableName lt 'listd'", results_per_page=1).by_page()
    assert all(len(list(page)) <= 1 for page in pages)
    assert set(names) <= {table.name for table in service.list_tables()}
    for name in names:
        service.delete_table(name)
    assert not set(names) & {table.name for table in service.list_tables()}


def test_a_table_in_use_reports_what_is_missing(service):
    client = service.get_table_client("nosuchtable")
    with pytest.raises(ResourceNotFoundError) as caught:
        client.create_entity(customer())
    assert code(caught) == (404, "TableNotFound")


def test_service_properties_are_kept(service):
    rule = TableCorsRule(["http://www.example.com"], ["GET", "PUT"], max_age_in_seconds=60)
    service.set_service_properties(
        analytics_logging=TableAnalyticsLogging(read=True, retention_policy=TableRetentionPolicy(enabled=True, days=5)),
        hour_metrics=TableMetrics(enabled=True, include_apis=True),
        cors=[rule],
    )
    found = service.get_service_properties()
    assert found["cors"][0].allowed_origins == ["http://www.example.com"]
    assert found["hour_metrics"].enabled
    service.set_service_properties(cors=[])


# Entities


def test_every_type_comes_back_as_it_was_sent(table):
    sent = customer(
        Text="Grüße 😀 \"quoted\" <tag> \\ \n",
        Empty="",
        Yes=True,
        Number=5,
        Long=EntityProperty(2**62, EdmType.INT64),
        Small=EntityProperty(-5, EdmType.INT64),
        Ratio=4.25,
        Whole=5.0,
        Tiny=5e-324,
        Infinite=float("inf"),
        MinusInfinite=float("-inf"),
        When=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc),
        Id=UUID("c9da6455-213d-42c9-9a79-3e9149a57833"),
        Data=bytes(range(256)),
        Nothing=None,
    )
    table.create_entity(sent)
    got = table.get_entity("customers", "1")
    for name, value in sent.items():
        if name == "Nothing":
            assert name not in got
        elif isinstance(value, EntityProperty):
            assert (got[name].value, got[name].edm_type) == (value.value, EdmType.INT64)
        else:
            assert got[name] == value, name
            assert type(got[name]) is type(value) or name == "When"
    table.create_entity(customer("2", Ratio=float("nan")))
    assert table.get_entity("customers", "2")["Ratio"] != table.get_entity("customers", "2")["Ratio"]


def test_ticks_of_100_ns_survive(table):
    stamp = "2013-08-02T17:37:43.9004348Z"
    table.create_entity(customer(When=EntityProperty(stamp, EdmType.DATETIME)))
    when = table.get_entity("customers", "1")["When"]
    assert when.tables_service_value == stamp


def test_keys_may_contain_almost_any_character(table):
    for partition, row in [("", ""), ("it's", "a''b"), ("a b+c%", "&=;@"), ("ünï", "日本😀"), ("(x)", ",y=")]:
        table.create_entity({"PartitionKey": partition, "RowKey": row, "A": 1})
        assert table.get_entity(partition, row)["A"] == 1
        table.upsert_entity({"PartitionKey": partition, "RowKey": row, "A": 2})
        found = list(table.query_entities("PartitionKey eq @p and RowKey eq @r", parameters={"p": partition, "r": row}))
        assert [entity["A"] for entity in found] == [2]
        table.delete_entity(partition, row)
    for key in ["a/b", "a\\b", "a#b", "a?b", "\t"]:
        with pytest.raises(HttpResponseError) as caught:
            table.create_entity({"PartitionKey": key, "RowKey": "r"})
        assert caught.value.status_code == 400


def test_update_and_merge_follow_their_tags(table):
    first = table.create_entity(customer(Email="a@example.com", Phone="1"))
    entity = customer(Email="b@example.com")
    second = table.update_entity(
        entity, UpdateMode.MERGE, etag=first["etag"], match_condition=MatchConditions.IfNotModified
    )
    assert table.get_entity("customers", "1")["Phone"] == "1"
    with pytest.raises(HttpResponseError) as caught:
        table.update_entity(
            entity, UpdateMode.REPLACE, etag=first["etag"], match_condition=MatchConditions.IfNotModified
        )
    assert code(caught) == (412, "UpdateConditionNotSatisfied")
    table.update_entity(entity, UpdateMode.REPLACE, etag=second["etag"], match_condition=MatchConditions.IfNotModified)
    assert "Phone" not in table.get_entity("customers", "1")
    with pytest.raises(ResourceNotFoundError) as caught:
        table.update_entity(customer("nobody"), UpdateMode.MERGE)
    assert code(caught) == (404, "ResourceNotFound")
    table.upsert_entity(customer("new", A=1), UpdateMode.MERGE)
    table.upsert_entity(customer("new", B=1), UpdateMode.REPLACE)
    assert "A" not in table.get_entity("customers", "new")


def test_article_optimistic_a_stale_replace_fails_and_a_star_replaces(table):
    table.create_entity(customer(Email="first@example.com"))
    ours, theirs = table.get_entity("customers", "1"), table.get_entity("customers", "1")
    theirs["Email"] = "theirs@example.com"
    table.update_entity(theirs, UpdateMode.REPLACE, etag=theirs.metadata["etag"], match_condition=MatchConditions.IfNotModified)
    ours["Email"] = "ours@example.com"
    with pytest.raises(HttpResponseError) as caught:
        table.update_entity(ours, UpdateMode.REPLACE, etag=ours.metadata["etag"], match_condition=MatchConditions.IfNotModified)
    assert code(caught) == (412, "UpdateConditionNotSatisfied")
    table.update_entity(ours, UpdateMode.REPLACE)
    assert table.get_entity("customers", "1")["Email"] == "ours@example.com"


def test_article_pessimistic_a_lease_on_a_blob_guards_entities(server, table):
    blobs = BlobServiceClient.from_connection_string(server.connection_string, retry_total=0)
    container = blobs.create_container(f"locks-{uuid4().hex[:12]}")
    lock = container.upload_blob("customers", b"")
    table.create_entity(customer(Counter=0))
    holders, most = [], []

    def count():
        for _ in range(5):
            while True:
                try:
                    lease = lock.acquire_lease(15)
                    break
                except HttpResponseError as error:
                    assert error.error_code == "LeaseAlreadyPresent"
            holders.append(1)
            most.append(len(holders))
            entity = table.get_entity("customers", "1")
            entity["Counter"] += 1
            table.update_entity(entity, UpdateMode.REPLACE)
            holders.pop()
            lease.release()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.get_entity("customers", "1")["Counter"] == 20
    assert max(most) == 1


def test_a_delete_with_a_stale_tag_is_refused(table):
    first = table.create_entity(customer(A=1))
    table.upsert_entity(customer(A=2))
    with pytest.raises(HttpResponseError) as caught:
        table.delete_entity(customer(), etag=first["etag"], match_condition=MatchConditions.IfNotModified)
    assert code(caught) == (412, "UpdateConditionNotSatisfied")
    table.delete_entity("customers", "1")
    with pytest.raises(ResourceNotFoundError) as caught:
        table.get_entity("customers", "1")
    assert code(caught) == (404, "ResourceNotFound")


# Queries


@pytest.fixture(scope="module")
def filled(service):
    client = service.create_table(f"q{uuid4().hex[:20]}")
    for partition in range(3):
        operations = [
            (
                "create",
                {
                    "PartitionKey": f"p{partition}",
                    "RowKey": f"{row:03}",
                    "Number": row,
                    "Long": EntityProperty(row * 2**33, EdmType.INT64),
                    "Ratio": row / 4,
                    "Text": f"text {row % 7}",
                    "Even": row % 2 == 0,
                    "When": datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(days=row),
                    "Id": UUID(int=row),
                    "Data": bytes([row]),
                },
            )
            for row in range(100)
        ]
        client.submit_transaction(operations)
    yield client
    service.delete_table(client.table_name)


@pytest.mark.parametrize(
    ("filter", "parameters", "expected"),
    [
        ("Number lt 5", {}, lambda row: row < 5),
        ("Number ge 95 or Number eq 3", {}, lambda row: row >= 95 or row == 3),
        ("not (Number ge 5)", {}, lambda row: row < 5),
        ("Even and Number lt 10", {}, lambda row: row % 2 == 0 and row < 10),
        ("Even eq false and Number le 9", {}, lambda row: row % 2 == 1 and row <= 9),
        ("Text eq 'text 3' and Number lt 20", {}, lambda row: row % 7 == 3 and row < 20),
        ("Ratio gt 24.0", {}, lambda row: row / 4 > 24),
        ("Ratio eq 2", {}, lambda row: row == 8),
        ("Long ge @long", {"long": 97 * 2**33}, lambda row: row >= 97),
        ("When lt @when", {"when": datetime(2026, 1, 4, tzinfo=timezone.utc)}, lambda row: row < 3),
        ("Id eq @id", {"id": UUID(int=42)}, lambda row: row == 42),
        ("Data eq @data", {"data": bytes([42])}, lambda row: row == 42),
        ("RowKey ge '010' and RowKey lt '020'", {}, lambda row: 10 <= row < 20),
        ("PartitionKey eq 'p1' and (Number eq 1 or Number eq 2)", {}, None),
        ("Number ne 0 and Number lt 3", {}, lambda row: 0 < row < 3),
    ],
)
def test_filters_find_the_matching_entities(filled, filter, parameters, expected):
    found = [(entity["PartitionKey"], entity["Number"]) for entity in filled.query_entities(filter, parameters=parameters)]
    if expected is None:
        assert found == [("p1", 1), ("p1", 2)]
    else:
        assert found == [(f"p{p}", row) for p in range(3) for row in range(100) if expected(row)]


def test_pages_contain_every_entity_once(filled):
    pages = [list(page) for page in filled.list_entities(results_per_page=37).by_page()]
    assert all(len(page) <= 37 for page in pages)
    keys = [(entity["PartitionKey"], entity["RowKey"]) for page in pages for entity in page]
    assert keys == [(f"p{p}", f"{row:03}") for p in range(3) for row in range(100)]


def test_select_returns_the_selected_properties(filled):
    entity = next(iter(filled.query_entities("PartitionKey eq 'p0'", select=["Number", "RowKey"])))
    assert dict(entity) == {"RowKey": "000", "Number": 0}
    entity = filled.get_entity("p0", "001", select=["Text"])
    assert dict(entity) == {"Text": "text 1"}


def test_every_queried_entity_has_its_tag(filled):
    for entity in filled.query_entities("PartitionKey eq 'p2'"):
        assert entity.metadata["etag"].startswith("W/\"datetime'")
        assert entity.metadata["timestamp"] is not None


@pytest.mark.parametrize("filter", ["Number eq", "(Number eq 1", "Number zz 1", "'a", "Number eq 1 and", "datetime'x' eq When"])
def test_malformed_filters_are_refused(filled, filter):
    with pytest.raises(HttpResponseError) as caught:
        list(filled.query_entities(filter))
    assert code(caught) == (400, "InvalidInput")


# Transactions


def test_a_transaction_contains_every_kind_of_operation(table):
    for row in "abcde":
        table.create_entity(customer(row, A=1))
    etag = table.get_entity("customers", "b").metadata["etag"]
    results = table.submit_transaction(
        [
            ("create", customer("new", A=1)),
            ("update", customer("a", B=2), {"mode": UpdateMode.MERGE}),
            ("update", customer("b", B=2), {"mode": UpdateMode.REPLACE, "etag": etag, "match_condition": MatchConditions.IfNotModified}),
            ("upsert", customer("c", B=2), {"mode": UpdateMode.MERGE}),
            ("upsert", customer("fresh", B=2)),
            ("delete", customer("d")),
        ]
    )
    assert len(results) == 6 and all("etag" in result for result in results[:5])
    found = {entity["RowKey"]: {k: v for k, v in entity.items() if k in "AB"} for entity in table.list_entities()}
    assert found == {
        "a": {"A": 1, "B": 2}, "b": {"B": 2}, "c": {"A": 1, "B": 2}, "e": {"A": 1}, "fresh": {"B": 2}, "new": {"A": 1},
    }


def test_a_failed_transaction_changes_nothing_and_names_the_operation(table):
    table.create_entity(customer("there"))
    operations = [("create", customer(f"{i}")) for i in range(5)] + [("create", customer("there"))]
    with pytest.raises(TableTransactionError) as caught:
        table.submit_transaction(operations)
    assert (caught.value.status_code, caught.value.error_code) == (409, "EntityAlreadyExists")
    assert caught.value.index == 5
    assert [entity["RowKey"] for entity in table.list_entities()] == ["there"]


def test_a_transaction_has_at_most_100_operations(table):
    table.submit_transaction([("create", customer(f"{i:03}")) for i in range(100)])
    assert len(list(table.list_entities())) == 100
    with pytest.raises(HttpResponseError) as caught:
        table.submit_transaction([("upsert", customer(f"{i:03}")) for i in range(101)])
    assert caught.value.status_code == 400


# Shared access signatures


def soon():
    return datetime.now(timezone.utc) + timedelta(hours=1)


def with_sas(server, table, sas):
    return TableClient(server.endpoints["table"], table.table_name, credential=AzureSasCredential(sas), retry_total=0)


def test_a_table_signature_allows_what_it_grants(server, table):
    table.create_entity(customer("1"))
    sas = generate_table_sas(CREDENTIAL, table.table_name, permission=TableSasPermissions(read=True), expiry=soon())
    reader = with_sas(server, table, sas)
    assert len(list(reader.list_entities())) == 1
    with pytest.raises(HttpResponseError) as caught:
        reader.create_entity(customer("2"))
    assert code(caught) == (403, "AuthorizationPermissionMismatch")
    sas = generate_table_sas(
        CREDENTIAL, table.table_name, permission=TableSasPermissions(add=True, update=True, delete=True), expiry=soon()
    )
    writer = with_sas(server, table, sas)
    writer.upsert_entity(customer("2"))
    writer.submit_transaction([("create", customer("3")), ("delete", customer("2"))])
    with pytest.raises(HttpResponseError) as caught:
        writer.get_entity("customers", "1")
    assert caught.value.status_code == 403


def test_a_signature_is_limited_to_its_range_of_keys(server, table):
    for partition in "abc":
        for row in "123":
            table.create_entity({"PartitionKey": partition, "RowKey": row})
    permission = TableSasPermissions(read=True, add=True, update=True, delete=True)
    sas = generate_table_sas(
        CREDENTIAL, table.table_name, permission=permission, expiry=soon(), start_pk="a", start_rk="2", end_pk="b", end_rk="2"
    )
    client = with_sas(server, table, sas)
    found = [(entity["PartitionKey"], entity["RowKey"]) for entity in client.list_entities()]
    assert found == [("a", "2"), ("a", "3"), ("b", "1"), ("b", "2")]
    client.upsert_entity({"PartitionKey": "b", "RowKey": "2", "A": 1})
    with pytest.raises(HttpResponseError) as caught:
        client.upsert_entity({"PartitionKey": "b", "RowKey": "3", "A": 1})
    assert caught.value.status_code == 403


def test_a_stored_policy_can_be_revoked(server, table):
    policy = TableAccessPolicy(permission="r", expiry=soon(), start=datetime.now(timezone.utc) - timedelta(hours=1))
    table.set_table_access_policy({"readers": policy})
    assert table.get_table_access_policy()["readers"].permission == "r"
    client = with_sas(server, table, generate_table_sas(CREDENTIAL, table.table_name, policy_id="readers"))
    assert list(client.list_entities()) == []
    table.set_table_access_policy({})
    with pytest.raises(HttpResponseError) as caught:
        list(client.list_entities())
    assert caught.value.status_code == 403


def test_an_account_signature_allows_what_it_grants(server, table):
    sas = generate_account_sas(
        CREDENTIAL,
        resource_types=ResourceTypes(service=True, container=True, object=True),
        permission=AccountSasPermissions(read=True, list=True, write=True, add=True, update=True, create=True),
        expiry=soon(),
    )
    service = TableServiceClient(server.endpoints["table"], credential=AzureSasCredential(sas), retry_total=0)
    assert table.table_name in [found.name for found in service.list_tables()]
    client = service.get_table_client(table.table_name)
    client.create_entity(customer())
    with pytest.raises(HttpResponseError) as caught:
        client.delete_entity("customers", "1")
    assert caught.value.status_code == 403


# Races


def test_no_update_is_lost_between_clients_that_check_their_tags(server, table):
    table.create_entity(customer(Counter=0))

    def count():
        client = TableClient.from_connection_string(server.connection_string, table.table_name, retry_total=0)
        done = 0
        while done < 5:
            entity = client.get_entity("customers", "1")
            entity["Counter"] += 1
            try:
                client.update_entity(
                    entity, UpdateMode.REPLACE, etag=entity.metadata["etag"], match_condition=MatchConditions.IfNotModified
                )
                done += 1
            except HttpResponseError as error:
                assert error.error_code == "UpdateConditionNotSatisfied"

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.get_entity("customers", "1")["Counter"] == 40
