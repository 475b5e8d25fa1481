package lazuli.clients;

import static lazuli.clients.Account.METADATA;
import static lazuli.clients.Account.OTHER_LEASE;
import static lazuli.clients.Account.soon;
import static lazuli.clients.Account.stream;
import static lazuli.clients.Account.unique;
import static lazuli.clients.Calls.expect;

import com.azure.core.util.BinaryData;
import com.azure.core.util.Context;
import com.azure.storage.blob.BlobContainerClient;
import com.azure.storage.blob.models.AccessTier;
import com.azure.storage.blob.models.BlobHttpHeaders;
import com.azure.storage.blob.models.BlobImmutabilityPolicy;
import com.azure.storage.blob.models.BlobImmutabilityPolicyMode;
import com.azure.storage.blob.models.BlobRange;
import com.azure.storage.blob.models.BlobRequestConditions;
import com.azure.storage.blob.models.BlockListType;
import com.azure.storage.blob.models.DeleteSnapshotsOptionType;
import com.azure.storage.blob.models.PageRange;
import com.azure.storage.blob.models.ParallelTransferOptions;
import com.azure.storage.blob.models.SequenceNumberActionType;
import com.azure.storage.blob.options.BlobParallelUploadOptions;
import com.azure.storage.blob.sas.BlobSasPermission;
import com.azure.storage.blob.sas.BlobServiceSasSignatureValues;
import com.azure.storage.blob.specialized.AppendBlobClient;
import com.azure.storage.blob.specialized.BlobClientBase;
import com.azure.storage.blob.specialized.BlobLeaseClient;
import com.azure.storage.blob.specialized.BlobLeaseClientBuilder;
import com.azure.storage.blob.specialized.BlockBlobClient;
import com.azure.storage.blob.specialized.PageBlobClient;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Map;

/** Block, append and page blobs, by azure-storage-blob. */
final class BlobKindCalls {
    private final Calls calls;
    private final BlobContainerClient container =
        BlobCalls.service().buildClient().createBlobContainer(unique("container"));

    BlobKindCalls(Calls calls) {
        this.calls = calls;
    }

    void run() {
        BlockBlobClient source = blockBlob();
        blocksAndCopies(source);
        protectionAndDeletion();
        appendBlob();
        pageBlob();
    }

    private static String readable(BlobClientBase blob) {
        var values = new BlobServiceSasSignatureValues(soon(), new BlobSasPermission().setReadPermission(true));
        return blob.getBlobUrl() + "?" + blob.generateSas(values);
    }

    private static String id(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private BlockBlobClient blockBlob() {
        BlockBlobClient blob = container.getBlobClient("block ä/blob").getBlockBlobClient();
        var uploaded = calls.get("Put Blob", () -> blob.uploadWithResponse(stream("hello"), 5,
            new BlobHttpHeaders().setContentType("text/csv"), METADATA, AccessTier.HOT, null, null, null, Context.NONE));
        calls.run("Get Blob", () -> expect(blob.downloadContent().toString(), "hello"));
        calls.run("Get Blob: a range", () -> expect(blob.downloadContentWithResponse(null, null, new BlobRange(1, 3L),
            false, null, Context.NONE).getValue().toString(), "ell"));
        calls.run("Get Blob Properties", () -> expect(blob.getProperties().getMetadata(), METADATA));
        calls.run("Get Account Information", blob::getAccountInfo);
        calls.run("Set Blob Properties", () -> blob.setHttpHeaders(new BlobHttpHeaders().setContentType("text/csv")));
        calls.run("Set Blob Metadata", () -> blob.setMetadata(METADATA));
        calls.run("Set Blob Tags", () -> blob.setTags(Map.of("kind", "block")));
        calls.run("Get Blob Tags", () -> expect(blob.getTags(), Map.of("kind", "block")));
        calls.run("Set Blob Tier", () -> blob.setAccessTier(AccessTier.COOL));
        calls.refused("Put Blob with a stale ETag", "ConditionNotMet", () -> blob.uploadWithResponse(stream("x"), 1, null,
            null, null, null, new BlobRequestConditions().setIfMatch(uploaded.getValue().getETag()), null, Context.NONE));
        calls.refused("Put Blob where one exists", "BlobAlreadyExists", () -> blob.upload(stream("x"), 1));
        calls.run("Query Blob Contents", () -> {
            try (var rows = blob.openQueryInputStream("SELECT * FROM BlobStorage")) {
                expect(new String(rows.readAllBytes(), StandardCharsets.UTF_8).strip(), "hello");
            }
        });

        BlobLeaseClient lease = new BlobLeaseClientBuilder().blobClient(blob).buildClient();
        calls.run("Lease Blob: acquire", () -> lease.acquireLease(15));
        calls.refused("Set Blob Metadata without the lease", "LeaseIdMissing", () -> blob.setMetadata(METADATA));
        calls.run("Lease Blob: renew", lease::renewLease);
        calls.run("Lease Blob: change", () -> lease.changeLease(OTHER_LEASE));
        calls.run("Lease Blob: release", lease::releaseLease);
        calls.run("Lease Blob: acquire again", () -> lease.acquireLease(15));
        calls.run("Lease Blob: break", () -> lease.breakLeaseWithResponse(0, null, null, Context.NONE));
        BlobClientBase snapshot = calls.get("Snapshot Blob", blob::createSnapshot);
        calls.run("Get Blob of a snapshot", () -> expect(snapshot.downloadContent().toString(), "hello"));
        return blob;
    }

    private void blocksAndCopies(BlockBlobClient source) {
        String address = readable(source);
        BlockBlobClient blocks = container.getBlobClient("blocks").getBlockBlobClient();
        calls.run("Put Block", () -> blocks.stageBlock(id("1"), stream("first "), 6));
        calls.run("Put Block From URL", () -> blocks.stageBlockFromUrl(id("2"), address, new BlobRange(0, 5L)));
        calls.run("Put Block List", () -> blocks.commitBlockList(List.of(id("1"), id("2"))));
        calls.run("Get Blob of blocks", () -> expect(blocks.downloadContent().toString(), "first hello"));
        calls.run("Get Block List", () ->
            expect(blocks.listBlocks(BlockListType.ALL).getCommittedBlocks().size(), 2));
        calls.run("Put Blob From URL", () -> blocks.uploadFromUrl(address, true));
        calls.run("Copy Blob From URL", () -> blocks.copyFromUrl(address));
        var copied = calls.get("Copy Blob", () ->
            blocks.beginCopy(address, Duration.ofMillis(50)).waitForCompletion(Duration.ofSeconds(20)).getValue());
        calls.refused("Abort Copy Blob that is done", "NoPendingCopyOperation", () ->
            blocks.abortCopyFromUrl(copied.getCopyId()));
        calls.run("Put Block List of a large upload", () -> {
            byte[] content = "0123456789abcdef".repeat(1 << 16).getBytes(StandardCharsets.UTF_8);
            var options = new BlobParallelUploadOptions(BinaryData.fromBytes(content)).setParallelTransferOptions(
                new ParallelTransferOptions().setBlockSizeLong(1L << 18).setMaxSingleUploadSizeLong(1L << 18));
            var large = container.getBlobClient("large");
            large.uploadWithResponse(options, null, Context.NONE);
            expect(java.util.Arrays.equals(large.downloadContent().toBytes(), content), true);
        });
        calls.run("Delete Blob with its snapshots", () ->
            source.deleteWithResponse(DeleteSnapshotsOptionType.INCLUDE, null, null, Context.NONE));
        calls.run("Undelete Blob", source::undelete);
    }

    private void protectionAndDeletion() {
        var blob = container.getBlobClient("protected");
        blob.upload(BinaryData.fromString("kept"));
        var policy = new BlobImmutabilityPolicy().setExpiryTime(soon()).setPolicyMode(BlobImmutabilityPolicyMode.UNLOCKED);
        calls.run("Set Blob Immutability Policy", () -> blob.setImmutabilityPolicy(policy));
        calls.run("Delete Blob Immutability Policy", blob::deleteImmutabilityPolicy);
        calls.run("Set Blob Legal Hold", () -> expect(blob.setLegalHold(true).hasLegalHold(), true));
        calls.run("Set Blob Legal Hold: off", () -> blob.setLegalHold(false));
        calls.run("Delete Blob", blob::delete);
    }

    private void appendBlob() {
        AppendBlobClient blob = container.getBlobClient("append").getAppendBlobClient();
        calls.run("Put Blob: append blob", () -> blob.create());
        calls.run("Append Block", () -> blob.appendBlock(stream("hello"), 5));
        calls.run("Append Block From URL", () -> blob.appendBlockFromUrl(readable(blob), new BlobRange(0, 5L)));
        calls.run("Get Blob: append blob", () -> expect(blob.downloadContent().toString(), "hellohello"));
        calls.run("Append Blob Seal", blob::seal);
        calls.refused("Append Block to a sealed blob", "BlobIsSealed", () -> blob.appendBlock(stream("x"), 1));
    }

    private void pageBlob() {
        PageBlobClient blob = container.getBlobClient("page").getPageBlobClient();
        PageRange first = new PageRange().setStart(0).setEnd(511);
        calls.run("Put Blob: page blob", () -> blob.create(4096));
        calls.run("Put Page", () -> blob.uploadPages(first, stream("p".repeat(512))));
        BlobClientBase snapshot = calls.get("Snapshot Blob: page blob", blob::createSnapshot);
        calls.run("Put Page From URL", () ->
            blob.uploadPagesFromUrl(new PageRange().setStart(1024).setEnd(1535), readable(blob), 0L));
        calls.run("Get Page Ranges", () -> expect(blob.listPageRanges(new BlobRange(0)).stream().count(), 2L));
        calls.run("Get Page Ranges with a previous snapshot", () -> expect(
            blob.listPageRangesDiff(new BlobRange(0), snapshot.getSnapshotId()).stream().count(), 1L));
        calls.run("Put Page: clear", () -> blob.clearPages(first));
        calls.run("Set Blob Properties: sequence number", () ->
            blob.updateSequenceNumber(SequenceNumberActionType.INCREMENT, null));
        calls.run("Set Blob Properties: size", () -> blob.resize(8192));
        calls.run("Incremental Copy Blob", () -> container.getBlobClient("incremental").getPageBlobClient()
            .copyIncremental(readable(blob), snapshot.getSnapshotId()));
        calls.run("Delete Blob: snapshots only", () ->
            blob.deleteWithResponse(DeleteSnapshotsOptionType.ONLY, null, null, Context.NONE));
    }
}
