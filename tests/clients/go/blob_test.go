package clients

import (
	"context"
	"encoding/base64"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/appendblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/pageblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/service"
)

var blobMetadata = map[string]*string{"Color": to("blue")}

func blobService(t *testing.T) *service.Client {
	t.Helper()
	client, err := service.NewClientFromConnectionString(connection(t), &service.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func newContainer(t *testing.T) *container.Client {
	t.Helper()
	client := blobService(t).NewContainerClient(unique("container"))
	if _, err := client.Create(ctx, nil); err != nil {
		t.Fatal(err)
	}
	return client
}

// readable returns the address of a blob with a SAS, as a source for copies.
func readable(t *testing.T, client *blob.Client) string {
	t.Helper()
	address, err := client.GetSASURL(sas.BlobPermissions{Read: true, Tag: true}, soon(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func TestBlobService(t *testing.T) {
	client := blobService(t)
	called(client.SetProperties(ctx, &service.SetPropertiesOptions{
		CORS: []*service.CORSRule{{
			AllowedOrigins: to("*"), AllowedMethods: to("GET,PUT"), AllowedHeaders: to("*"), ExposedHeaders: to("*"), MaxAgeInSeconds: to(int32(5)),
		}},
		DeleteRetentionPolicy: &service.RetentionPolicy{Enabled: to(true), Days: to(int32(1))},
	})).as(t, "Set Blob Service Properties")
	expect(t, "CORS rules", len(called(client.GetProperties(ctx, nil)).as(t, "Get Blob Service Properties").CORS), 1)
	called(client.GetAccountInfo(ctx, nil)).as(t, "Get Account Information")
	secondary, err := service.NewClientWithSharedKeyCredential(secondaryOf(client.URL()), blobKey(t), &service.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	called(secondary.GetStatistics(ctx, nil)).as(t, "Get Blob Service Stats")

	name := unique("container")
	called(client.CreateContainer(ctx, name, nil)).as(t, "Create Container")
	called(client.DeleteContainer(ctx, name, nil)).as(t, "Delete Container")
	listed := firstPage(client.NewListContainersPager(&service.ListContainersOptions{
		Prefix: &name, Include: service.ListContainersInclude{Deleted: true, Metadata: true},
	})).as(t, "List Containers")
	expect(t, "deleted containers", len(listed.ContainerItems), 1)
	called(client.RestoreContainer(ctx, name, *listed.ContainerItems[0].Version, nil)).as(t, "Restore Container")

	address, err := client.GetSASURL(sas.AccountResourceTypes{Service: true}, sas.AccountPermissions{List: true}, soon(), nil)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := service.NewClientWithNoCredential(address, &service.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	firstPage(shared.NewListContainersPager(nil)).as(t, "List Containers by account SAS")

	// The client takes the account's name for a user delegation SAS from the host's first label.
	byHost := "https://" + fromConnection("AccountName") + "." + os.Getenv("HOST_SUFFIX")
	named := once
	named.Transport = dialing(client.URL())
	bearer, err := service.NewClient(byHost, issued{}, &service.ClientOptions{ClientOptions: named})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC()
	delegated := called(bearer.GetUserDelegationCredential(ctx, service.KeyInfo{
		Start: to(now.Format(time.RFC3339)), Expiry: to(now.Add(time.Hour).Format(time.RFC3339)),
	}, nil)).as(t, "Get User Delegation Key")
	source := client.NewContainerClient(name).NewBlockBlobClient("delegated")
	if _, err := source.Upload(ctx, body("delegated"), nil); err != nil {
		t.Fatal(err)
	}
	signed, err := sas.BlobSignatureValues{
		ExpiryTime: soon(), Permissions: "r", ContainerName: name, BlobName: "delegated",
	}.SignWithUserDelegation(delegated)
	if err != nil {
		t.Fatal(err)
	}
	guest, err := blob.NewClientWithNoCredential(source.URL()+"?"+signed.Encode(), &blob.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	expectBody(t, called(guest.DownloadStream(ctx, nil)).as(t, "Get Blob by user delegation SAS").Body, "delegated")
}

func TestContainer(t *testing.T) {
	client := blobService(t).NewContainerClient(unique("container"))
	called(client.Create(ctx, &container.CreateOptions{Metadata: blobMetadata})).as(t, "Create Container")
	called(client.GetProperties(ctx, nil)).as(t, "Get Container Properties")
	called(client.SetMetadata(ctx, &container.SetMetadataOptions{Metadata: blobMetadata})).as(t, "Set Container Metadata")
	called(client.SetAccessPolicy(ctx, &container.SetAccessPolicyOptions{ContainerACL: []*container.SignedIdentifier{{
		ID: to("policy"), AccessPolicy: &container.AccessPolicy{Expiry: to(soon()), Permission: to("r")},
	}}})).as(t, "Set Container ACL")
	acl := called(client.GetAccessPolicy(ctx, nil)).as(t, "Get Container ACL")
	expect(t, "policies", len(acl.SignedIdentifiers), 1)
	called(client.GetAccountInfo(ctx, nil)).as(t, "Get Account Information")

	leases, err := lease.NewContainerClient(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	called(leases.AcquireLease(ctx, 60, nil)).as(t, "Lease Container: acquire")
	called(leases.RenewLease(ctx, nil)).as(t, "Lease Container: renew")
	called(leases.ChangeLease(ctx, "2f6b7a2e-1111-4222-8333-444455556666", nil)).as(t, "Lease Container: change")
	called(leases.ReleaseLease(ctx, nil)).as(t, "Lease Container: release")
	called(leases.AcquireLease(ctx, 60, nil)).as(t, "Lease Container: acquire again")
	called(leases.BreakLease(ctx, &lease.ContainerBreakOptions{BreakPeriod: to(int32(0))})).as(t, "Lease Container: break")

	for _, name := range []string{"a", "b", "directory/c"} {
		tags := map[string]string{"kind": "sample"}
		if _, err := client.NewBlockBlobClient(name).Upload(ctx, body(name), &blockblob.UploadOptions{Tags: tags}); err != nil {
			t.Fatal(err)
		}
	}
	flat := firstPage(client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{
		Include: container.ListBlobsInclude{Metadata: true, Snapshots: true, Tags: true, Versions: true},
	})).as(t, "List Blobs")
	expect(t, "blobs", len(flat.Segment.BlobItems), 3)
	tree := firstPage(client.NewListBlobsHierarchyPager("/", nil)).as(t, "List Blobs with a delimiter")
	expect(t, "prefixes", len(tree.Segment.BlobPrefixes), 1)
	called(client.FilterBlobs(ctx, "kind='sample'", nil)).as(t, "Find Blobs by Tags in a container")
	called(blobService(t).FilterBlobs(ctx, "kind='sample'", nil)).as(t, "Find Blobs by Tags")

	batch, err := client.NewBatchBuilder()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if err := batch.SetTier(name, blob.AccessTierCool, nil); err != nil {
			t.Fatal(err)
		}
	}
	tiers := called(client.SubmitBatch(ctx, batch, nil)).as(t, "Blob Batch of a container: set tier")
	for _, part := range tiers.Responses {
		expect(t, "a part's error", part.Error, nil)
	}
	wide, err := blobService(t).NewBatchBuilder()
	if err != nil {
		t.Fatal(err)
	}
	parts, err := blob.ParseURL(client.URL())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "directory/c"} {
		if err := wide.Delete(parts.ContainerName, name, nil); err != nil {
			t.Fatal(err)
		}
	}
	deleted := called(blobService(t).SubmitBatch(ctx, wide, nil)).as(t, "Blob Batch: delete")
	expect(t, "parts", len(deleted.Responses), 3)
	for _, part := range deleted.Responses {
		expect(t, "a part's error", part.Error, nil)
	}
	called(client.Delete(ctx, nil)).as(t, "Delete Container")
}

func TestBlockBlob(t *testing.T) {
	parent := newContainer(t)
	client := parent.NewBlockBlobClient("block ä/blob")
	uploaded := called(client.Upload(ctx, body("hello"), &blockblob.UploadOptions{
		Metadata: blobMetadata, HTTPHeaders: &blob.HTTPHeaders{BlobContentType: to("text/plain")}, Tier: to(blob.AccessTierHot),
	})).as(t, "Put Blob")
	expectBody(t, called(client.DownloadStream(ctx, &blob.DownloadStreamOptions{Range: blob.HTTPRange{Offset: 1, Count: 3}})).as(t, "Get Blob").Body, "ell")
	called(client.GetProperties(ctx, nil)).as(t, "Get Blob Properties")
	called(client.GetAccountInfo(ctx, nil)).as(t, "Get Account Information")
	called(client.SetHTTPHeaders(ctx, blob.HTTPHeaders{BlobContentType: to("text/html")}, nil)).as(t, "Set Blob Properties")
	called(client.SetMetadata(ctx, blobMetadata, nil)).as(t, "Set Blob Metadata")
	called(client.SetTags(ctx, map[string]string{"kind": "other"}, nil)).as(t, "Set Blob Tags")
	expect(t, "tags", len(called(client.GetTags(ctx, nil)).as(t, "Get Blob Tags").BlobTagSet), 1)
	called(client.SetTier(ctx, blob.AccessTierCool, nil)).as(t, "Set Blob Tier")
	refused(t, "Put Blob with a stale ETag", "ConditionNotMet", called(client.Upload(ctx, body("x"), &blockblob.UploadOptions{
		AccessConditions: &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: uploaded.ETag}},
	})))

	leases, err := lease.NewBlobClient(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	called(leases.AcquireLease(ctx, 15, nil)).as(t, "Lease Blob: acquire")
	refused(t, "Set Blob Metadata without the lease", "LeaseIdMissing", called(client.SetMetadata(ctx, blobMetadata, nil)))
	called(leases.RenewLease(ctx, nil)).as(t, "Lease Blob: renew")
	called(leases.ChangeLease(ctx, "2f6b7a2e-1111-4222-8333-444455556666", nil)).as(t, "Lease Blob: change")
	called(leases.ReleaseLease(ctx, nil)).as(t, "Lease Blob: release")
	called(leases.AcquireLease(ctx, 15, nil)).as(t, "Lease Blob: acquire again")
	called(leases.BreakLease(ctx, &lease.BlobBreakOptions{BreakPeriod: to(int32(0))})).as(t, "Lease Blob: break")

	snapshot := called(client.CreateSnapshot(ctx, nil)).as(t, "Snapshot Blob")
	older, err := client.WithSnapshot(*snapshot.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	expectBody(t, called(older.DownloadStream(ctx, nil)).as(t, "Get Blob of a snapshot").Body, "hello")

	source := readable(t, client.BlobClient())
	id := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	blocks := parent.NewBlockBlobClient("blocks")
	called(blocks.StageBlock(ctx, id("1"), body("first "), nil)).as(t, "Put Block")
	called(blocks.StageBlockFromURL(ctx, id("2"), source, nil)).as(t, "Put Block From URL")
	called(blocks.CommitBlockList(ctx, []string{id("1"), id("2")}, nil)).as(t, "Put Block List")
	expectBody(t, called(blocks.DownloadStream(ctx, nil)).as(t, "Get Blob of blocks").Body, "first hello")
	list := called(blocks.GetBlockList(ctx, blockblob.BlockListTypeAll, nil)).as(t, "Get Block List")
	expect(t, "blocks", len(list.CommittedBlocks), 2)

	target := parent.NewBlockBlobClient("target")
	called(target.UploadBlobFromURL(ctx, source, nil)).as(t, "Put Blob From URL")
	called(target.CopyFromURL(ctx, source, nil)).as(t, "Copy Blob From URL")
	copied := called(target.StartCopyFromURL(ctx, source, nil)).as(t, "Copy Blob")
	refused(t, "Abort Copy Blob that is done", "NoPendingCopyOperation", called(target.AbortCopyFromURL(ctx, *copied.CopyID, nil)))
	called(target.SetExpiry(ctx, blockblob.ExpiryTypeRelativeToNow(time.Hour), nil)).as(t, "Set Blob Expiry")
	called(target.SetImmutabilityPolicy(ctx, soon(), &blob.SetImmutabilityPolicyOptions{Mode: to(blob.ImmutabilityPolicySettingUnlocked)})).as(t, "Set Blob Immutability Policy")
	called(target.DeleteImmutabilityPolicy(ctx, nil)).as(t, "Delete Blob Immutability Policy")
	called(target.SetLegalHold(ctx, true, nil)).as(t, "Set Blob Legal Hold")
	called(target.SetLegalHold(ctx, false, nil)).as(t, "Set Blob Legal Hold: off")

	content := []byte(strings.Repeat("0123456789abcdef", 1<<16))
	called(target.UploadBuffer(ctx, content, &blockblob.UploadBufferOptions{BlockSize: 1 << 18})).as(t, "Put Block List of a buffer")
	buffer := make([]byte, len(content))
	called(target.DownloadBuffer(ctx, buffer, &blob.DownloadBufferOptions{BlockSize: 1 << 18})).as(t, "Get Blob in parts")
	expect(t, "the buffer", string(buffer) == string(content), true)

	called(client.Delete(ctx, &blob.DeleteOptions{DeleteSnapshots: to(blob.DeleteSnapshotsOptionTypeInclude)})).as(t, "Delete Blob")
	called(client.Undelete(ctx, nil)).as(t, "Undelete Blob")
}

func TestAppendBlob(t *testing.T) {
	parent := newContainer(t)
	client := parent.NewAppendBlobClient("append")
	called(client.Create(ctx, nil)).as(t, "Put Blob")
	called(client.AppendBlock(ctx, body("hello"), &appendblob.AppendBlockOptions{
		AppendPositionAccessConditions: &appendblob.AppendPositionAccessConditions{AppendPosition: to(int64(0))},
	})).as(t, "Append Block")
	called(client.AppendBlockFromURL(ctx, readable(t, client.BlobClient()), nil)).as(t, "Append Block From URL")
	expectBody(t, called(client.DownloadStream(ctx, nil)).as(t, "Get Blob").Body, "hellohello")
	called(client.SetExpiry(ctx, appendblob.ExpiryTypeNever{}, nil)).as(t, "Set Blob Expiry")
	called(client.Seal(ctx, nil)).as(t, "Append Blob Seal")
	refused(t, "Append Block to a sealed blob", "BlobIsSealed", called(client.AppendBlock(ctx, body("x"), nil)))
	called(client.Delete(ctx, nil)).as(t, "Delete Blob")
}

func TestPageBlob(t *testing.T) {
	parent := newContainer(t)
	client := parent.NewPageBlobClient("page")
	page := strings.Repeat("p", 512)
	called(client.Create(ctx, 4096, &pageblob.CreateOptions{SequenceNumber: to(int64(1))})).as(t, "Put Blob")
	called(client.UploadPages(ctx, body(page), blob.HTTPRange{Count: 512}, nil)).as(t, "Put Page")
	snapshot := called(client.CreateSnapshot(ctx, nil)).as(t, "Snapshot Blob")
	called(client.UploadPagesFromURL(ctx, readable(t, client.BlobClient()), 0, 1024, 512, nil)).as(t, "Put Page From URL")
	ranges := firstPage(client.NewGetPageRangesPager(nil)).as(t, "Get Page Ranges")
	expect(t, "ranges", len(ranges.PageRange), 2)
	diff := firstPage(client.NewGetPageRangesDiffPager(&pageblob.GetPageRangesDiffOptions{PrevSnapshot: snapshot.Snapshot})).as(t, "Get Page Ranges with a previous snapshot")
	expect(t, "changed ranges", len(diff.PageRange), 1)
	called(client.ClearPages(ctx, blob.HTTPRange{Count: 512}, nil)).as(t, "Put Page: clear")
	called(client.UpdateSequenceNumber(ctx, &pageblob.UpdateSequenceNumberOptions{
		ActionType: to(pageblob.SequenceNumberActionTypeIncrement),
	})).as(t, "Set Blob Properties: sequence number")
	called(client.Resize(ctx, 8192, nil)).as(t, "Set Blob Properties: size")
	called(parent.NewPageBlobClient("incremental").StartCopyIncremental(ctx, readable(t, client.BlobClient()), *snapshot.Snapshot, nil)).as(t, "Incremental Copy Blob")
	called(client.Delete(ctx, &blob.DeleteOptions{DeleteSnapshots: to(blob.DeleteSnapshotsOptionTypeOnly)})).as(t, "Delete Blob: snapshots only")
	called(client.Delete(ctx, nil)).as(t, "Delete Blob")
}

// dialing returns a transport that sends everything to the host and port of an address.
func dialing(address string) *http.Client {
	target, err := url.Parse(address)
	if err != nil {
		panic(err)
	}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, target.Host)
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial}}
}

func blobKey(t *testing.T) *service.SharedKeyCredential {
	t.Helper()
	credential, err := service.NewSharedKeyCredential(fromConnection("AccountName"), fromConnection("AccountKey"))
	if err != nil {
		t.Fatal(err)
	}
	return credential
}
