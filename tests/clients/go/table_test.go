package clients

import (
	"encoding/json"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
)

func entity(t *testing.T, row string, properties map[string]any) []byte {
	t.Helper()
	encoded, err := json.Marshal(aztables.EDMEntity{
		Entity: aztables.Entity{PartitionKey: "p", RowKey: row}, Properties: properties,
	})
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

func TestTable(t *testing.T) {
	service, err := aztables.NewServiceClientFromConnectionString(connection(t), &aztables.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	name := unique("table")
	table := service.NewClient(name)
	blue := map[string]any{"Color": "blue", "Count": aztables.EDMInt64(1 << 40)}
	red := map[string]any{"Color": "red"}

	called(service.SetProperties(ctx, aztables.ServiceProperties{Logging: &aztables.Logging{
		Version: to("1.0"), Read: to(true), Write: to(true), Delete: to(true), RetentionPolicy: &aztables.RetentionPolicy{Enabled: to(true), Days: to(int32(5))},
	}}, nil)).as(t, "Set Table Service Properties")
	logging := called(service.GetProperties(ctx, nil)).as(t, "Get Table Service Properties").Logging
	expect(t, "logging of reads", logging != nil && *logging.Read, true)
	key, err := aztables.NewSharedKeyCredential(fromConnection("AccountName"), fromConnection("AccountKey"))
	if err != nil {
		t.Fatal(err)
	}
	secondary, err := aztables.NewServiceClientWithSharedKey(secondaryOf(fromConnection("TableEndpoint")), key, &aztables.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	called(secondary.GetStatistics(ctx, nil)).as(t, "Get Table Service Stats")
	called(service.CreateTable(ctx, name, nil)).as(t, "Create Table")
	tables := firstPage(service.NewListTablesPager(&aztables.ListTablesOptions{Filter: to("TableName eq '" + name + "'")})).as(t, "Query Tables")
	expect(t, "tables", len(tables.Tables), 1)
	called(table.SetAccessPolicy(ctx, &aztables.SetAccessPolicyOptions{TableACL: []*aztables.SignedIdentifier{{
		ID: to("policy"), AccessPolicy: &aztables.AccessPolicy{Start: to(soon()), Expiry: to(soon()), Permission: to("r")},
	}}})).as(t, "Set Table ACL")
	expect(t, "policies", len(called(table.GetAccessPolicy(ctx, nil)).as(t, "Get Table ACL").SignedIdentifiers), 1)

	added := called(table.AddEntity(ctx, entity(t, "a", blue), nil)).as(t, "Insert Entity")
	called(table.GetEntity(ctx, "p", "a", nil)).as(t, "Query Entity")
	called(table.UpdateEntity(ctx, entity(t, "a", red), &aztables.UpdateEntityOptions{IfMatch: &added.ETag, UpdateMode: aztables.UpdateModeMerge})).as(t, "Merge Entity")
	refused(t, "Update Entity with a stale ETag", "UpdateConditionNotSatisfied",
		called(table.UpdateEntity(ctx, entity(t, "a", red), &aztables.UpdateEntityOptions{IfMatch: &added.ETag, UpdateMode: aztables.UpdateModeReplace})))
	called(table.UpdateEntity(ctx, entity(t, "a", red), &aztables.UpdateEntityOptions{UpdateMode: aztables.UpdateModeReplace})).as(t, "Update Entity")
	called(table.UpsertEntity(ctx, entity(t, "b", blue), &aztables.UpsertEntityOptions{UpdateMode: aztables.UpdateModeMerge})).as(t, "Insert Or Merge Entity")
	called(table.UpsertEntity(ctx, entity(t, "b", red), &aztables.UpsertEntityOptions{UpdateMode: aztables.UpdateModeReplace})).as(t, "Insert Or Replace Entity")
	found := firstPage(table.NewListEntitiesPager(&aztables.ListEntitiesOptions{Filter: to("Color eq 'red'"), Select: to("RowKey"), Top: to(int32(10))})).as(t, "Query Entities")
	expect(t, "red entities", len(found.Entities), 2)

	called(table.SubmitTransaction(ctx, []aztables.TransactionAction{
		{ActionType: aztables.TransactionTypeAdd, Entity: entity(t, "c", blue)},
		{ActionType: aztables.TransactionTypeInsertMerge, Entity: entity(t, "d", blue)},
		{ActionType: aztables.TransactionTypeInsertReplace, Entity: entity(t, "e", blue)},
		{ActionType: aztables.TransactionTypeUpdateMerge, Entity: entity(t, "a", blue), IfMatch: to(azcore.ETagAny)},
		{ActionType: aztables.TransactionTypeUpdateReplace, Entity: entity(t, "b", blue)},
	}, nil)).as(t, "Entity Group Transaction: insert, merge, replace")
	called(table.SubmitTransaction(ctx, []aztables.TransactionAction{
		{ActionType: aztables.TransactionTypeDelete, Entity: entity(t, "c", nil)},
		{ActionType: aztables.TransactionTypeDelete, Entity: entity(t, "d", nil)},
	}, nil)).as(t, "Entity Group Transaction: delete")
	refused(t, "Entity Group Transaction that fails", "EntityAlreadyExists", called(table.SubmitTransaction(ctx, []aztables.TransactionAction{
		{ActionType: aztables.TransactionTypeAdd, Entity: entity(t, "a", blue)},
	}, nil)))

	// GetTableSASURL leaves out a slash after an account in the path.
	signed, err := aztables.SASSignatureValues{
		TableName: name, Permissions: aztables.SASPermissions{Read: true}.String(), ExpiryTime: soon(),
	}.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := aztables.NewClientWithNoCredential(fromConnection("TableEndpoint")+"/"+name+"?"+signed, &aztables.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	called(shared.GetEntity(ctx, "p", "a", nil)).as(t, "Query Entity by SAS")
	called(table.DeleteEntity(ctx, "p", "a", nil)).as(t, "Delete Entity")
	called(table.Delete(ctx, nil)).as(t, "Delete Table")
}
