"""Starts a server and runs a command against it: run_with_server.py COMMAND…

The server listens on free ports of 127.0.0.1, over TLS with its own certificate, so that bearer tokens work too. The
command finds in its environment:

- CONNECTION: the connection string of the account
- SSL_CERT_FILE: the server's certificate, as a PEM file
- TOKEN: a bearer token of a subject with the role of owner for blobs and files
- HOST_SUFFIX: the account is also served as ACCOUNT.HOST_SUFFIX, a name that no resolver knows

Soft delete is enabled for containers and shares.
The server is stopped when the command ends, also if it fails or is interrupted.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from conftest import ACCOUNT, keep_deleted_shares, start

ISSUER = "https://issuer.example/tenant"
SUBJECT = "5a2e5d2c-53f0-4f2f-9d7e-6b1c6f2b7a10"
TENANT = "7f0d1c44-02d5-4b8e-8b58-0a8e5d1f6c21"
TOKEN_SECONDS = 3600
HOST_SUFFIX = "lazuli.test"


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def issue_token(directory: Path) -> str:
    """Writes the documents of a token issuer to the directory and returns a token of this issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    point = key.public_key().public_numbers()
    x, y = (encode(number.to_bytes(32)) for number in (point.x, point.y))
    keys = {"keys": [{"kty": "EC", "crv": "P-256", "kid": "k", "x": x, "y": y}]}
    (directory / "keys.json").write_text(json.dumps(keys))
    (directory / "issuer.json").write_text(json.dumps({"issuer": ISSUER, "jwks_uri": "keys.json"}))
    claims = {
        "iss": ISSUER,
        "aud": "https://storage.azure.com",
        "oid": SUBJECT,
        "tid": TENANT,
        "exp": int(time.time()) + TOKEN_SECONDS,
    }
    signed = ".".join(encode(json.dumps(part).encode()) for part in ({"alg": "ES256", "kid": "k"}, claims))
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(SHA256())))
    return f"{signed}.{encode(r.to_bytes(32) + s.to_bytes(32))}"


def main(command: list[str]) -> int:
    # Stop the server also if this run is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        token = issue_token(home)
        data = home / "data"
        options = ["--tls-self-signed", "--host-suffix", HOST_SUFFIX, "--oidc-issuer", str(home / "issuer.json")]
        server = start(data, *options)
        certificate = str(data / "tls" / "self-signed.crt")
        try:
            for setting in (
                ["--container-soft-delete", "7"],
                ["--version-immutability", "on"],
                ["--role", f"{SUBJECT}=blob:owner"],
                ["--role", f"{SUBJECT}=file:owner"],
            ):
                change = [os.environ["LAZULI"], "account", "set", ACCOUNT, *setting, "--data", str(data)]
                subprocess.run(change, check=True, stdout=subprocess.DEVNULL)
            keep_deleted_shares(server, verify=certificate)
            environment = {
                **os.environ,
                "CONNECTION": server.connection_string,
                "SSL_CERT_FILE": certificate,
                "TOKEN": token,
                "HOST_SUFFIX": HOST_SUFFIX,
            }
            return subprocess.run(command, env=environment).returncode
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
