package lazuli.clients;

import static lazuli.clients.Account.unique;
import static lazuli.clients.Calls.expect;

import com.microsoft.azure.storage.LocationMode;
import com.microsoft.azure.storage.ServiceProperties;
import com.microsoft.azure.storage.StorageCredentialsSharedAccessSignature;
import com.microsoft.azure.storage.table.CloudTable;
import com.microsoft.azure.storage.table.CloudTableClient;
import com.microsoft.azure.storage.table.DynamicTableEntity;
import com.microsoft.azure.storage.table.EntityProperty;
import com.microsoft.azure.storage.table.SharedAccessTablePermissions;
import com.microsoft.azure.storage.table.SharedAccessTablePolicy;
import com.microsoft.azure.storage.table.TableBatchOperation;
import com.microsoft.azure.storage.table.TableOperation;
import com.microsoft.azure.storage.table.TablePermissions;
import com.microsoft.azure.storage.table.TableQuery;
import java.net.URI;
import java.util.EnumSet;

/** The table service, by azure-storage 8.6.6. */
final class OldTableCalls {
    private final Calls calls;

    OldTableCalls(Calls calls) {
        this.calls = calls;
    }

    private static DynamicTableEntity entity(String row, String color) {
        DynamicTableEntity entity = new DynamicTableEntity("p", row);
        entity.getProperties().put("Color", new EntityProperty(color));
        entity.getProperties().put("Count", new EntityProperty(1L << 40));
        entity.setEtag("*");
        return entity;
    }

    void run() throws Exception {
        CloudTableClient client = OldAccount.open().createCloudTableClient();
        OldAccount.once(client.getDefaultRequestOptions());
        calls.run("Set Table Service Properties", () -> {
            ServiceProperties properties = client.downloadServiceProperties();
            client.uploadServiceProperties(properties);
        });
        calls.run("Get Table Service Properties", () -> client.downloadServiceProperties());
        CloudTableClient both = new CloudTableClient(OldAccount.locations("TableEndpoint"), OldAccount.credentials());
        both.getDefaultRequestOptions().setLocationMode(LocationMode.SECONDARY_ONLY);
        calls.run("Get Table Service Stats", () -> both.getServiceStats());

        CloudTable table = client.getTableReference(unique("table"));
        calls.run("Create Table", () -> table.create());
        calls.run("Query Tables", () -> expect(client.listTables(table.getName()).iterator().hasNext(), true));
        SharedAccessTablePolicy policy = new SharedAccessTablePolicy();
        policy.setPermissions(EnumSet.of(SharedAccessTablePermissions.QUERY));
        policy.setSharedAccessExpiryTime(OldAccount.soon());
        calls.run("Set Table ACL", () -> {
            TablePermissions permissions = new TablePermissions();
            permissions.getSharedAccessPolicies().put("policy", policy);
            table.uploadPermissions(permissions);
        });
        calls.run("Get Table ACL", () -> expect(table.downloadPermissions().getSharedAccessPolicies().size(), 1));

        DynamicTableEntity first = entity("a", "blue");
        calls.run("Insert Entity", () -> table.execute(TableOperation.insert(first)));
        calls.run("Query Entity", () ->
            expect(table.execute(TableOperation.retrieve("p", "a", DynamicTableEntity.class)).getHttpStatusCode(), 200));
        calls.run("Merge Entity", () -> table.execute(TableOperation.merge(entity("a", "red"))));
        calls.refused("Update Entity with a stale ETag", "UpdateConditionNotSatisfied", () ->
            table.execute(TableOperation.replace(first)));
        calls.run("Update Entity", () -> table.execute(TableOperation.replace(entity("a", "red"))));
        calls.run("Insert Or Merge Entity", () -> table.execute(TableOperation.insertOrMerge(entity("b", "blue"))));
        calls.run("Insert Or Replace Entity", () -> table.execute(TableOperation.insertOrReplace(entity("b", "red"))));
        calls.run("Query Entities", () -> {
            int count = 0;
            for (DynamicTableEntity ignored : table.execute(TableQuery.from(DynamicTableEntity.class)
                .where("Color eq 'red'").select(new String[] {"RowKey"}).take(10))) {
                count++;
            }
            expect(count, 2);
        });
        calls.run("Entity Group Transaction: insert, merge, insert or merge, replace", () -> {
            TableBatchOperation batch = new TableBatchOperation();
            batch.insert(entity("c", "green"));
            batch.insertOrMerge(entity("d", "green"));
            batch.insertOrReplace(entity("e", "green"));
            batch.merge(entity("a", "green"));
            batch.replace(entity("b", "green"));
            expect(table.execute(batch).size(), 5);
        });
        calls.run("Entity Group Transaction: delete", () -> {
            TableBatchOperation batch = new TableBatchOperation();
            batch.delete(entity("c", "green"));
            batch.delete(entity("d", "green"));
            expect(table.execute(batch).size(), 2);
        });
        calls.run("Entity Group Transaction: query", () -> {
            TableBatchOperation batch = new TableBatchOperation();
            batch.retrieve("p", "a", DynamicTableEntity.class);
            expect(table.execute(batch).get(0).getHttpStatusCode(), 200);
        });
        calls.run("Query Entity by SAS", () -> {
            String sas = table.generateSharedAccessSignature(policy, null, null, null, null, null);
            CloudTable guest = new CloudTable(new URI(table.getUri().toString()), new StorageCredentialsSharedAccessSignature(sas));
            expect(guest.execute(TableOperation.retrieve("p", "a", DynamicTableEntity.class)).getHttpStatusCode(), 200);
        });
        calls.run("Delete Entity", () -> table.execute(TableOperation.delete(entity("a", "green"))));
        calls.run("Delete Table", () -> table.delete());
    }
}
