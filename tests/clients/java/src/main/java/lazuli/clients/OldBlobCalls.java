package lazuli.clients;

import static lazuli.clients.Account.OTHER_LEASE;
import static lazuli.clients.Account.stream;
import static lazuli.clients.Account.unique;
import static lazuli.clients.Calls.expect;
import static lazuli.clients.OldAccount.METADATA;

import com.microsoft.azure.storage.AccessCondition;
import com.microsoft.azure.storage.LocationMode;
import com.microsoft.azure.storage.ServiceProperties;
import com.microsoft.azure.storage.StorageCredentialsToken;
import com.microsoft.azure.storage.blob.BlobContainerPermissions;
import com.microsoft.azure.storage.blob.BlobDeleteBatchOperation;
import com.microsoft.azure.storage.blob.BlobListingDetails;
import com.microsoft.azure.storage.blob.BlobSetTierBatchOperation;
import com.microsoft.azure.storage.blob.BlockEntry;
import com.microsoft.azure.storage.blob.CloudAppendBlob;
import com.microsoft.azure.storage.blob.CloudBlob;
import com.microsoft.azure.storage.blob.CloudBlobClient;
import com.microsoft.azure.storage.blob.CloudBlobContainer;
import com.microsoft.azure.storage.blob.CloudBlockBlob;
import com.microsoft.azure.storage.blob.CloudPageBlob;
import com.microsoft.azure.storage.blob.DeleteSnapshotsOption;
import com.microsoft.azure.storage.blob.SharedAccessBlobPermissions;
import com.microsoft.azure.storage.blob.SharedAccessBlobPolicy;
import com.microsoft.azure.storage.blob.StandardBlobTier;
import java.net.URI;
import java.util.Base64;
import java.util.EnumSet;
import java.util.List;

/** The blob service, by azure-storage 8.6.6. */
final class OldBlobCalls {
    private final Calls calls;
    private final CloudBlobClient client = OldAccount.open().createCloudBlobClient();
    private final CloudBlobContainer container = client.getContainerReference(unique("container"));

    OldBlobCalls(Calls calls) throws Exception {
        this.calls = calls;
        OldAccount.once(client.getDefaultRequestOptions());
    }

    void run() throws Exception {
        serviceAndContainer();
        CloudBlockBlob block = blockBlob();
        blocksAndCopies(block);
        appendBlob();
        pageBlob();
        batches();
        calls.run("Delete Container", () -> container.delete());
    }

    private static SharedAccessBlobPolicy reading() {
        SharedAccessBlobPolicy policy = new SharedAccessBlobPolicy();
        policy.setPermissions(EnumSet.of(SharedAccessBlobPermissions.READ));
        policy.setSharedAccessExpiryTime(OldAccount.soon());
        return policy;
    }

    private static URI readable(CloudBlob blob) throws Exception {
        return new URI(blob.getUri() + "?" + blob.generateSharedAccessSignature(reading(), null));
    }

    private void serviceAndContainer() throws Exception {
        calls.run("Set Blob Service Properties", () -> {
            ServiceProperties properties = client.downloadServiceProperties();
            properties.getDeleteRetentionPolicy().setEnabled(true);
            properties.getDeleteRetentionPolicy().setRetentionIntervalInDays(1);
            client.uploadServiceProperties(properties);
        });
        calls.run("Get Blob Service Properties", () ->
            expect(client.downloadServiceProperties().getDeleteRetentionPolicy().getEnabled(), true));
        calls.run("Get Account Information", () -> client.downloadAccountInfo());
        CloudBlobClient both = new CloudBlobClient(OldAccount.locations("BlobEndpoint"), OldAccount.credentials());
        both.getDefaultRequestOptions().setLocationMode(LocationMode.SECONDARY_ONLY);
        calls.run("Get Blob Service Stats", () -> both.getServiceStats());
        CloudBlobClient bearer = new CloudBlobClient(new URI(Account.part("BlobEndpoint")),
            new StorageCredentialsToken(Account.NAME, System.getenv("TOKEN")));
        calls.run("Get User Delegation Key", () ->
            bearer.getUserDelegationKey(new java.util.Date(), OldAccount.soon()));

        calls.run("Create Container", () -> container.create());
        calls.run("List Containers", () -> expect(client.listContainers(container.getName()).iterator().hasNext(), true));
        container.setMetadata(METADATA);
        calls.run("Set Container Metadata", () -> container.uploadMetadata());
        calls.run("Get Container Properties", () -> container.downloadAttributes());
        calls.run("Set Container ACL", () -> {
            BlobContainerPermissions permissions = new BlobContainerPermissions();
            permissions.getSharedAccessPolicies().put("policy", reading());
            container.uploadPermissions(permissions);
        });
        calls.run("Get Container ACL", () ->
            expect(container.downloadPermissions().getSharedAccessPolicies().size(), 1));
        String lease = calls.get("Lease Container: acquire", () -> container.acquireLease(60, null));
        AccessCondition held = AccessCondition.generateLeaseCondition(lease);
        calls.run("Lease Container: renew", () -> container.renewLease(held));
        calls.run("Lease Container: change", () -> container.changeLease(OTHER_LEASE, held));
        calls.run("Lease Container: release", () ->
            container.releaseLease(AccessCondition.generateLeaseCondition(OTHER_LEASE)));
        calls.run("Lease Container: acquire again", () -> container.acquireLease(60, null));
        calls.run("Lease Container: break", () -> container.breakLease(0));
    }

    private CloudBlockBlob blockBlob() throws Exception {
        CloudBlockBlob blob = container.getBlockBlobReference("block ä/blob");
        calls.run("Put Blob", () -> blob.upload(stream("hello"), 5));
        calls.run("Get Blob", () -> expect(blob.downloadText(), "hello"));
        calls.run("Get Blob Properties", () -> blob.downloadAttributes());
        String before = blob.getProperties().getEtag();
        calls.run("Set Blob Properties", () -> blob.uploadProperties());
        blob.setMetadata(METADATA);
        calls.run("Set Blob Metadata", () -> blob.uploadMetadata());
        calls.run("Set Blob Tier", () -> blob.uploadStandardBlobTier(StandardBlobTier.COOL));
        calls.refused("Put Blob with a stale ETag", "ConditionNotMet", () -> blob.upload(
            stream("x"), 1, AccessCondition.generateIfMatchCondition(before), null, null));
        String lease = calls.get("Lease Blob: acquire", () -> blob.acquireLease(15, null));
        AccessCondition held = AccessCondition.generateLeaseCondition(lease);
        calls.refused("Set Blob Metadata without the lease", "LeaseIdMissing", () -> blob.uploadMetadata());
        calls.run("Lease Blob: renew", () -> blob.renewLease(held));
        calls.run("Lease Blob: change", () -> blob.changeLease(OTHER_LEASE, held));
        calls.run("Lease Blob: release", () -> blob.releaseLease(AccessCondition.generateLeaseCondition(OTHER_LEASE)));
        calls.run("Lease Blob: acquire again", () -> blob.acquireLease(15, null));
        calls.run("Lease Blob: break", () -> blob.breakLease(0));
        CloudBlob snapshot = calls.get("Snapshot Blob", () -> blob.createSnapshot());
        calls.run("Get Blob Properties of a snapshot", () -> snapshot.downloadAttributes());
        calls.run("List Blobs", () -> {
            int count = 0;
            for (Object ignored : container.listBlobs(null, true, EnumSet.allOf(BlobListingDetails.class), null, null)) {
                count++;
            }
            expect(count, 2);
        });
        return blob;
    }

    private void blocksAndCopies(CloudBlockBlob source) throws Exception {
        String first = Base64.getEncoder().encodeToString("1".getBytes());
        String second = Base64.getEncoder().encodeToString("2".getBytes());
        CloudBlockBlob blocks = container.getBlockBlobReference("blocks");
        calls.run("Put Block", () -> blocks.uploadBlock(first, stream("first "), 6));
        calls.run("Put Block From URL", () -> blocks.createBlockFromURI(second, readable(source), 0L, 5L));
        calls.run("Put Block List", () -> blocks.commitBlockList(List.of(new BlockEntry(first), new BlockEntry(second))));
        calls.run("Get Block List", () -> expect(blocks.downloadBlockList().size(), 2));
        CloudBlockBlob copy = container.getBlockBlobReference("copy");
        String id = calls.get("Copy Blob", () -> copy.startCopy(source));
        calls.refused("Abort Copy Blob that is done", "NoPendingCopyOperation", () -> copy.abortCopy(id));
        calls.run("Get Blob by SAS", () -> expect(new CloudBlockBlob(readable(source)).downloadText(), "hello"));
        calls.run("Delete Blob with its snapshots", () ->
            source.delete(DeleteSnapshotsOption.INCLUDE_SNAPSHOTS, null, null, null));
        calls.run("Undelete Blob", () -> source.undelete());
    }

    private void appendBlob() throws Exception {
        CloudAppendBlob blob = container.getAppendBlobReference("append");
        calls.run("Put Blob: append blob", () -> blob.createOrReplace());
        calls.run("Append Block", () -> blob.appendBlock(stream("hello"), 5));
        calls.run("Append Block From URL", () -> blob.appendBlockFromURI(readable(blob), 0L, 5L));
    }

    private void pageBlob() throws Exception {
        CloudPageBlob blob = container.getPageBlobReference("page");
        calls.run("Put Blob: page blob", () -> blob.create(4096));
        calls.run("Put Page", () -> blob.uploadPages(stream("p".repeat(512)), 0, 512));
        CloudPageBlob snapshot = (CloudPageBlob) calls.get("Snapshot Blob: page blob", () -> blob.createSnapshot());
        calls.run("Put Page From URL", () -> blob.putPagesFromURI(1024, 512, readable(blob), 0L));
        calls.run("Get Page Ranges", () -> expect(blob.downloadPageRanges().size(), 2));
        calls.run("Get Page Ranges with a previous snapshot", () ->
            expect(blob.downloadPageRangesDiff(snapshot.getSnapshotID()).size(), 1));
        calls.run("Put Page: clear", () -> blob.clearPages(0, 512));
        calls.run("Set Blob Properties: size", () -> blob.resize(8192));
        calls.run("Incremental Copy Blob", () -> {
            String sas = snapshot.generateSharedAccessSignature(reading(), null);
            container.getPageBlobReference("incremental")
                .startIncrementalCopy(new URI(snapshot.getSnapshotQualifiedUri() + "&" + sas));
        });
    }

    private void batches() throws Exception {
        BlobSetTierBatchOperation tiers = new BlobSetTierBatchOperation();
        BlobDeleteBatchOperation deletes = new BlobDeleteBatchOperation();
        for (String name : List.of("one", "two", "three")) {
            CloudBlockBlob blob = container.getBlockBlobReference(name);
            blob.uploadText(name);
            tiers.addSubOperation(blob, StandardBlobTier.COOL);
            deletes.addSubOperation(blob);
        }
        calls.run("Blob Batch: set tier", () -> expect(client.executeBatch(tiers).size(), 3));
        calls.run("Blob Batch: delete", () -> expect(client.executeBatch(deletes).size(), 3));
    }
}
