package lazuli.clients;

import static lazuli.clients.Account.CONNECTION;
import static lazuli.clients.Account.CREDENTIAL;
import static lazuli.clients.Account.METADATA;
import static lazuli.clients.Account.NAME;
import static lazuli.clients.Account.ONCE;
import static lazuli.clients.Account.OTHER_LEASE;
import static lazuli.clients.Account.TOKEN;
import static lazuli.clients.Account.part;
import static lazuli.clients.Account.secondary;
import static lazuli.clients.Account.soon;
import static lazuli.clients.Account.unique;
import static lazuli.clients.Calls.expect;

import com.azure.core.util.BinaryData;
import com.azure.core.util.Context;
import com.azure.storage.blob.BlobContainerClient;
import com.azure.storage.blob.BlobServiceClient;
import com.azure.storage.blob.BlobServiceClientBuilder;
import com.azure.storage.blob.batch.BlobBatchClient;
import com.azure.storage.blob.batch.BlobBatchClientBuilder;
import com.azure.storage.blob.models.AccessTier;
import com.azure.storage.blob.models.BlobAccessPolicy;
import com.azure.storage.blob.models.BlobContainerItem;
import com.azure.storage.blob.models.BlobContainerListDetails;
import com.azure.storage.blob.models.BlobListDetails;
import com.azure.storage.blob.models.BlobRetentionPolicy;
import com.azure.storage.blob.models.BlobServiceProperties;
import com.azure.storage.blob.models.BlobSignedIdentifier;
import com.azure.storage.blob.models.DeleteSnapshotsOptionType;
import com.azure.storage.blob.models.ListBlobContainersOptions;
import com.azure.storage.blob.models.ListBlobsOptions;
import com.azure.storage.blob.models.UserDelegationKey;
import com.azure.storage.blob.sas.BlobSasPermission;
import com.azure.storage.blob.sas.BlobServiceSasSignatureValues;
import com.azure.storage.blob.specialized.BlobLeaseClient;
import com.azure.storage.blob.specialized.BlobLeaseClientBuilder;
import com.azure.storage.common.sas.AccountSasPermission;
import com.azure.storage.common.sas.AccountSasResourceType;
import com.azure.storage.common.sas.AccountSasService;
import com.azure.storage.common.sas.AccountSasSignatureValues;
import java.util.List;
import java.util.Map;

/** The blob service, containers and batches, by azure-storage-blob and azure-storage-blob-batch. */
final class BlobCalls {
    private final Calls calls;
    private final BlobServiceClient service = service().buildClient();

    BlobCalls(Calls calls) {
        this.calls = calls;
    }

    static BlobServiceClientBuilder service() {
        return new BlobServiceClientBuilder().connectionString(CONNECTION).retryOptions(ONCE);
    }

    private static BlobServiceClientBuilder at(String endpoint) {
        return new BlobServiceClientBuilder().endpoint(endpoint).retryOptions(ONCE);
    }

    void run() {
        serviceLevel();
        containers();
        batches();
        delegation();
    }

    private void serviceLevel() {
        calls.run("Set Blob Service Properties", () -> {
            BlobServiceProperties properties = service.getProperties();
            properties.setDeleteRetentionPolicy(new BlobRetentionPolicy().setEnabled(true).setDays(1));
            service.setProperties(properties);
        });
        calls.run("Get Blob Service Properties", () ->
            expect(service.getProperties().getDeleteRetentionPolicy().isEnabled(), true));
        calls.run("Get Account Information", service::getAccountInfo);
        BlobServiceClient copy = at(secondary("BlobEndpoint")).credential(CREDENTIAL).buildClient();
        calls.run("Get Blob Service Stats", copy::getStatistics);

        String name = unique("container");
        calls.run("Create Container by the service", () -> service.createBlobContainer(name));
        calls.run("Delete Container by the service", () -> service.deleteBlobContainer(name));
        ListBlobContainersOptions options = new ListBlobContainersOptions().setPrefix(name)
            .setDetails(new BlobContainerListDetails().setRetrieveDeleted(true).setRetrieveMetadata(true));
        BlobContainerItem deleted = calls.get("List Containers", () ->
            service.listBlobContainers(options, null).stream().findFirst().orElseThrow());
        calls.run("Restore Container", () -> service.undeleteBlobContainer(name, deleted.getVersion()));

        String sas = service.generateAccountSas(new AccountSasSignatureValues(soon(),
            new AccountSasPermission().setListPermission(true), new AccountSasService().setBlobAccess(true),
            new AccountSasResourceType().setService(true)));
        BlobServiceClient guest = at(part("BlobEndpoint")).sasToken(sas).buildClient();
        calls.run("List Containers by account SAS", () -> guest.listBlobContainers().stream().count());
    }

    private void containers() {
        BlobContainerClient container = service.getBlobContainerClient(unique("container"));
        calls.run("Create Container", () -> container.createWithResponse(METADATA, null, null, Context.NONE));
        calls.run("Get Container Properties", () -> expect(container.getProperties().getMetadata(), METADATA));
        calls.run("Get Container Properties: exists", () -> expect(container.exists(), true));
        calls.run("Set Container Metadata", () -> container.setMetadata(METADATA));
        BlobSignedIdentifier policy = new BlobSignedIdentifier().setId("policy")
            .setAccessPolicy(new BlobAccessPolicy().setExpiresOn(soon()).setPermissions("r"));
        calls.run("Set Container ACL", () -> container.setAccessPolicy(null, List.of(policy)));
        calls.run("Get Container ACL", () -> expect(container.getAccessPolicy().getIdentifiers().size(), 1));
        calls.run("Get Account Information by a container", () -> container.getAccountInfo(null));

        BlobLeaseClient lease = new BlobLeaseClientBuilder().containerClient(container).buildClient();
        calls.run("Lease Container: acquire", () -> lease.acquireLease(60));
        calls.run("Lease Container: renew", lease::renewLease);
        calls.run("Lease Container: change", () -> lease.changeLease(OTHER_LEASE));
        calls.run("Lease Container: release", lease::releaseLease);
        calls.run("Lease Container: acquire again", () -> lease.acquireLease(60));
        calls.run("Lease Container: break", () -> lease.breakLeaseWithResponse(0, null, null, Context.NONE));

        for (String name : List.of("a", "b", "directory/c")) {
            container.getBlobClient(name).upload(BinaryData.fromString(name));
            container.getBlobClient(name).setTags(Map.of("kind", "java"));
        }
        ListBlobsOptions everything = new ListBlobsOptions().setDetails(new BlobListDetails().setRetrieveMetadata(true)
            .setRetrieveTags(true).setRetrieveSnapshots(true).setRetrieveVersions(true).setRetrieveCopy(true));
        calls.run("List Blobs", () -> expect(container.listBlobs(everything, null).stream().count(), 3L));
        calls.run("List Blobs with a delimiter", () ->
            expect(container.listBlobsByHierarchy("").stream().count(), 3L));
        calls.run("Find Blobs by Tags in a container", () ->
            expect(container.findBlobsByTags("kind='java'").stream().count(), 3L));
        calls.run("Find Blobs by Tags", () -> service.findBlobsByTags("kind='java'").stream().count());
        calls.run("Delete Container", container::delete);
    }

    private void batches() {
        BlobContainerClient container = service.createBlobContainer(unique("container"));
        List<String> addresses = List.of("one", "two", "directory ä/three").stream().map(name -> {
            container.getBlobClient(name).upload(BinaryData.fromString(name));
            return container.getBlobClient(name).getBlobUrl();
        }).toList();
        BlobBatchClient batch = new BlobBatchClientBuilder(service).buildClient();
        BlobBatchClient within = new BlobBatchClientBuilder(container).buildClient();
        calls.run("Blob Batch: set tier", () ->
            batch.setBlobsAccessTier(addresses, AccessTier.COOL).forEach(part -> expect(part.getStatusCode(), 200)));
        calls.run("Blob Batch of a container: set tier", () ->
            within.setBlobsAccessTier(addresses, AccessTier.HOT).forEach(part -> expect(part.getStatusCode(), 200)));
        calls.run("Blob Batch: one part fails", () -> {
            var parts = batch.getBlobBatch();
            var good = parts.setBlobAccessTier(addresses.get(0), AccessTier.COOL);
            var bad = parts.setBlobAccessTier(addresses.get(0) + "-missing", AccessTier.COOL);
            batch.submitBatchWithResponse(parts, false, null, Context.NONE);
            expect(good.getStatusCode(), 200);
            try {
                bad.getStatusCode();
            } catch (com.azure.storage.blob.models.BlobStorageException error) {
                expect(error.getStatusCode(), 404);
                return;
            }
            throw new IllegalStateException("the part did not fail");
        });
        calls.run("Blob Batch of a container: delete", () ->
            within.deleteBlobs(addresses.subList(0, 1), DeleteSnapshotsOptionType.INCLUDE)
                .forEach(part -> expect(part.getStatusCode(), 202)));
        calls.run("Blob Batch: delete", () ->
            batch.deleteBlobs(addresses.subList(1, 3), DeleteSnapshotsOptionType.INCLUDE)
                .forEach(part -> expect(part.getStatusCode(), 202)));
    }

    private void delegation() {
        BlobContainerClient container = service.createBlobContainer(unique("container"));
        var blob = container.getBlobClient("delegated");
        blob.upload(BinaryData.fromString("delegated"));
        BlobServiceClient bearer = at(part("BlobEndpoint")).credential(TOKEN).buildClient();
        calls.run("List Containers by bearer token", () -> bearer.listBlobContainers().stream().count());
        UserDelegationKey key = calls.get("Get User Delegation Key", () -> bearer.getUserDelegationKey(null, soon()));
        calls.run("Get Blob by user delegation SAS", () -> {
            var values = new BlobServiceSasSignatureValues(soon(), new BlobSasPermission().setReadPermission(true));
            String sas = blob.generateUserDelegationSas(values, key, NAME, Context.NONE);
            var guest = at(part("BlobEndpoint")).sasToken(sas).buildClient()
                .getBlobContainerClient(container.getBlobContainerName()).getBlobClient("delegated");
            expect(guest.downloadContent().toString(), "delegated");
        });
    }
}
