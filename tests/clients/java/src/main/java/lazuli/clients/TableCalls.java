package lazuli.clients;

import static lazuli.clients.Account.CONNECTION;
import static lazuli.clients.Account.part;
import static lazuli.clients.Account.secondary;
import static lazuli.clients.Account.soon;
import static lazuli.clients.Account.unique;
import static lazuli.clients.Calls.expect;

import com.azure.core.credential.AzureNamedKeyCredential;
import com.azure.core.http.policy.FixedDelay;
import com.azure.core.http.policy.RetryPolicy;
import com.azure.core.util.Context;
import com.azure.data.tables.TableClient;
import com.azure.data.tables.TableClientBuilder;
import com.azure.data.tables.TableServiceClient;
import com.azure.data.tables.TableServiceClientBuilder;
import com.azure.data.tables.models.ListEntitiesOptions;
import com.azure.data.tables.models.ListTablesOptions;
import com.azure.data.tables.models.TableAccessPolicy;
import com.azure.data.tables.models.TableEntity;
import com.azure.data.tables.models.TableEntityUpdateMode;
import com.azure.data.tables.models.TableServiceProperties;
import com.azure.data.tables.models.TableSignedIdentifier;
import com.azure.data.tables.models.TableTransactionAction;
import com.azure.data.tables.models.TableTransactionActionType;
import com.azure.data.tables.sas.TableSasPermission;
import com.azure.data.tables.sas.TableSasSignatureValues;
import java.time.Duration;
import java.util.List;

/** The table service, by azure-data-tables. */
final class TableCalls {
    private final Calls calls;

    TableCalls(Calls calls) {
        this.calls = calls;
    }

    private static TableEntity entity(String row, String color) {
        return new TableEntity("p", row).addProperty("Color", color).addProperty("Count", 1L << 40);
    }

    private static TableTransactionAction action(TableTransactionActionType type, String row) {
        return new TableTransactionAction(type, entity(row, "green"));
    }

    void run() {
        RetryPolicy once = new RetryPolicy(new FixedDelay(0, Duration.ofMillis(1)));
        TableServiceClient service =
            new TableServiceClientBuilder().connectionString(CONNECTION).retryPolicy(once).buildClient();
        calls.run("Set Table Service Properties", () -> {
            TableServiceProperties properties = service.getProperties();
            properties.getLogging().setReadLogged(true);
            service.setProperties(properties);
        });
        calls.run("Get Table Service Properties", () -> expect(service.getProperties().getLogging().isReadLogged(), true));
        TableServiceClient copy = new TableServiceClientBuilder().endpoint(secondary("TableEndpoint"))
            .credential(new AzureNamedKeyCredential(Account.NAME, Account.KEY)).retryPolicy(once).buildClient();
        calls.run("Get Table Service Stats", copy::getStatistics);

        String name = unique("table");
        TableClient table = service.getTableClient(name);
        calls.run("Create Table", table::createTable);
        calls.run("Create Table if there is none", () -> service.createTableIfNotExists(name));
        calls.run("Query Tables", () -> expect(service.listTables(
            new ListTablesOptions().setFilter("TableName eq '" + name + "'"), null, Context.NONE).stream().count(), 1L));
        TableSignedIdentifier policy = new TableSignedIdentifier("policy")
            .setAccessPolicy(new TableAccessPolicy().setStartsOn(soon()).setExpiresOn(soon()).setPermissions("r"));
        calls.run("Set Table ACL", () -> table.setAccessPolicies(List.of(policy)));
        calls.run("Get Table ACL", () -> expect(table.getAccessPolicies().getIdentifiers().size(), 1));

        calls.run("Insert Entity", () -> table.createEntity(entity("a", "blue")));
        TableEntity read = calls.get("Query Entity", () -> table.getEntity("p", "a"));
        calls.run("Merge Entity", () -> table.updateEntity(entity("a", "red"), TableEntityUpdateMode.MERGE));
        calls.refused("Update Entity with a stale ETag", "UpdateConditionNotSatisfied", () ->
            table.updateEntityWithResponse(read, TableEntityUpdateMode.REPLACE, true, null, Context.NONE));
        calls.run("Update Entity", () -> table.updateEntity(entity("a", "red"), TableEntityUpdateMode.REPLACE));
        calls.run("Insert Or Merge Entity", () -> table.upsertEntity(entity("b", "blue")));
        calls.run("Insert Or Replace Entity", () ->
            table.upsertEntityWithResponse(entity("b", "red"), TableEntityUpdateMode.REPLACE, null, Context.NONE));
        calls.run("Query Entities", () -> expect(table.listEntities(new ListEntitiesOptions()
            .setFilter("Color eq 'red'").setSelect(List.of("RowKey")).setTop(10), null, Context.NONE).stream().count(), 2L));
        calls.run("Entity Group Transaction: insert, merge, replace", () -> expect(table.submitTransaction(List.of(
            action(TableTransactionActionType.CREATE, "c"),
            action(TableTransactionActionType.UPSERT_MERGE, "d"),
            action(TableTransactionActionType.UPSERT_REPLACE, "e"),
            action(TableTransactionActionType.UPDATE_MERGE, "a"),
            action(TableTransactionActionType.UPDATE_REPLACE, "b"))).getTransactionActionResponses().size(), 5));
        calls.run("Entity Group Transaction: delete", () -> table.submitTransaction(List.of(
            action(TableTransactionActionType.DELETE, "c"), action(TableTransactionActionType.DELETE, "d"))));
        calls.refused("Entity Group Transaction that fails", "EntityAlreadyExists", () ->
            table.submitTransaction(List.of(action(TableTransactionActionType.CREATE, "a"))));
        calls.run("Query Entity by SAS", () -> {
            String sas = table.generateSas(new TableSasSignatureValues(soon(), new TableSasPermission().setReadPermission(true)));
            TableClient guest = new TableClientBuilder().endpoint(part("TableEndpoint")).sasToken(sas)
                .tableName(name).retryPolicy(once).buildClient();
            expect(guest.getEntity("p", "a").getProperty("Color"), "green");
        });
        calls.run("Delete Entity", () -> table.deleteEntity("p", "a"));
        calls.run("Delete Table", table::deleteTable);
    }
}
