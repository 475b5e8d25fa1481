package clients

import (
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azqueue"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azqueue/sas"
)

func TestQueue(t *testing.T) {
	service, err := azqueue.NewServiceClientFromConnectionString(connection(t), &azqueue.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	name := unique("queue")
	queue := service.NewQueueClient(name)
	metadata := map[string]*string{"Color": to("blue")}

	called(service.SetProperties(ctx, &azqueue.SetPropertiesOptions{CORS: []*azqueue.CORSRule{{
		AllowedOrigins: to("*"), AllowedMethods: to("GET"), AllowedHeaders: to("*"), ExposedHeaders: to("*"), MaxAgeInSeconds: to(int32(5)),
	}}})).as(t, "Set Queue Service Properties")
	expect(t, "CORS rules", len(called(service.GetServiceProperties(ctx, nil)).as(t, "Get Queue Service Properties").CORS), 1)
	key, err := azqueue.NewSharedKeyCredential(fromConnection("AccountName"), fromConnection("AccountKey"))
	if err != nil {
		t.Fatal(err)
	}
	secondary, err := azqueue.NewServiceClientWithSharedKeyCredential(secondaryOf(service.URL()), key, &azqueue.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	called(secondary.GetStatistics(ctx, nil)).as(t, "Get Queue Service Stats")
	called(service.CreateQueue(ctx, name, &azqueue.CreateOptions{Metadata: metadata})).as(t, "Create Queue")
	listed := firstPage(service.NewListQueuesPager(&azqueue.ListQueuesOptions{Prefix: &name, Include: azqueue.ListQueuesInclude{Metadata: true}})).as(t, "List Queues")
	expect(t, "listed queues", len(listed.Queues), 1)
	called(queue.SetMetadata(ctx, &azqueue.SetMetadataOptions{Metadata: metadata})).as(t, "Set Queue Metadata")
	called(queue.GetProperties(ctx, nil)).as(t, "Get Queue Metadata")
	called(queue.SetAccessPolicy(ctx, &azqueue.SetAccessPolicyOptions{QueueACL: []*azqueue.SignedIdentifier{{
		ID: to("policy"), AccessPolicy: &azqueue.AccessPolicy{Expiry: to(soon()), Permission: to("r")},
	}}})).as(t, "Set Queue ACL")
	acl := called(queue.GetAccessPolicy(ctx, nil)).as(t, "Get Queue ACL")
	expect(t, "policies", len(acl.SignedIdentifiers), 1)

	called(queue.EnqueueMessage(ctx, "one", &azqueue.EnqueueMessageOptions{TimeToLive: to(int32(-1))})).as(t, "Put Message")
	called(queue.EnqueueMessage(ctx, "two", nil)).as(t, "Put Message with the defaults")
	peeked := called(queue.PeekMessages(ctx, &azqueue.PeekMessagesOptions{NumberOfMessages: to(int32(2))})).as(t, "Peek Messages")
	expect(t, "peeked messages", len(peeked.Messages), 2)
	got := called(queue.DequeueMessage(ctx, nil)).as(t, "Get Messages").Messages[0]
	expect(t, "the first message", *got.MessageText, "one")
	updated := called(queue.UpdateMessage(ctx, *got.MessageID, *got.PopReceipt, "one again", &azqueue.UpdateMessageOptions{VisibilityTimeout: to(int32(60))})).as(t, "Update Message")
	called(queue.DeleteMessage(ctx, *got.MessageID, *updated.PopReceipt, nil)).as(t, "Delete Message")
	url, err := queue.GetSASURL(sas.QueuePermissions{Read: true}, soon(), nil)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := azqueue.NewQueueClientWithNoCredential(url, &azqueue.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	called(shared.PeekMessage(ctx, nil)).as(t, "Peek Messages by SAS")
	called(queue.ClearMessages(ctx, nil)).as(t, "Clear Messages")
	called(queue.Delete(ctx, nil)).as(t, "Delete Queue")
	refused(t, "Get Queue Metadata of a deleted queue", "QueueNotFound", called(queue.GetProperties(ctx, nil)))
}
