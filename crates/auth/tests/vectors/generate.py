"""Makes the signed requests and tokens in this directory with the public Python SDKs and with plain hmac.

    pip install azure-storage-blob azure-storage-queue azure-storage-file-share azure-data-tables cryptography
    python generate.py

Nothing is sent anywhere. The keys are made for these tests only. Requests carry the date on which they were made.
"""

import base64
import hashlib
import hmac
import json
from datetime import datetime, timezone
from urllib.parse import urlsplit

from azure.core.credentials import AzureNamedKeyCredential
from azure.core.pipeline.transport import HttpTransport
from azure.data.tables import TableServiceClient, generate_account_sas as table_account_sas, generate_table_sas
from azure.data.tables import AccountSasPermissions as TableAccountPermissions, ResourceTypes as TableResourceTypes
from azure.data.tables import TableSasPermissions, UpdateMode
from azure.storage.blob import (AccountSasPermissions, BlobSasPermissions, BlobServiceClient, ContainerSasPermissions,
                                ContentSettings, ResourceTypes, generate_account_sas, generate_blob_sas,
                                generate_container_sas)
from azure.storage.blob._shared.models import Services, UserDelegationKey
from azure.storage.fileshare import (FileSasPermissions, ShareSasPermissions, ShareServiceClient, generate_file_sas,
                                     generate_share_sas)
from azure.storage.queue import QueueSasPermissions, QueueServiceClient, generate_queue_sas
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(bytes(range(64))).decode()
NOW = datetime(2026, 5, 20, 12, 0, 0, tzinfo=timezone.utc)
START = datetime(2026, 5, 20, 11, 0, 0, tzinfo=timezone.utc)
END = datetime(2026, 5, 20, 13, 0, 0, tzinfo=timezone.utc)
HTTP_DATE = "Wed, 20 May 2026 12:00:00 GMT"


class Captured(Exception):
    pass


class Recorder(HttpTransport):
    """Keeps the request that would have been sent."""

    def open(self): pass
    def close(self): pass
    def __enter__(self): return self
    def __exit__(self, *args): pass

    def send(self, request, **kwargs):
        self.request = request
        raise Captured()


def captured(call, client_of):
    transport = Recorder()
    try:
        call(client_of(transport))
    except Captured:
        pass
    request = transport.request
    url = urlsplit(request.url)
    headers = {name: value for name, value in request.headers.items() if name not in ("User-Agent", "Accept")}
    return {"method": request.method, "path": url.path, "query": url.query, "headers": headers}


def shared_key_requests():
    path_style = {s: f"http://127.0.0.1:1000{i}/{ACCOUNT}" for i, s in enumerate(["blob", "queue", "table", "file"])}
    host_style = {s: f"https://{ACCOUNT}.{s}.core.windows.net" for s in ["blob", "queue", "table", "file"]}
    named = AzureNamedKeyCredential(ACCOUNT, KEY)
    clients = {
        "blob": lambda url: lambda t: BlobServiceClient(url, credential=KEY if "core.win" in url else named, transport=t),
        "queue": lambda url: lambda t: QueueServiceClient(url, credential=named, transport=t),
        "file": lambda url: lambda t: ShareServiceClient(url, credential=named, transport=t),
        "table": lambda url: lambda t: TableServiceClient(url, credential=named, transport=t),
    }
    metadata = {"a_b": "1", "a-b": "2", "ab": "3", "a1": "four  spaces "}
    calls = [
        ("blob", "ListContainers", lambda c: next(iter(c.list_containers(name_starts_with="a b", include_metadata=True)))),
        ("blob", "CreateContainer", lambda c: c.create_container("con")),
        ("blob", "PutBlob", lambda c: c.get_blob_client("con", "sp ace/ü+%.txt").upload_blob(
            b"hello", metadata=metadata, content_settings=ContentSettings(content_type="text/plain"))),
        ("blob", "PutBlob", lambda c: c.get_blob_client("con", "empty").upload_blob(b"")),
        ("blob", "GetBlob", lambda c: c.get_blob_client("con", "b").download_blob(offset=10, length=5)),
        ("blob", "GetBlobProperties", lambda c: c.get_blob_client("con", "b").get_blob_properties(etag='"0x1"', match_condition=_if_match())),
        ("blob", "SetBlobMetadata", lambda c: c.get_blob_client("con", "b").set_blob_metadata(metadata)),
        ("queue", "ListQueues", lambda c: next(iter(c.list_queues()))),
        ("queue", "PutMessage", lambda c: c.get_queue_client("q").send_message("hello", visibility_timeout=5)),
        ("queue", "GetQueueAcl", lambda c: c.get_queue_client("q").get_queue_access_policy()),
        ("file", "CreateShare", lambda c: c.get_share_client("s").create_share(quota=5)),
        ("file", "CreateFile", lambda c: c.get_share_client("s").get_file_client("d/f x").create_file(1024)),
        ("table", "CreateTable", lambda c: c.create_table("tab")),
        ("table", "QueryTables", lambda c: next(iter(c.query_tables("TableName eq 'x y'")))),
        ("table", "InsertEntity", lambda c: c.get_table_client("tab").create_entity({"PartitionKey": "p", "RowKey": "r"})),
        ("table", "MergeEntity", lambda c: c.get_table_client("tab").update_entity(
            {"PartitionKey": "p'q", "RowKey": "r/s"}, mode=UpdateMode.MERGE)),
        ("table", "GetTableAcl", lambda c: c.get_table_client("tab").get_table_access_policy()),
    ]
    for service, operation, call in calls:
        for style in (path_style, host_style):
            request = captured(call, clients[service](style[service]))
            yield {"service": service, "operation": operation, **request}


def _if_match():
    from azure.core import MatchConditions
    return MatchConditions.IfNotModified


def sign(key, text):
    return base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()


def hand_signed():
    """Requests of schemes and versions that the SDKs no longer make, signed over strings written out here."""
    rows = [
        ("blob", "ListContainers", "SharedKeyLite", "GET", "/", "comp=list&prefix=x", "2015-12-11", {},
         f"GET\n\n\n\nx-ms-date:{HTTP_DATE}\nx-ms-version:2015-12-11\n/{ACCOUNT}/?comp=list"),
        ("blob", "GetBlob", "SharedKeyLite", "GET", f"/{ACCOUNT}/c/b", "", "2021-12-02", {"Content-Type": "text/plain", "Content-MD5": "q"},
         f"GET\nq\ntext/plain\n\nx-ms-date:{HTTP_DATE}\nx-ms-version:2021-12-02\n/{ACCOUNT}/{ACCOUNT}/c/b"),
        ("table", "QueryEntities", "SharedKeyLite", "GET", "/t()", "$top=1", "2019-02-02", {},
         f"{HTTP_DATE}\n/{ACCOUNT}/t()"),
        ("table", "GetTableAcl", "SharedKeyLite", "GET", "/t", "comp=acl", "2019-02-02", {},
         f"{HTTP_DATE}\n/{ACCOUNT}/t?comp=acl"),
        ("blob", "CreateContainer", "SharedKey", "PUT", "/c", "restype=container", "2014-02-14", {"Content-Length": "0"},
         f"PUT\n\n\n0\n\n\n\n\n\n\n\n\nx-ms-date:{HTTP_DATE}\nx-ms-version:2014-02-14\n/{ACCOUNT}/c\nrestype:container"),
        ("blob", "CreateContainer", "SharedKey", "PUT", "/c", "restype=container", "2015-02-21", {"Content-Length": "0"},
         f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{HTTP_DATE}\nx-ms-version:2015-02-21\n/{ACCOUNT}/c\nrestype:container"),
        ("blob", "SetBlobMetadata", "SharedKey", "PUT", "/c/b", "comp=metadata", "2015-12-11", {"x-ms-meta-empty": ""},
         f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{HTTP_DATE}\nx-ms-version:2015-12-11\n/{ACCOUNT}/c/b\ncomp:metadata"),
        ("blob", "SetBlobMetadata", "SharedKey", "PUT", "/c/b", "comp=metadata", "2016-05-31", {"x-ms-meta-empty": ""},
         f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{HTTP_DATE}\nx-ms-meta-empty:\nx-ms-version:2016-05-31\n/{ACCOUNT}/c/b\ncomp:metadata"),
        # The ordinal order of older clients.
        ("blob", "SetBlobMetadata", "SharedKey", "PUT", "/c/b", "comp=metadata", "2021-12-02", {"x-ms-meta-a-b": "1", "x-ms-meta-a_b": "2", "x-ms-meta-ab": "3"},
         f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{HTTP_DATE}\nx-ms-meta-a-b:1\nx-ms-meta-a_b:2\nx-ms-meta-ab:3\nx-ms-version:2021-12-02\n/{ACCOUNT}/c/b\ncomp:metadata"),
        # Every standard header, and repeated parameters.
        ("blob", "ListBlobs", "SharedKey", "GET", "/c", "restype=container&include=snapshots&comp=list&include=metadata&Prefix=%C3%BC%2F", "2021-12-02",
         {"Content-Encoding": "e", "Content-Language": "l", "Content-Length": "5", "Content-MD5": "m", "Content-Type": "t", "If-Modified-Since": "ims",
          "If-Match": "im", "If-None-Match": "inm", "If-Unmodified-Since": "ius", "Range": "bytes=0-1"},
         f"GET\ne\nl\n5\nm\nt\n\nims\nim\ninm\nius\nbytes=0-1\nx-ms-date:{HTTP_DATE}\nx-ms-version:2021-12-02\n/{ACCOUNT}/c\ncomp:list\ninclude:metadata,snapshots\nprefix:ü/\nrestype:container"),
        # Secondary endpoints in path style: signed as sent, and without the suffix.
        ("blob", "GetBlob", "SharedKey", "GET", f"/{ACCOUNT}-secondary/c/b", "", "2021-12-02", {},
         f"GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{HTTP_DATE}\nx-ms-version:2021-12-02\n/{ACCOUNT}/{ACCOUNT}-secondary/c/b"),
        ("blob", "GetBlob", "SharedKey", "GET", f"/{ACCOUNT}-secondary/c/b", "", "2021-12-02", {},
         f"GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{HTTP_DATE}\nx-ms-version:2021-12-02\n/{ACCOUNT}/{ACCOUNT}/c/b"),
    ]
    for service, operation, scheme, method, path, query, version, headers, text in rows:
        headers = {**headers, "x-ms-date": HTTP_DATE, "x-ms-version": version,
                   "Authorization": f"{scheme} {ACCOUNT}:{sign(KEY, text)}"}
        yield {"service": service, "operation": operation, "method": method, "path": path, "query": query, "headers": headers}
    # Date instead of x-ms-date.
    text = f"GET\n\n\n\n\n\n{HTTP_DATE}\n\n\n\n\n\nx-ms-version:2021-12-02\n/{ACCOUNT}/c/b"
    yield {"service": "blob", "operation": "GetBlob", "method": "GET", "path": "/c/b", "query": "",
           "headers": {"Date": HTTP_DATE, "x-ms-version": "2021-12-02", "Authorization": f"SharedKey {ACCOUNT}:{sign(KEY, text)}"}}


SECRET = bytes([7] * 32)
OID = "11111111-2222-3333-4444-555555555555"
TID = "66666666-7777-8888-9999-000000000000"


def delegation_key(service="b", version="2021-12-02", account=ACCOUNT):
    """A user delegation key as the server derives it."""
    key = UserDelegationKey()
    key.signed_oid, key.signed_tid = OID, TID
    key.signed_start, key.signed_expiry = "2026-05-20T00:00:00Z", "2026-05-21T00:00:00Z"
    key.signed_service, key.signed_version = service, version
    key.signed_delegated_user_tid = None
    fields = ["lazuli user delegation key 1", account, OID, TID, key.signed_start, key.signed_expiry, service, version, ""]
    message = "".join(f"{len(f)}:{f}\n" for f in fields)
    key.value = base64.b64encode(hmac.new(SECRET, message.encode(), hashlib.sha256).digest()).decode()
    return key


def signatures():
    def row(name, service, operation, container, obj, sas, query="", **extra):
        return {"name": name, "service": service, "operation": operation, "container": container, "object": obj,
                "query": "&".join(filter(None, [query, sas])), **extra}

    times = {"expiry": END, "start": START}
    everything = AccountSasPermissions.from_string("rwdxylacupfti")
    account = generate_account_sas(ACCOUNT, KEY, ResourceTypes.from_string("sco"), everything, END, START, ip="10.0.0.1-10.0.0.9",
                                   protocol="https,http", services=Services.from_string("bqtf"))
    for service, operation in [("blob", "ListContainers"), ("blob", "PutBlob"), ("queue", "PutMessage"), ("file", "CreateShare"), ("table", "InsertEntity")]:
        yield row(f"account {service}", service, operation, "c", "o", account)
    scope = generate_account_sas(ACCOUNT, KEY, ResourceTypes.from_string("o"), AccountSasPermissions(read=True), END, encryption_scope="scope-1")
    yield row("account with encryption scope", "blob", "GetBlob", "c", "o", scope, scope="scope-1")
    tables = table_account_sas(AzureNamedKeyCredential(ACCOUNT, KEY), TableResourceTypes(object=True), TableAccountPermissions(read=True), END)
    yield row("account by the table SDK", "table", "QueryEntities", "t", "(PartitionKey='p',RowKey='r')", tables)

    blob = {"account_name": ACCOUNT, "account_key": KEY, **times}
    yield row("blob", "blob", "GetBlob", "c", "d/ü x.txt", generate_blob_sas(container_name="c", blob_name="d/ü x.txt", permission=BlobSasPermissions(read=True), **blob))
    yield row("blob with everything", "blob", "GetBlob", "c", "o", generate_blob_sas(
        container_name="c", blob_name="o", permission=BlobSasPermissions.from_string("racwdxyltmei"), ip="10.0.0.1", protocol="https,http",
        cache_control="no-cache", content_disposition="attachment; filename=\"a b\"", content_encoding="gzip", content_language="de",
        content_type="text/plain", encryption_scope="scope-1", **blob), scope="scope-1",
        response_headers=[["cache-control", "no-cache"], ["content-disposition", "attachment; filename=\"a b\""],
                          ["content-encoding", "gzip"], ["content-language", "de"], ["content-type", "text/plain"]])
    snapshot = "2026-05-01T00:00:00.0000000Z"
    yield row("snapshot", "blob", "GetBlob", "c", "o", generate_blob_sas(container_name="c", blob_name="o", snapshot=snapshot, permission="r", **blob), f"snapshot={snapshot}")
    yield row("version", "blob", "GetBlob", "c", "o", generate_blob_sas(container_name="c", blob_name="o", version_id=snapshot, permission="r", **blob), f"versionid={snapshot}")
    container = generate_container_sas(container_name="c", permission=ContainerSasPermissions.from_string("racwdxyltfmei"), **blob)
    for operation, obj in [("ListBlobs", ""), ("GetBlob", "a/b"), ("PutBlob", "x")]:
        yield row(f"container {operation}", "blob", operation, "c", obj, container)
    yield row("root container", "blob", "GetBlob", "$root", "o", generate_blob_sas(container_name="$root", blob_name="o", permission="r", **blob))
    yield row("container with policy", "blob", "GetBlob", "c", "o", generate_container_sas(ACCOUNT, "c", account_key=KEY, policy_id="policy"), policy=True)
    yield row("user delegation", "blob", "GetBlob", "c", "o", generate_blob_sas(
        account_name=ACCOUNT, container_name="c", blob_name="o", permission="rw", user_delegation_key=delegation_key(), **times), delegated=True)
    yield row("user delegation of a container", "blob", "ListBlobs", "c", "", generate_container_sas(
        account_name=ACCOUNT, container_name="c", permission="rl", user_delegation_key=delegation_key(), **times), delegated=True)
    yield row("user delegation with the key of another service", "blob", "GetBlob", "c", "o", generate_blob_sas(
        account_name=ACCOUNT, container_name="c", blob_name="o", permission="r", user_delegation_key=delegation_key("q"), **times),
        delegated=True, refused=True)
    bound = generate_blob_sas(
        account_name=ACCOUNT, container_name="c", blob_name="o", permission="rw", user_delegation_key=delegation_key(),
        request_headers={"x-ms-meta-a": "1"}, request_query_params={"comp": "metadata"}, **times)
    yield row("user delegation bound to headers", "blob", "SetBlobMetadata", "c", "o", bound, "comp=metadata", delegated=True, headers={"x-ms-meta-a": "1"})

    share = {"account_name": ACCOUNT, "account_key": KEY, **times}
    yield row("share", "file", "ListDirectoriesAndFiles", "s", "d", generate_share_sas(share_name="s", permission=ShareSasPermissions.from_string("rcwdl"), **share))
    yield row("file", "file", "GetFile", "s", "d/e/f x", generate_file_sas(
        share_name="s", file_path=["d", "e", "f x"], permission=FileSasPermissions.from_string("rcwd"), content_type="a/b", **share),
        response_headers=[["content-type", "a/b"]])
    yield row("user delegation of a file", "file", "GetFile", "s", "f", generate_file_sas(
        account_name=ACCOUNT, share_name="s", file_path=["f"], permission="r", user_delegation_key=delegation_key("f", "2026-02-06"), **times), delegated=True)
    yield row("queue", "queue", "PutMessage", "q", "messages", generate_queue_sas(ACCOUNT, "q", KEY, permission=QueueSasPermissions.from_string("raup"), **times))
    yield row("user delegation of a queue", "queue", "PutMessage", "q", "messages", generate_queue_sas(
        ACCOUNT, "q", permission="a", user_delegation_key=delegation_key("q", "2026-02-06"), **times), delegated=True)
    table = generate_table_sas(AzureNamedKeyCredential(ACCOUNT, KEY), "Tab", permission=TableSasPermissions.from_string("raud"),
                               start_pk="p1", start_rk="r1", end_pk="p2", end_rk="r2", ip_address_or_range="10.0.0.1", **times)
    for operation, address in [("QueryEntities", "Tab"), ("InsertEntity", "tab"), ("EntityGroupTransaction", "$batch")]:
        yield row(f"table {operation}", "table", operation, address, "", table, table_range=["p1", "r1", "p2", "r2"])


def b64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value, length=None):
    return b64url(value.to_bytes(length or (value.bit_length() + 7) // 8, "big"))


def tokens():
    rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    ec_key = ec.generate_private_key(ec.SECP256R1())
    other_key = ec.generate_private_key(ec.SECP256R1())
    r, e = rsa_key.public_key().public_numbers(), ec_key.public_key().public_numbers()
    jwks = {"keys": [
        {"kty": "RSA", "kid": "rsa-1", "use": "sig", "alg": "RS256", "n": number(r.n), "e": number(r.e)},
        {"kty": "EC", "kid": "ec-1", "crv": "P-256", "x": number(e.x, 32), "y": number(e.y, 32)},
        {"kty": "oct", "kid": "hmac", "k": "AAAA"},
        {"kty": "EC", "kid": "p384", "crv": "P-384", "x": "AAAA", "y": "AAAA"},
        {"kty": "RSA", "kid": "enc", "use": "enc", "n": number(r.n), "e": number(r.e)},
    ]}
    now = int(NOW.timestamp())
    good = {"iss": "https://issuer.example/tenant", "aud": "https://storage.azure.com", "exp": now + 3600, "nbf": now - 60, "iat": now - 60,
            "oid": OID, "sub": "subject", "tid": TID}

    def token(claims=None, alg="RS256", kid="rsa-1", key=None, drop=(), header=None, **changes):
        claims = {**good, **(claims or {}), **changes}
        for name in drop:
            del claims[name]
        head = {"typ": "JWT", "alg": alg, **({"kid": kid} if kid else {}), **(header or {})}
        signed = b64url(json.dumps(head).encode()) + "." + b64url(json.dumps(claims).encode())
        if alg == "none":
            return signed + "."
        if alg == "HS256":
            return signed + "." + b64url(hmac.new(json.dumps(jwks["keys"][0]).encode(), signed.encode(), hashlib.sha256).digest())
        if alg == "RS256":
            return signed + "." + b64url(rsa_key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))
        r, s = decode_dss_signature((key or ec_key).sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return signed + "." + b64url(r.to_bytes(32, "big") + s.to_bytes(32, "big"))

    es = {"alg": "ES256", "kid": "ec-1"}
    rows = {
        "RS256": (token(), None),
        "ES256": (token(**es), None),
        "no kid": (token(kid=None), None),
        "audience with slash": (token(aud="https://storage.azure.com/", **es), None),
        "audience of the account": (token(aud="https://devstoreaccount1.blob.core.windows.net", **es), None),
        "one audience of several": (token(aud=["x", "https://storage.azure.com"], **es), None),
        "configured audience": (token(aud="my-client", **es), None),
        "no nbf": (token(drop=["nbf"], **es), None),
        "fractional exp": (token(exp=now + 60.5, **es), None),
        "expired within the leeway": (token(exp=now - 30, **es), None),
        "early within the leeway": (token(nbf=now + 30, **es), None),
        "expired": (token(exp=now - 61, **es), "Expired"),
        "no exp": (token(drop=["exp"], **es), "Malformed"),
        "not yet valid": (token(nbf=now + 61, **es), "NotYetValid"),
        "other issuer": (token(iss="https://issuer.example/other", **es), "Issuer"),
        "no issuer": (token(drop=["iss"], **es), "Issuer"),
        "other audience": (token(aud="https://graph.example", **es), "Audience"),
        "audience of another account": (token(aud="https://other.blob.core.windows.net", **es), "Audience"),
        "audience of the account in another domain": (token(aud="https://devstoreaccount1.blob.evil.example", **es), "Audience"),
        "audience of another service": (token(aud="https://devstoreaccount1.queue.core.windows.net", **es), "Audience"),
        "audience that starts alike": (token(aud="https://storage.azure.com.evil.example", **es), "Audience"),
        "no audience": (token(drop=["aud"], **es), "Audience"),
        "no subject": (token(drop=["oid", "sub"], **es), "Subject"),
        "unknown kid": (token(alg="ES256", kid="ec-2"), "UnknownKey"),
        "kid of another kind of key": (token(alg="ES256", kid="rsa-1"), "UnknownKey"),
        "kid of an encryption key": (token(kid="enc"), "UnknownKey"),
        "another key of that name": (token(key=other_key, **es), "Signature"),
        "alg none": (token(alg="none"), "Unsupported"),
        "HS256 over the public key": (token(alg="HS256"), "Unsupported"),
        "critical extension": (token(header={"crit": ["exp"]}, **es), "Unsupported"),
        "changed claims": (token(**es).replace(".", ".e30.", 1).rsplit(".", 2)[0] + "." + token(**es).rsplit(".", 1)[1], "Signature"),
        "two parts": (token(**es).rsplit(".", 1)[0], "Malformed"),
        "not base64": ("!.!.!", "Malformed"),
        "empty": ("", "Malformed"),
    }
    subject = {"no oid": token(drop=["oid", "tid"], **es)}
    return {"jwks": jwks, "tokens": [{"name": n, "token": t, "error": e} for n, (t, e) in rows.items()], "by_sub": subject["no oid"]}


def write(name, value):
    with open(name, "w", encoding="utf-8") as out:
        json.dump(value, out, indent=1, ensure_ascii=False)
        out.write("\n")


if __name__ == "__main__":
    write("shared_key.json", list(shared_key_requests()) + list(hand_signed()))
    write("sas.json", list(signatures()))
    write("tokens.json", tokens())
