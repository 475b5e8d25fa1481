"""One file over SMB and REST at once. Each protocol respects the locks of the other.

    pip install azure-storage-file-share smbprotocol
    python examples/share_locks.py
"""

import os
import uuid

import smbclient
from azure.core.exceptions import HttpResponseError
from azure.storage.fileshare import ShareFileClient, ShareServiceClient
from smbprotocol.open import LockFlags, SMB2LockElement

# The development account that `make serve` serves. Its key is public.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
DEVELOPMENT = (
    f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
    f"FileEndpoint=http://127.0.0.1:10003/{ACCOUNT}"
)
CONNECTION = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", DEVELOPMENT)
SMB_HOST = "127.0.0.1"
SMB_PORT = int(os.environ.get("SMB_PORT", "10445"))


def write_over_rest(file: ShareFileClient, text: bytes):
    """Writes at the start of the file. Prints the error code if an SMB client forbids the write."""
    try:
        file.upload_range(text, offset=0, length=len(text))
        print(f"REST: wrote {text!r}")
    except HttpResponseError as refusal:
        print(f"REST: a write was refused with {refusal.status_code} {refusal.error_code}")


def lock(handle, kind: LockFlags):
    """Locks or unlocks the first 5 bytes of a file that is open over SMB."""
    element = SMB2LockElement()
    element["offset"], element["length"], element["flags"] = 0, 5, kind
    handle.fd.lock([element])


def main():
    service = ShareServiceClient.from_connection_string(CONNECTION)
    share = service.create_share(f"example-{uuid.uuid4().hex[:12]}")
    smbclient.register_session(
        SMB_HOST, username=ACCOUNT, password=KEY, port=SMB_PORT, auth_protocol="ntlm"
    )
    try:
        file = share.get_file_client("letter")
        file.upload_file(b"hello over REST")
        path = rf"\\{SMB_HOST}\{share.share_name}\letter"

        # A share mode: as long as this open exists, others may read the file and not write it.
        with smbclient.open_file(path, "rb", port=SMB_PORT, share_access="r") as opened:
            print(f"SMB: read {opened.read()!r}")
            write_over_rest(file, b"HELLO")

        # A range lock: others may write the file, except for the locked bytes.
        with smbclient.open_file(path, "r+b", buffering=0, port=SMB_PORT, share_access="rw") as opened:
            lock(opened, LockFlags.SMB2_LOCKFLAG_EXCLUSIVE_LOCK | LockFlags.SMB2_LOCKFLAG_FAIL_IMMEDIATELY)
            write_over_rest(file, b"HELLO")
            lock(opened, LockFlags.SMB2_LOCKFLAG_UNLOCK)
            write_over_rest(file, b"HELLO")

        with smbclient.open_file(path, "rb", port=SMB_PORT, share_access="rwd") as opened:
            print(f"SMB: read {opened.read()!r}")
    finally:
        smbclient.reset_connection_cache()
        share.delete_share()


if __name__ == "__main__":
    main()
