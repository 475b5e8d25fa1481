"""An issuer of bearer tokens without a server, for tests.

    local_issuer.py FOLDER SUBJECT

Prints a token for the subject, valid for an hour. The first call creates the issuer in the folder: its private key, its discovery
document `issuer.json`, and its public keys `keys.json`. Needs the package cryptography, which the Azure SDKs bring.
"""

import base64
import json
import sys
import time
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

ISSUER = "https://issuer.example/test"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def private_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Returns the key of the issuer in this folder. Creates both if they do not exist."""
    path = folder / "private.pem"
    if path.exists():
        return serialization.load_pem_private_key(path.read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    point = key.public_key().public_numbers()
    x, y = (encoded(number.to_bytes(32, "big")) for number in (point.x, point.y))
    folder.mkdir(parents=True, exist_ok=True)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.touch(0o600)
    path.write_bytes(pem)
    (folder / "keys.json").write_text(json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "kid": "1", "x": x, "y": y}]}))
    (folder / "issuer.json").write_text(json.dumps({"issuer": ISSUER, "jwks_uri": "keys.json"}))
    return key


def token(folder: Path, subject: str) -> str:
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": "https://storage.azure.com", "oid": subject, "tid": "test", "nbf": now, "exp": now + 3600}
    parts = ({"alg": "ES256", "kid": "1"}, claims)
    signed = ".".join(encoded(json.dumps(part).encode()) for part in parts)
    signature = private_key(folder).sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
    numbers = b"".join(number.to_bytes(32, "big") for number in utils.decode_dss_signature(signature))
    return f"{signed}.{encoded(numbers)}"


if __name__ == "__main__":
    print(token(Path(sys.argv[1]), sys.argv[2]))
