// The blob service through the unmodified JavaScript library. CONNECTION names the server.
import assert from "node:assert/strict";
import { createHash, randomBytes, randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import {
  BlobBatchClient,
  BlobSASPermissions,
  BlobServiceClient,
  ContainerSASPermissions,
  SASProtocol,
  StorageSharedKeyCredential,
  generateBlobSASQueryParameters,
} from "@azure/storage-blob";

const MIB = 1 << 20;
const service = BlobServiceClient.fromConnectionString(process.env.CONNECTION, { retryOptions: { maxTries: 1 } });
const container = service.getContainerClient(`js-${randomUUID().slice(0, 18)}`);
before(() => container.create());
after(() => container.deleteIfExists());

const refused = (status, code, promise) =>
  assert.rejects(promise, (error) => {
    assert.deepEqual([error.statusCode, error.code ?? error.details?.errorCode], [status, code]);
    return true;
  });
const text = async (blob, ...range) => (await blob.downloadToBuffer(...range)).toString();
const sha = (bytes) => createHash("sha256").update(bytes).digest("hex");

test("300 MiB are uploaded and downloaded in parallel blocks", async () => {
  const piece = randomBytes(MIB);
  const body = Buffer.concat(Array.from({ length: 300 }, (_, i) => (piece.writeUInt32BE(i), Buffer.from(piece))));
  const blob = container.getBlockBlobClient("large");
  const options = { blockSize: 8 * MIB, maxSingleShotSize: MIB, concurrency: 4 };
  await blob.uploadData(body, options);
  const got = await blob.downloadToBuffer(0, undefined, { blockSize: 8 * MIB, concurrency: 4 });
  assert.equal(sha(got), sha(body));
});

test("a body is verified by its MD5", async () => {
  const blob = container.getBlockBlobClient("md5");
  const md5 = createHash("md5").update("hello").digest();
  await blob.upload("hello", 5, { transactionalContentMD5: md5 });
  await refused(400, "Md5Mismatch", blob.upload("hellO", 5, { transactionalContentMD5: md5 }));
  const part = await blob.download(1, 3, { rangeGetContentMD5: true });
  assert.deepEqual(Buffer.from(part.contentMD5), createHash("md5").update("ell").digest());
  await blob.stageBlock("AAAA", "hello", 5, { transactionalContentMD5: md5 });
  await blob.commitBlockList(["AAAA"]);
});

test("leases and conditions guard writes", async () => {
  const blob = container.getBlockBlobClient("guarded");
  const first = await blob.upload("1", 1);
  await blob.upload("2", 1, { conditions: { ifMatch: first.etag } });
  await refused(412, "ConditionNotMet", blob.upload("3", 1, { conditions: { ifMatch: first.etag } }));
  await refused(409, "BlobAlreadyExists", blob.upload("3", 1, { conditions: { ifNoneMatch: "*" } }));
  const lease = blob.getBlobLeaseClient();
  await lease.acquireLease(15);
  await refused(412, "LeaseIdMissing", blob.upload("3", 1));
  await refused(409, "LeaseAlreadyPresent", blob.getBlobLeaseClient(randomUUID()).acquireLease(15));
  await blob.upload("3", 1, { conditions: { leaseId: lease.leaseId } });
  const changed = randomUUID();
  await lease.changeLease(changed);
  await lease.renewLease();
  assert.equal((await blob.getProperties()).leaseState, "leased");
  await lease.releaseLease();
  assert.equal((await blob.getProperties()).leaseState, "available");
});

test("snapshots, append blobs and page blobs have the bytes that were written", async () => {
  const blob = container.getBlockBlobClient("snap");
  await blob.upload("old", 3);
  const { snapshot } = await blob.createSnapshot();
  await blob.upload("newer", 5);
  assert.equal(await text(blob.withSnapshot(snapshot)), "old");
  await blob.delete({ deleteSnapshots: "include" });

  const log = container.getAppendBlobClient("log");
  await log.create();
  await Promise.all(Array.from({ length: 50 }, () => log.appendBlock("0123456789", 10)));
  assert.equal((await log.getProperties()).contentLength, 500);

  const disk = container.getPageBlobClient("disk");
  await disk.create(1 << 30);
  await disk.uploadPages(Buffer.alloc(1024, 7), 512, 1024);
  const { pageRange } = await disk.getPageRanges(0, 1 << 20);
  assert.deepEqual(pageRange.map(({ offset, count }) => [offset, count]), [[512, 1023]]);
});

test("tags are found", async () => {
  const run = randomUUID();
  await container.getBlockBlobClient("tagged").upload("x", 1, { tags: { run, color: "blue" } });
  const found = [];
  for await (const { name } of service.findBlobsByTags(`run='${run}' AND color='blue'`)) found.push(name);
  assert.deepEqual(found, ["tagged"]);
});

test("listings are flat or by directory", async () => {
  for (const name of ["l/a", "l/b/1", "l/b/2", "l/c"]) await container.getBlockBlobClient(name).upload("", 0);
  const kinds = [];
  for await (const item of container.listBlobsByHierarchy("/", { prefix: "l/" })) kinds.push(`${item.kind} ${item.name}`);
  assert.deepEqual(kinds.sort(), ["blob l/a", "blob l/c", "prefix l/b/"]);
});

test("a batch of the account deletes a blob", async () => {
  const blob = container.getBlockBlobClient("alone");
  await blob.upload("x", 1);
  const deleted = await service.getBlobBatchClient().deleteBlobs([blob]);
  assert.deepEqual([deleted.subResponsesSucceededCount, deleted.subResponsesFailedCount], [1, 0]);
});

test("a batch of a container changes several blobs", async () => {
  const blobs = Array.from({ length: 5 }, (_, i) => container.getBlockBlobClient(`batch${i}`));
  for (const blob of blobs) await blob.upload("x", 1);
  const batch = new BlobBatchClient(container.url, service.credential, { retryOptions: { maxTries: 1 } });
  const tiers = await batch.setBlobsAccessTier(blobs, "Cool");
  assert.equal(tiers.subResponsesSucceededCount, 5);
  const deleted = await batch.deleteBlobs([...blobs, container.getBlockBlobClient("none")]);
  assert.deepEqual([deleted.subResponsesSucceededCount, deleted.subResponsesFailedCount], [5, 1]);
});

test("copies have the content of their source", async () => {
  const source = container.getBlockBlobClient("source");
  await source.upload("copied", 6);
  const copy = container.getBlockBlobClient("copy");
  await (await copy.beginCopyFromURL(source.url)).pollUntilDone();
  assert.equal(await text(copy), "copied");
});

test("shared access signatures allow what they grant", async () => {
  const blob = container.getBlockBlobClient("shared");
  await blob.upload("shared", 6);
  const credential = service.credential;
  assert.ok(credential instanceof StorageSharedKeyCredential);
  const expiresOn = new Date(Date.now() + 3_600_000);
  const common = { containerName: container.containerName, expiresOn, protocol: SASProtocol.HttpsAndHttp };
  for (const sas of [
    generateBlobSASQueryParameters({ ...common, blobName: "shared", permissions: BlobSASPermissions.parse("r") }, credential),
    generateBlobSASQueryParameters({ ...common, permissions: ContainerSASPermissions.parse("rl") }, credential),
    // The library writes the letters in an order of its own.
    generateBlobSASQueryParameters({ ...common, blobName: "shared", permissions: BlobSASPermissions.parse("rtmeiy") }, credential),
    generateBlobSASQueryParameters({ ...common, permissions: ContainerSASPermissions.parse("rltmeiyf") }, credential),
  ]) {
    const reply = await fetch(`${blob.url}?${sas}`);
    assert.equal(await reply.text(), "shared");
    assert.equal((await fetch(`${blob.url}?${sas}`, { method: "DELETE" })).status, 403);
  }
});
