// The table service through the unmodified JavaScript library. CONNECTION names the server.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import {
  AzureNamedKeyCredential,
  AzureSASCredential,
  TableClient,
  TableServiceClient,
  TableTransaction,
  generateAccountSas,
  generateTableSas,
  odata,
} from "@azure/data-tables";

const options = { allowInsecureConnection: true, retryOptions: { maxRetries: 0 } };
const service = TableServiceClient.fromConnectionString(process.env.CONNECTION, options);
const parts = Object.fromEntries(process.env.CONNECTION.split(";").map((part) => part.split(/=(.*)/s)));
const credential = new AzureNamedKeyCredential(parts.AccountName, parts.AccountKey);
const endpoint = parts.TableEndpoint;
const name = `js${randomUUID().replaceAll("-", "")}`;
const table = TableClient.fromConnectionString(process.env.CONNECTION, name, options);
before(() => table.createTable());
after(() => table.deleteTable());

const refused = (status, code, promise) =>
  assert.rejects(promise, (error) => {
    assert.deepEqual([error.statusCode, error.details?.odataError?.code ?? error.code], [status, code]);
    return true;
  });
const all = async (pages) => {
  const found = [];
  for await (const entity of pages) found.push(entity);
  return found;
};

test("tables are created, found and deleted", async () => {
  const other = `js${randomUUID().replaceAll("-", "")}`;
  await service.createTable(other);
  const found = await all(service.listTables({ queryOptions: { filter: odata`TableName eq ${other}` } }));
  assert.deepEqual(found.map((table) => table.name), [other]);
  await service.deleteTable(other);
});

test("every type is returned as sent", async () => {
  const sent = {
    partitionKey: "types",
    rowKey: "it's ünï/".replace("/", ""),
    text: 'Grüße 😀 "quoted" \\ \n',
    yes: true,
    number: 5,
    ratio: 4.25,
    whole: { type: "Double", value: "5.0" },
    infinite: { type: "Double", value: "Infinity" },
    long: 2n ** 62n,
    when: new Date("2026-01-02T03:04:05.678Z"),
    precise: { type: "DateTime", value: "2013-08-02T17:37:43.9004348Z" },
    id: { type: "Guid", value: "c9da6455-213d-42c9-9a79-3e9149a57833" },
    data: new Uint8Array([0, 1, 254, 255]),
  };
  await table.createEntity(sent);
  const got = await table.getEntity(sent.partitionKey, sent.rowKey);
  for (const name of ["text", "yes", "number", "ratio", "long"]) assert.deepEqual(got[name], sent[name], name);
  assert.equal(got.when.toISOString(), sent.when.toISOString());
  assert.deepEqual([...got.data], [...sent.data]);
  assert.deepEqual(got.id, sent.id);
  assert.equal(got.whole, 5);
  assert.match(got.etag, /^W\/"datetime'/);
  const typed = await table.getEntity(sent.partitionKey, sent.rowKey, { disableTypeConversion: true });
  assert.equal(typed.precise.value, "2013-08-02T17:37:43.9004348Z");
  assert.equal(typed.infinite.value, "Infinity");
});

test("an update with a stale tag is refused", async () => {
  const entity = { partitionKey: "tags", rowKey: "1", email: "first@example.com", phone: "1" };
  const { etag } = await table.createEntity(entity);
  await refused(409, "EntityAlreadyExists", table.createEntity(entity));
  const keys = { partitionKey: "tags", rowKey: "1" };
  await table.updateEntity({ ...keys, email: "theirs@example.com" }, "Merge", { etag });
  await refused(412, "UpdateConditionNotSatisfied", table.updateEntity({ ...keys, email: "ours" }, "Replace", { etag }));
  await table.updateEntity({ ...keys, email: "ours@example.com" }, "Replace", { etag: "*" });
  const got = await table.getEntity("tags", "1");
  assert.deepEqual([got.email, got.phone], ["ours@example.com", undefined]);
  await refused(412, "UpdateConditionNotSatisfied", table.deleteEntity("tags", "1", { etag }));
  await table.upsertEntity({ ...keys, phone: "2" }, "Merge");
  await table.deleteEntity("tags", "1");
  await refused(404, "ResourceNotFound", table.getEntity("tags", "1"));
});

test("queries are filtered, selected and paged", async () => {
  const transaction = new TableTransaction();
  for (let i = 0; i < 100; i++) {
    transaction.createEntity({ partitionKey: "query", rowKey: String(i).padStart(3, "0"), number: i, even: i % 2 === 0, long: BigInt(i) });
  }
  await table.submitTransaction(transaction.actions);
  const rows = async (filter) => (await all(table.listEntities({ queryOptions: { filter } }))).map((entity) => entity.rowKey);
  assert.deepEqual(await rows(odata`PartitionKey eq ${"query"} and number lt ${3}`), ["000", "001", "002"]);
  assert.deepEqual(await rows(odata`PartitionKey eq ${"query"} and (number ge ${98} or RowKey eq ${"050"})`), ["050", "098", "099"]);
  assert.deepEqual(await rows("PartitionKey eq 'query' and even eq true and number lt 5"), ["000", "002", "004"]);
  assert.deepEqual(await rows("PartitionKey eq 'query' and not (long lt 98L)"), ["098", "099"]);
  const selected = await all(table.listEntities({ queryOptions: { filter: "RowKey eq '007'", select: ["number"] } }));
  assert.equal(selected[0].number, 7);
  assert.equal(selected[0].rowKey, undefined);
  const sizes = [];
  const pages = table.listEntities({ queryOptions: { filter: "PartitionKey eq 'query'" } }).byPage({ maxPageSize: 30 });
  for await (const page of pages) sizes.push(page.length);
  assert.deepEqual(sizes.filter((size) => size > 0), [30, 30, 30, 10]);
  await assert.rejects(rows("number eq"), { statusCode: 400 });
});

test("a transaction happens as a whole or not at all", async () => {
  const at = (rowKey, rest) => ({ partitionKey: "batch", rowKey, ...rest });
  const done = await table.submitTransaction([
    ["create", at("a", { n: 1 })],
    ["create", at("b", { n: 1 })],
    ["upsert", at("c", { n: 1 }), "Replace"],
  ]);
  assert.equal(done.status, 202);
  assert.match(done.getResponseForEntity("a").etag, /^W\//);
  await table.submitTransaction([
    ["update", at("a", { m: 2 }), "Merge"],
    ["delete", at("b")],
  ]);
  await assert.rejects(table.submitTransaction([["create", at("d")], ["create", at("a")]]), (error) => {
    assert.equal(error.statusCode, 409);
    return true;
  });
  const found = await all(table.listEntities({ queryOptions: { filter: "PartitionKey eq 'batch'" } }));
  assert.deepEqual(found.map(({ rowKey, n, m }) => [rowKey, n, m]), [["a", 1, 2], ["c", 1, undefined]]);
});

test("signatures allow what they grant", async () => {
  await table.upsertEntity({ partitionKey: "sas", rowKey: "1" });
  const of = (client, sas) => new client(endpoint, ...(client === TableClient ? [name] : []), new AzureSASCredential(sas), options);
  const reader = of(TableClient, generateTableSas(name, credential, { permissions: { query: true } }));
  assert.equal((await reader.getEntity("sas", "1")).rowKey, "1");
  await assert.rejects(reader.createEntity({ partitionKey: "sas", rowKey: "2" }), { statusCode: 403 });
  const ranged = of(
    TableClient,
    generateTableSas(name, credential, {
      permissions: { query: true, add: true, update: true },
      startPartitionKey: "sas", endPartitionKey: "sas", startRowKey: "1", endRowKey: "5",
    }),
  );
  await ranged.upsertEntity({ partitionKey: "sas", rowKey: "5" });
  await assert.rejects(ranged.upsertEntity({ partitionKey: "sas", rowKey: "6" }), { statusCode: 403 });
  assert.deepEqual((await all(ranged.listEntities())).map((entity) => entity.rowKey), ["1", "5"]);
  const account = of(TableServiceClient, generateAccountSas(credential, { permissions: { list: true } }));
  assert.ok((await all(account.listTables())).some((table) => table.name === name));
});

test("access policies are stored", async () => {
  const id = "readers";
  const accessPolicy = { start: new Date("2026-01-01T00:00:00Z"), expiry: new Date("2099-01-01T00:00:00Z"), permission: "r" };
  await table.setAccessPolicy([{ id, accessPolicy }]);
  const [found] = await table.getAccessPolicy();
  assert.deepEqual([found.id, found.accessPolicy.permission], [id, "r"]);
  await table.setAccessPolicy([]);
});
