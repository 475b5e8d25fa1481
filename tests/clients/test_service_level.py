"""Operations of all services through unmodified client libraries: properties, statistics, account SAS, CORS."""

from datetime import datetime, timedelta, timezone

import pytest
import requests
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.data.tables import TableAnalyticsLogging, TableCorsRule, TableMetrics, TableRetentionPolicy, TableServiceClient
from azure.storage.blob import (
    AccountSasPermissions,
    BlobAnalyticsLogging,
    BlobServiceClient,
    CorsRule,
    Metrics,
    ResourceTypes,
    RetentionPolicy,
    Services,
    StaticWebsite,
    generate_account_sas,
)
from azure.storage.fileshare import CorsRule as FileCorsRule
from azure.storage.fileshare import Metrics as FileMetrics
from azure.storage.fileshare import RetentionPolicy as FileRetentionPolicy
from azure.storage.fileshare import ShareServiceClient
from azure.storage.queue import CorsRule as QueueCorsRule
from azure.storage.queue import Metrics as QueueMetrics
from azure.storage.queue import QueueAnalyticsLogging, QueueServiceClient
from azure.storage.queue import RetentionPolicy as QueueRetentionPolicy

from conftest import ACCOUNT, KEY, SERVICES, start

CLIENTS = {"blob": BlobServiceClient, "queue": QueueServiceClient, "file": ShareServiceClient}


def client(server, service, credential=None):
    if service == "table":
        if credential is None:
            return TableServiceClient.from_connection_string(server.connection_string, retry_total=0)
        named = AzureNamedKeyCredential(ACCOUNT, credential)
        return TableServiceClient(server.endpoints["table"], credential=named, retry_total=0)
    if credential is None:
        return CLIENTS[service].from_connection_string(server.connection_string, retry_total=0)
    return CLIENTS[service](server.endpoints[service], credential=credential, retry_total=0)


def test_blob_properties_are_stored_and_merged(server):
    blob = client(server, "blob")
    rule = CorsRule(["https://example.org"], ["GET", "PUT"], allowed_headers=["x-ms-*"], exposed_headers=["*"], max_age_in_seconds=60)
    blob.set_service_properties(
        analytics_logging=BlobAnalyticsLogging(read=True, retention_policy=RetentionPolicy(enabled=True, days=5)),
        hour_metrics=Metrics(enabled=True, include_apis=True, retention_policy=RetentionPolicy(enabled=True, days=7)),
        cors=[rule],
        delete_retention_policy=RetentionPolicy(enabled=True, days=3),
        static_website=StaticWebsite(enabled=True, index_document="index.html"),
    )
    blob.set_service_properties(minute_metrics=Metrics(enabled=False))
    properties = blob.get_service_properties()
    assert properties["analytics_logging"].read and properties["analytics_logging"].retention_policy.days == 5
    assert properties["hour_metrics"].enabled and properties["hour_metrics"].retention_policy.days == 7
    assert [r.allowed_origins for r in properties["cors"]] == ["https://example.org"]
    assert properties["delete_retention_policy"].days == 3
    assert properties["static_website"].index_document == "index.html"
    blob.set_service_properties(cors=[], delete_retention_policy=RetentionPolicy(enabled=False))
    assert blob.get_service_properties()["cors"] == []


def test_queue_table_and_file_properties_are_stored(server):
    queue = client(server, "queue")
    queue.set_service_properties(
        analytics_logging=QueueAnalyticsLogging(write=True, retention_policy=QueueRetentionPolicy(enabled=True, days=2)),
        hour_metrics=QueueMetrics(enabled=True, include_apis=False, retention_policy=QueueRetentionPolicy(enabled=True, days=2)),
        cors=[QueueCorsRule(["*"], ["GET"])],
    )
    assert queue.get_service_properties()["analytics_logging"].write
    table = client(server, "table")
    table.set_service_properties(
        analytics_logging=TableAnalyticsLogging(delete=True, retention_policy=TableRetentionPolicy(enabled=True, days=4)),
        hour_metrics=TableMetrics(enabled=True, include_apis=True, retention_policy=TableRetentionPolicy(enabled=True, days=4)),
        cors=[TableCorsRule(["https://a.example"], ["MERGE"])],
    )
    assert table.get_service_properties()["hour_metrics"].retention_policy.days == 4
    file = client(server, "file")
    file.set_service_properties(
        hour_metrics=FileMetrics(enabled=True, include_apis=True, retention_policy=FileRetentionPolicy(enabled=True, days=6)),
        cors=[FileCorsRule(["https://f.example"], ["GET"])],
    )
    assert file.get_service_properties()["hour_metrics"].retention_policy.days == 6


def test_bad_properties_are_refused_and_change_nothing(server):
    blob = client(server, "blob")
    before = blob.get_service_properties()["cors"]
    with pytest.raises(HttpResponseError) as refused:
        blob.set_service_properties(cors=[CorsRule(["*"], ["GET"])] * 6)
    assert refused.value.status_code == 400 and refused.value.error_code == "InvalidXmlDocument"
    assert len(blob.get_service_properties()["cors"]) == len(before)


def test_properties_survive_a_restart(tmp_path):
    first = start(tmp_path / "data")
    client(first, "blob").set_service_properties(cors=[CorsRule(["https://kept.example"], ["GET"])])
    first.stop()
    second = start(tmp_path / "data")
    assert client(second, "blob").get_service_properties()["cors"][0].allowed_origins == "https://kept.example"
    second.stop()


def test_account_information_and_statistics_are_returned(server):
    assert client(server, "blob").get_account_information()["account_kind"] == "StorageV2"
    # The Python library cannot address a secondary endpoint in the path, so send plain requests.
    for service in ("blob", "queue"):
        sas = account_sas(AccountSasPermissions(read=True), services=Services(blob=True, queue=True))
        url = f"{server.endpoints[service]}-secondary/?restype=service&comp=stats&{sas}"
        reply = requests.get(url, headers={"x-ms-version": "2021-12-02"}, timeout=10)
        assert reply.status_code == 200 and "<Status>live</Status>" in reply.text, service


@pytest.mark.parametrize("service", SERVICES)
def test_a_wrong_key_is_refused(server, service):
    wrong = "d3Jvbmcga2V5" + KEY[12:]
    with pytest.raises(ClientAuthenticationError) as refused:
        client(server, service, credential=wrong).get_service_properties()
    assert refused.value.status_code == 403
    assert refused.value.error_code == "AuthenticationFailed"


def account_sas(permission, expiry=timedelta(hours=1), **options):
    now = datetime.now(timezone.utc)
    return generate_account_sas(ACCOUNT, KEY, ResourceTypes(service=True), permission, now + expiry, **options)


def test_an_account_sas_reaches_what_it_names_and_nothing_else(server):
    reader = client(server, "blob", credential=account_sas(AccountSasPermissions(read=True)))
    reader.get_service_properties()
    cases = [
        (account_sas(AccountSasPermissions(read=True)), "write", "AuthorizationPermissionMismatch"),
        (account_sas(AccountSasPermissions(read=True), expiry=timedelta(hours=-1)), "read", "AuthenticationFailed"),
        (account_sas(AccountSasPermissions(read=True), protocol="https"), "read", "AuthorizationProtocolMismatch"),
        (account_sas(AccountSasPermissions(read=True), ip="10.1.2.3"), "read", "AuthorizationSourceIPMismatch"),
    ]
    for sas, what, code in cases:
        caller = client(server, "blob", credential=sas)
        with pytest.raises(HttpResponseError) as refused:
            caller.get_service_properties() if what == "read" else caller.set_service_properties(cors=[])
        assert (refused.value.status_code, refused.value.error_code) == (403, code)


def test_a_request_without_credentials_is_challenged(server):
    reply = requests.get(
        server.endpoints["blob"] + "/?restype=service&comp=properties", headers={"x-ms-version": "2021-12-02"}, timeout=10
    )
    assert reply.status_code == 401 and reply.headers["x-ms-error-code"] == "NoAuthenticationInformation"
    assert reply.headers["WWW-Authenticate"].startswith("Bearer authorization_uri=")
    assert reply.headers["x-ms-request-id"] and reply.headers["x-ms-version"] == "2021-12-02"


def test_cors_preflight_follows_the_rules(server):
    client(server, "blob").set_service_properties(
        cors=[CorsRule(["https://example.org"], ["PUT"], allowed_headers=["x-ms-*"], max_age_in_seconds=77)]
    )
    url = server.endpoints["blob"] + "/container/blob"
    ask = {"Origin": "https://example.org", "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "x-ms-date"}
    allowed = requests.options(url, headers=ask, timeout=10)
    assert allowed.status_code == 200 and allowed.headers["Access-Control-Max-Age"] == "77"
    refused = requests.options(url, headers=ask | {"Origin": "https://evil.example"}, timeout=10)
    assert refused.status_code == 403 and refused.headers["x-ms-error-code"] == "CorsPreflightFailure"
    assert requests.options(url, timeout=10).status_code == 400


def test_the_console_port_serves_health_and_metrics(server):
    assert requests.get(server.console + "/healthz", timeout=10).status_code == 200
    assert requests.get(server.console + "/readyz", timeout=10).status_code == 200
    assert "lazuli_" in requests.get(server.console + "/metrics", timeout=10).text
