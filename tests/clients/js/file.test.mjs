// The file service through the unmodified JavaScript library. CONNECTION names the server.
import assert from "node:assert/strict";
import { randomBytes, randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import {
  AccountSASPermissions,
  AccountSASResourceTypes,
  FileSASPermissions,
  ShareClient,
  ShareFileClient,
  ShareSASPermissions,
  ShareServiceClient,
  newPipeline,
} from "@azure/storage-file-share";

const service = ShareServiceClient.fromConnectionString(process.env.CONNECTION, { retryOptions: { maxTries: 1 } });
const name = () => `js-${randomUUID().slice(0, 18)}`;
const share = service.getShareClient(name());
const root = share.rootDirectoryClient;
before(() => share.create());
after(() => share.deleteIfExists({ deleteSnapshots: "include" }));

const refused = (status, code, promise) =>
  assert.rejects(promise, (error) => {
    assert.deepEqual([error.statusCode, error.code ?? error.details?.errorCode], [status, code]);
    return true;
  });
const file = async (path, content = "") => {
  const client = root.getFileClient(path);
  await client.uploadData(Buffer.from(content));
  return client;
};
const read = async (client, ...part) => (await client.downloadToBuffer(...part)).toString();
const entries = async (directory, options) => {
  const found = [];
  for await (const item of directory.listFilesAndDirectories(options)) found.push(item);
  return found;
};

test("shares are created, listed with metadata, and deleted", async () => {
  const prefix = name();
  for (const n of [1, 2, 3]) await service.createShare(`${prefix}-${n}`, { metadata: { is: `${n}` }, quota: 2 });
  await refused(409, "ShareAlreadyExists", service.createShare(`${prefix}-1`));
  const listed = [];
  for await (const page of service.listShares({ prefix, includeMetadata: true }).byPage({ maxPageSize: 2 })) {
    for (const item of page.shareItems ?? []) listed.push([item.name, item.metadata.is, item.properties.quota]);
  }
  assert.deepEqual(listed, [1, 2, 3].map((n) => [`${prefix}-${n}`, `${n}`, 2]));
  for (const n of [1, 2, 3]) await service.deleteShare(`${prefix}-${n}`);
  assert.equal(await service.getShareClient(`${prefix}-1`).exists(), false);
  await refused(404, "ShareNotFound", service.deleteShare(`${prefix}-1`));
});

test("metadata, quota, policies and permissions of a share are returned as set", async () => {
  await share.setMetadata({ color: "blue" });
  await share.setQuota(5);
  const properties = await share.getProperties();
  assert.deepEqual([properties.metadata, properties.quota], [{ color: "blue" }, 5]);
  const sddl = "O:SYG:SYD:(A;;FA;;;SY)";
  const { filePermissionKey } = await share.createPermission(sddl);
  assert.equal((await share.getPermission(filePermissionKey)).permission, sddl);
  await share.setAccessPolicy([
    { id: "readers", accessPolicy: { startsOn: new Date(), expiresOn: new Date(Date.now() + 3600e3), permissions: "r" } },
  ]);
  assert.deepEqual((await share.getAccessPolicy()).signedIdentifiers.map((one) => one.id), ["readers"]);
  await share.setAccessPolicy([]);
});

test("directories are created, changed and listed", async () => {
  const directory = root.getDirectoryClient("Dir");
  await directory.create({ metadata: { a: "1" } });
  await refused(409, "ResourceAlreadyExists", root.getDirectoryClient("dir").create());
  await refused(404, "ParentNotFound", root.getDirectoryClient("none").getDirectoryClient("sub").create());
  assert.equal(await directory.exists(), true);
  const properties = await directory.getProperties();
  assert.deepEqual([properties.metadata, properties.fileAttributes], [{ a: "1" }, "Directory"]);
  await directory.setMetadata({ b: "2" });
  const creationTime = new Date("2020-01-02T03:04:05Z");
  await directory.setProperties({ creationTime });
  assert.deepEqual((await directory.getProperties()).fileCreatedOn, creationTime);
  await directory.createFile("f", 10);
  await directory.createSubdirectory("sub");
  const listed = await entries(directory, { includeTimestamps: true, includeEtag: true, includeAttributes: true, includePermissionKey: true, includeExtendedInfo: true });
  assert.deepEqual(listed.map((item) => [item.kind, item.name, item.properties.contentLength]), [["file", "f", 10], ["directory", "sub", undefined]]);
  assert.ok(listed.every((item) => item.fileId && item.permissionKey && item.properties.etag && item.properties.lastWriteTime));
});

test("properties of a file are returned as set", async () => {
  const client = root.getFileClient("F.txt");
  assert.equal(await client.exists(), false);
  const fileHttpHeaders = {
    fileContentType: "text/x",
    fileContentEncoding: "enc",
    fileContentLanguage: "de",
    fileContentDisposition: "attachment",
    fileCacheControl: "no-cache",
    fileContentMD5: new Uint8Array(16).fill(7),
  };
  await client.create(100, { fileHttpHeaders, metadata: { a: "1" }, fileAttributes: undefined });
  const properties = await client.getProperties();
  assert.deepEqual([properties.contentType, properties.contentEncoding, properties.contentLanguage], ["text/x", "enc", "de"]);
  assert.deepEqual([properties.contentDisposition, properties.cacheControl], ["attachment", "no-cache"]);
  assert.deepEqual([...properties.contentMD5], Array(16).fill(7));
  assert.deepEqual([properties.contentLength, properties.metadata, properties.fileType], [100, { a: "1" }, "File"]);
  await client.setHttpHeaders({ fileContentType: "text/y" });
  await client.setMetadata({ b: "2" });
  await client.resize(50);
  const changed = await client.getProperties();
  assert.deepEqual([changed.contentType, changed.contentLength, changed.metadata], ["text/y", 50, { b: "2" }]);
  assert.notEqual(changed.etag, properties.etag);
  await client.delete();
  assert.equal((await client.deleteIfExists()).succeeded, false);
});

test("contents are read as written, and ranges are listed", async () => {
  const data = randomBytes(5 * 1024 * 1024 + 3);
  const large = root.getFileClient("large");
  await large.uploadData(data, { rangeSize: 1 << 20, concurrency: 4 });
  assert.ok((await large.downloadToBuffer(undefined, undefined, { concurrency: 4 })).equals(data));
  assert.ok((await large.downloadToBuffer(1000, 5000)).equals(data.subarray(1000, 6000)));
  const client = root.getFileClient("ranges");
  await client.create(1 << 20);
  await client.uploadRange("a".repeat(1024), 0, 1024);
  await client.uploadRange("b".repeat(512), 4096, 512, { contentMD5: undefined });
  assert.deepEqual((await client.getRangeList()).rangeList, [{ start: 0, end: 1023 }, { start: 4096, end: 4607 }]);
  await client.clearRange(0, 512);
  assert.deepEqual((await client.getRangeList()).rangeList, [{ start: 512, end: 1023 }, { start: 4096, end: 4607 }]);
  const part = await client.download(500, 20, { rangeGetContentMD5: true });
  assert.equal(part.contentMD5.length, 16);
  await refused(416, "InvalidRange", client.uploadRange("x", 1 << 20, 1));
  assert.equal(await read(await file("empty")), "");
});

test("signatures allow what they grant: of a file, a share, the account, and by a stored policy", async () => {
  const client = await file("signed", "secret");
  const expiresOn = new Date(Date.now() + 3600e3);
  const anonymous = (url) => new ShareFileClient(url, newPipeline());
  const reader = anonymous(client.generateSasUrl({ permissions: FileSASPermissions.parse("r"), expiresOn, contentType: "text/own" }));
  assert.equal((await reader.download()).contentType, "text/own");
  await refused(403, "AuthorizationPermissionMismatch", reader.setMetadata({ a: "1" }));
  const lister = new ShareClient(share.generateSasUrl({ permissions: ShareSASPermissions.parse("rl"), expiresOn }), newPipeline());
  assert.ok((await entries(lister.rootDirectoryClient)).some((item) => item.name === "signed"));
  const url = service.generateAccountSasUrl(expiresOn, AccountSASPermissions.parse("rwdlc"), AccountSASResourceTypes.parse("sco").toString());
  const account = new ShareServiceClient(url, newPipeline());
  assert.equal(await read(account.getShareClient(share.name).rootDirectoryClient.getFileClient("signed")), "secret");
});

test("copies have the content of their source", async () => {
  const source = await file("copied", "content");
  await source.setMetadata({ of: "source" });
  const target = root.getFileClient("copy");
  const started = await target.startCopyFromURL(source.url);
  assert.equal(started.copyStatus, "success");
  const properties = await target.getProperties();
  assert.deepEqual([properties.copyId, properties.copyStatus, properties.metadata], [started.copyId, "success", { of: "source" }]);
  assert.equal(await read(target), "content");
  await refused(409, "NoPendingCopyOperation", target.abortCopyFromURL(started.copyId));
  const expiresOn = new Date(Date.now() + 3600e3);
  const signed = source.generateSasUrl({ permissions: FileSASPermissions.parse("r"), expiresOn });
  await target.uploadRangeFromURL(signed, 3, 0, 4);
  assert.equal(await read(target), "tentent");
});

test("a file lease guards writes", async () => {
  const client = await file("leased", "x");
  const lease = client.getShareLeaseClient();
  await lease.acquireLease();
  await refused(412, "LeaseIdMissing", client.setMetadata({ a: "1" }));
  await client.setMetadata({ a: "1" }, { leaseAccessConditions: { leaseId: lease.leaseId } });
  assert.equal((await client.getProperties()).leaseState, "leased");
  await lease.releaseLease();
  await client.delete();
});

test("share snapshots keep their state, and changes since then are listed", async () => {
  const other = service.getShareClient(name());
  await other.create();
  const client = other.rootDirectoryClient.getFileClient("f");
  await client.create(8192);
  await client.uploadRange("a".repeat(512), 0, 512);
  const { snapshot } = await other.createSnapshot();
  await client.uploadRange("b".repeat(512), 1024, 512);
  const then = other.withSnapshot(snapshot).rootDirectoryClient.getFileClient("f");
  assert.deepEqual((await then.getRangeList()).rangeList, [{ start: 0, end: 511 }]);
  const diff = await client.getRangeListDiff(snapshot);
  assert.deepEqual(diff.ranges?.map(({ start, end }) => [start, end]), [[1024, 1535]]);
  await refused(409, "ShareHasSnapshots", other.delete());
  await other.delete({ deleteSnapshots: "include" });
});

test("a share without SMB clients has no handles", async () => {
  const client = await file("handled", "x");
  const closed = await client.forceCloseAllHandles();
  assert.deepEqual([closed.closedHandlesCount, closed.closeFailureCount], [0, 0]);
  for await (const handle of root.listHandles({ recursive: true })) assert.fail(`${handle.path} is open`);
});

test("service properties are stored", async () => {
  const cors = [{ allowedOrigins: "*", allowedMethods: "GET", allowedHeaders: "", exposedHeaders: "", maxAgeInSeconds: 8 }];
  await service.setProperties({ cors });
  const kept = await service.getProperties();
  assert.deepEqual(kept.cors.map((rule) => [rule.allowedOrigins, rule.maxAgeInSeconds]), [["*", 8]]);
  await service.setProperties({ cors: [] });
});
