"""Two ways to change a blob safely while other clients change it: ETags and leases.

    pip install azure-storage-blob
    python examples/blob_etag_and_lease.py
"""

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceModifiedError
from azure.storage.blob import BlobClient, BlobServiceClient

# The development account that `make serve` serves. Its key is public.
DEVELOPMENT = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
    "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
    "BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1"
)
CONNECTION = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", DEVELOPMENT)
CLIENTS = 4
INCREMENTS = 10


def increment(blob: BlobClient) -> int:
    """Adds one to the number in the blob. Returns how many attempts lost against another client."""
    lost = 0
    while True:
        read = blob.download_blob()
        number = int(read.readall())
        try:
            # Write only if the blob still has the version that was read. The server checks and writes in one
            # step.
            blob.upload_blob(
                str(number + 1),
                overwrite=True,
                etag=read.properties.etag,
                match_condition=MatchConditions.IfNotModified,
            )
            return lost
        except ResourceModifiedError:  # 412: another client was faster
            lost += 1


def count_with_etags(blob: BlobClient):
    blob.upload_blob("0")
    with ThreadPoolExecutor(CLIENTS) as clients:
        lost = sum(clients.map(increment, [blob] * CLIENTS * INCREMENTS))
    number = int(blob.download_blob().readall())
    print(f"ETags: {CLIENTS} clients counted to {number}; {lost} attempts were repeated")


def write_under_a_lease(blob: BlobClient):
    lease = blob.acquire_lease(lease_duration=15)
    try:
        blob.upload_blob("from another client", overwrite=True)
    except HttpResponseError as refusal:
        answer = f"{refusal.status_code} {refusal.error_code.value}"
        print(f"Lease: a write without the lease was refused with {answer}")
    blob.upload_blob("from the holder", overwrite=True, lease=lease)
    lease.release()
    print(f"Lease: the blob holds {blob.download_blob().readall().decode()!r}")


def main():
    service = BlobServiceClient.from_connection_string(CONNECTION)
    container = service.create_container(f"example-{uuid.uuid4().hex[:12]}")
    try:
        blob = container.get_blob_client("number")
        count_with_etags(blob)
        write_under_a_lease(blob)
    finally:
        container.delete_container()


if __name__ == "__main__":
    main()
