"""Has the real Azurite write a folder with one blob.

    azurite_folder.py PROGRAM FOLDER PORT
"""

import subprocess
import sys

from azure.storage.blob import BlobServiceClient

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

program, folder, port = sys.argv[1:]
ports = [option for name, port in zip(("blob", "queue", "table"), (port, 0, 0)) for option in (f"--{name}Port", str(port))]
process = subprocess.Popen(
    [program, "--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location", folder, *ports],
    stdout=subprocess.PIPE, text=True,
)
try:
    for line in process.stdout:
        if "Table service is successfully listening" in line:
            break
    account = BlobServiceClient(f"http://127.0.0.1:{port}/devstoreaccount1", credential=KEY)
    account.create_container("kept").upload_blob("from-azurite.txt", b"kept")
finally:
    process.terminate()
    process.wait(timeout=60)
