package clients

import (
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azfile/directory"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azfile/file"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azfile/lease"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azfile/sas"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azfile/service"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azfile/share"
)

const sddl = "O:S-1-5-21-1-2-3-1001G:S-1-5-21-1-2-3-513D:(A;;FA;;;WD)"

func fileService(t *testing.T) *service.Client {
	t.Helper()
	client, err := service.NewClientFromConnectionString(connection(t), &service.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func newShare(t *testing.T) *share.Client {
	t.Helper()
	client := fileService(t).NewShareClient(unique("share"))
	if _, err := client.Create(ctx, nil); err != nil {
		t.Fatal(err)
	}
	return client
}

func TestFileService(t *testing.T) {
	client := fileService(t)
	called(client.SetProperties(ctx, &service.SetPropertiesOptions{CORS: []*service.CORSRule{{
		AllowedOrigins: to("*"), AllowedMethods: to("GET"), AllowedHeaders: to("*"), ExposedHeaders: to("*"), MaxAgeInSeconds: to(int32(5)),
	}}})).as(t, "Set File Service Properties")
	expect(t, "CORS rules", len(called(client.GetProperties(ctx, nil)).as(t, "Get File Service Properties").CORS), 1)
	name := unique("share")
	called(client.CreateShare(ctx, name, nil)).as(t, "Create Share")
	called(client.DeleteShare(ctx, name, nil)).as(t, "Delete Share")
	listed := firstPage(client.NewListSharesPager(&service.ListSharesOptions{
		Prefix: &name, Include: service.ListSharesInclude{Deleted: true, Metadata: true, Snapshots: true},
	})).as(t, "List Shares")
	expect(t, "deleted shares", len(listed.Shares), 1)
	called(client.RestoreShare(ctx, name, *listed.Shares[0].Version, nil)).as(t, "Restore Share")

	address, err := client.GetSASURL(sas.AccountResourceTypes{Service: true}, sas.AccountPermissions{List: true}, soon(), nil)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := service.NewClientWithNoCredential(address, &service.ClientOptions{ClientOptions: once})
	if err != nil {
		t.Fatal(err)
	}
	firstPage(shared.NewListSharesPager(nil)).as(t, "List Shares by account SAS")
	bearer, err := service.NewClient(client.URL(), issued{}, &service.ClientOptions{
		ClientOptions: once, FileRequestIntent: to(service.ShareTokenIntentBackup),
	})
	if err != nil {
		t.Fatal(err)
	}
	firstPage(bearer.NewListSharesPager(nil)).as(t, "List Shares by bearer token")
	now := time.Now().UTC()
	called(bearer.GetUserDelegationCredential(ctx, service.KeyInfo{
		Start: to(now.Format(time.RFC3339)), Expiry: to(now.Add(time.Hour).Format(time.RFC3339)),
	}, nil)).as(t, "Get User Delegation Key")
}

func TestShare(t *testing.T) {
	client := fileService(t).NewShareClient(unique("share"))
	metadata := map[string]*string{"Color": to("blue")}
	called(client.Create(ctx, &share.CreateOptions{Metadata: metadata, Quota: to(int32(5)), AccessTier: to(share.AccessTierHot)})).as(t, "Create Share")
	called(client.GetProperties(ctx, nil)).as(t, "Get Share Properties")
	called(client.SetProperties(ctx, &share.SetPropertiesOptions{Quota: to(int32(6)), AccessTier: to(share.AccessTierCool)})).as(t, "Set Share Properties")
	called(client.SetMetadata(ctx, &share.SetMetadataOptions{Metadata: metadata})).as(t, "Set Share Metadata")
	called(client.SetAccessPolicy(ctx, &share.SetAccessPolicyOptions{ShareACL: []*share.SignedIdentifier{{
		ID: to("policy"), AccessPolicy: &share.AccessPolicy{Expiry: to(soon()), Permission: to("r")},
	}}})).as(t, "Set Share ACL")
	acl := called(client.GetAccessPolicy(ctx, nil)).as(t, "Get Share ACL")
	expect(t, "policies", len(acl.SignedIdentifiers), 1)
	called(client.GetStatistics(ctx, nil)).as(t, "Get Share Stats")
	permission := called(client.CreatePermission(ctx, sddl, nil)).as(t, "Create Permission")
	called(client.GetPermission(ctx, *permission.FilePermissionKey, nil)).as(t, "Get Permission")

	leases, err := lease.NewShareClient(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	called(leases.Acquire(ctx, 60, nil)).as(t, "Lease Share: acquire")
	called(leases.Renew(ctx, nil)).as(t, "Lease Share: renew")
	called(leases.Change(ctx, "2f6b7a2e-1111-4222-8333-444455556666", nil)).as(t, "Lease Share: change")
	called(leases.Release(ctx, nil)).as(t, "Lease Share: release")
	called(leases.Acquire(ctx, 60, nil)).as(t, "Lease Share: acquire again")
	called(leases.Break(ctx, &lease.ShareBreakOptions{BreakPeriod: to(int32(0))})).as(t, "Lease Share: break")

	snapshot := called(client.CreateSnapshot(ctx, nil)).as(t, "Snapshot Share")
	older, err := client.WithSnapshot(*snapshot.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	called(older.GetProperties(ctx, nil)).as(t, "Get Share Properties of a snapshot")
	missing, err := client.WithSnapshot("2001-01-01T00:00:00.0000000Z")
	if err != nil {
		t.Fatal(err)
	}
	refused(t, "Get Share Properties of an unknown snapshot", "ShareNotFound", called(missing.GetProperties(ctx, nil)))
	called(client.Delete(ctx, &share.DeleteOptions{DeleteSnapshots: to(share.DeleteSnapshotsOptionTypeInclude)})).as(t, "Delete Share with its snapshots")
}

func TestDirectory(t *testing.T) {
	parent := newShare(t)
	client := parent.NewDirectoryClient("directory ä")
	metadata := map[string]*string{"Color": to("blue")}
	called(client.Create(ctx, &directory.CreateOptions{Metadata: metadata})).as(t, "Create Directory")
	called(client.GetProperties(ctx, nil)).as(t, "Get Directory Properties")
	called(client.SetProperties(ctx, &directory.SetPropertiesOptions{FilePermissions: &file.Permissions{Permission: to(sddl)}})).as(t, "Set Directory Properties")
	called(client.SetMetadata(ctx, &directory.SetMetadataOptions{Metadata: metadata})).as(t, "Set Directory Metadata")
	called(client.NewSubdirectoryClient("below").Create(ctx, nil)).as(t, "Create Directory in a directory")
	called(client.NewFileClient("file").Create(ctx, 10, nil)).as(t, "Create File in a directory")
	listed := firstPage(client.NewListFilesAndDirectoriesPager(&directory.ListFilesAndDirectoriesOptions{
		IncludeExtendedInfo: to(true), Include: directory.ListFilesInclude{Timestamps: true, ETag: true, Attributes: true, PermissionKey: true},
	})).as(t, "List Directories and Files")
	expect(t, "directories", len(listed.Segment.Directories), 1)
	expect(t, "files", len(listed.Segment.Files), 1)
	called(client.ListHandles(ctx, nil)).as(t, "List Handles")
	called(client.ForceCloseHandles(ctx, "*", nil)).as(t, "Force Close Handles")
	called(client.NewSubdirectoryClient("below").Rename(ctx, "directory ä/renamed", nil)).as(t, "Rename Directory")
	called(client.NewSubdirectoryClient("renamed").Delete(ctx, nil)).as(t, "Delete Directory")
}

func TestFile(t *testing.T) {
	parent := newShare(t)
	under := parent.NewDirectoryClient("directory ä")
	if _, err := under.Create(ctx, nil); err != nil {
		t.Fatal(err)
	}
	client := under.NewFileClient("file")
	metadata := map[string]*string{"Color": to("blue")}
	content := strings.Repeat("f", 512)
	called(client.Create(ctx, 1024, &file.CreateOptions{Metadata: metadata})).as(t, "Create File")
	called(client.UploadRange(ctx, 0, body(content), nil)).as(t, "Put Range")
	called(client.GetProperties(ctx, nil)).as(t, "Get File Properties")
	expectBody(t, called(client.DownloadStream(ctx, &file.DownloadStreamOptions{Range: file.HTTPRange{Count: 4}})).as(t, "Get File").Body, "ffff")
	called(client.SetHTTPHeaders(ctx, &file.SetHTTPHeadersOptions{HTTPHeaders: &file.HTTPHeaders{ContentType: to("text/plain")}})).as(t, "Set File Properties")
	called(client.SetMetadata(ctx, &file.SetMetadataOptions{Metadata: metadata})).as(t, "Set File Metadata")
	called(client.Resize(ctx, 2048, nil)).as(t, "Set File Properties: size")

	snapshot := called(parent.CreateSnapshot(ctx, nil)).as(t, "Snapshot Share")
	source, err := client.GetSASURL(sas.FilePermissions{Read: true}, soon(), nil)
	if err != nil {
		t.Fatal(err)
	}
	called(client.UploadRangeFromURL(ctx, source, 0, 512, 512, nil)).as(t, "Put Range From URL")
	ranges := called(client.GetRangeList(ctx, nil)).as(t, "List Ranges")
	expect(t, "ranges", len(ranges.Ranges), 1)
	changed := called(client.GetRangeList(ctx, &file.GetRangeListOptions{PrevShareSnapshot: snapshot.Snapshot})).as(t, "List Ranges with a previous snapshot")
	expect(t, "changed ranges", len(changed.Ranges), 1)
	called(client.ClearRange(ctx, file.HTTPRange{Count: 512}, nil)).as(t, "Put Range: clear")

	target := under.NewFileClient("target")
	copied := called(target.StartCopyFromURL(ctx, client.URL(), nil)).as(t, "Copy File")
	refused(t, "Abort Copy File that is done", "NoPendingCopyOperation", called(target.AbortCopy(ctx, *copied.CopyID, nil)))
	leases, err := lease.NewFileClient(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	called(leases.Acquire(ctx, nil)).as(t, "Lease File: acquire")
	called(leases.Change(ctx, "2f6b7a2e-1111-4222-8333-444455556666", nil)).as(t, "Lease File: change")
	called(leases.Release(ctx, nil)).as(t, "Lease File: release")
	called(leases.Acquire(ctx, nil)).as(t, "Lease File: acquire again")
	called(leases.Break(ctx, nil)).as(t, "Lease File: break")
	called(client.ListHandles(ctx, nil)).as(t, "List Handles")
	called(client.ForceCloseHandles(ctx, "*", nil)).as(t, "Force Close Handles")

	uploaded := called(struct{}{}, target.UploadBuffer(ctx, []byte(strings.Repeat("0123456789abcdef", 1<<16))[:2048], nil))
	uploaded.as(t, "Put Range of a buffer")
	called(target.DownloadBuffer(ctx, make([]byte, 2048), nil)).as(t, "Get File in parts")
	called(target.Rename(ctx, "directory ä/renamed", &file.RenameOptions{ReplaceIfExists: to(true)})).as(t, "Rename File")
	called(under.NewFileClient("renamed").Delete(ctx, nil)).as(t, "Delete File")
	called(client.Delete(ctx, nil)).as(t, "Delete File that had a lease")
}
