package lazuli.clients;

import static lazuli.clients.Account.CREDENTIAL;
import static lazuli.clients.Account.METADATA;
import static lazuli.clients.Account.NAME;
import static lazuli.clients.Account.ONCE;
import static lazuli.clients.Account.OTHER_LEASE;
import static lazuli.clients.Account.SDDL;
import static lazuli.clients.Account.TOKEN;
import static lazuli.clients.Account.part;
import static lazuli.clients.Account.soon;
import static lazuli.clients.Account.stream;
import static lazuli.clients.Account.unique;
import static lazuli.clients.Calls.expect;

import com.azure.core.util.Context;
import com.azure.storage.file.share.FileSmbProperties;
import com.azure.storage.file.share.ShareClient;
import com.azure.storage.file.share.ShareDirectoryClient;
import com.azure.storage.file.share.ShareFileClient;
import com.azure.storage.file.share.ShareServiceClient;
import com.azure.storage.file.share.ShareServiceClientBuilder;
import com.azure.storage.file.share.models.FilePermissionFormat;
import com.azure.storage.file.share.models.ListSharesOptions;
import com.azure.storage.file.share.models.ShareAccessPolicy;
import com.azure.storage.file.share.models.ShareAccessTier;
import com.azure.storage.file.share.models.ShareFileCopyInfo;
import com.azure.storage.file.share.models.ShareFileHttpHeaders;
import com.azure.storage.file.share.models.ShareFilePermission;
import com.azure.storage.file.share.models.ShareItem;
import com.azure.storage.file.share.models.ShareServiceProperties;
import com.azure.storage.file.share.models.ShareSignedIdentifier;
import com.azure.storage.file.share.models.ShareSnapshotsDeleteOptionType;
import com.azure.storage.file.share.models.ShareTokenIntent;
import com.azure.storage.file.share.options.ShareBreakLeaseOptions;
import com.azure.storage.file.share.options.ShareCreateOptions;
import com.azure.storage.file.share.options.ShareDeleteOptions;
import com.azure.storage.file.share.options.ShareListFilesAndDirectoriesOptions;
import com.azure.storage.file.share.options.ShareSetPropertiesOptions;
import com.azure.storage.file.share.sas.ShareFileSasPermission;
import com.azure.storage.file.share.sas.ShareServiceSasSignatureValues;
import com.azure.storage.file.share.specialized.ShareLeaseClient;
import com.azure.storage.file.share.specialized.ShareLeaseClientBuilder;
import java.io.ByteArrayOutputStream;
import java.net.InetSocketAddress;
import java.net.URI;
import java.time.Duration;
import java.util.List;

/** The file service, by azure-storage-file-share. */
final class ShareCalls {
    private final Calls calls;
    private final ShareServiceClient service = service().credential(CREDENTIAL).buildClient();

    ShareCalls(Calls calls) {
        this.calls = calls;
    }

    private static ShareServiceClientBuilder service() {
        URI address = URI.create(part("FileEndpoint"));
        return new ShareServiceClientBuilder()
            .endpoint("https://" + NAME + "." + System.getenv("HOST_SUFFIX"))
            .httpClient(NamedHost.connectingTo(new InetSocketAddress(address.getHost(), address.getPort())))
            .retryOptions(ONCE);
    }

    void run() {
        serviceLevel();
        shares();
        directories();
        files();
    }

    private void serviceLevel() {
        calls.run("Set File Service Properties", () -> {
            ShareServiceProperties properties = service.getProperties();
            properties.getHourMetrics().setEnabled(false);
            service.setProperties(properties);
        });
        calls.run("Get File Service Properties", () -> expect(service.getProperties().getHourMetrics().isEnabled(), false));
        String name = unique("share");
        calls.run("Create Share by the service", () -> service.createShare(name));
        calls.run("Delete Share by the service", () -> service.deleteShare(name));
        ShareItem deleted = calls.get("List Shares", () -> service.listShares(new ListSharesOptions().setPrefix(name)
            .setIncludeDeleted(true).setIncludeMetadata(true).setIncludeSnapshots(true), null, Context.NONE)
            .stream().findFirst().orElseThrow());
        calls.run("Restore Share", () -> service.undeleteShare(name, deleted.getVersion()));
        ShareServiceClient bearer = service().credential(TOKEN).shareTokenIntent(ShareTokenIntent.BACKUP).buildClient();
        calls.run("List Shares by bearer token", () -> bearer.listShares().stream().count());
        calls.run("Get User Delegation Key", () -> bearer.getUserDelegationKey(null, soon()));
    }

    private void shares() {
        ShareClient share = service.getShareClient(unique("share"));
        calls.run("Create Share", () -> share.createWithResponse(new ShareCreateOptions().setMetadata(METADATA)
            .setQuotaInGb(5).setAccessTier(ShareAccessTier.HOT), null, Context.NONE));
        calls.run("Get Share Properties", () -> expect(share.getProperties().getQuota(), 5));
        calls.run("Get Share Properties: exists", () -> expect(share.exists(), true));
        calls.run("Set Share Properties", () -> share.setProperties(
            new ShareSetPropertiesOptions().setQuotaInGb(6).setAccessTier(ShareAccessTier.COOL)));
        calls.run("Set Share Metadata", () -> share.setMetadata(METADATA));
        ShareSignedIdentifier policy = new ShareSignedIdentifier().setId("policy")
            .setAccessPolicy(new ShareAccessPolicy().setExpiresOn(soon()).setPermissions("r"));
        calls.run("Set Share ACL", () -> share.setAccessPolicy(List.of(policy)));
        calls.run("Get Share ACL", () -> expect(share.getAccessPolicy().stream().count(), 1L));
        calls.run("Get Share Stats", share::getStatistics);
        String key = calls.get("Create Permission", () -> share.createPermission(SDDL));
        calls.run("Get Permission", () -> share.getPermission(key));
        String binary = calls.get("Get Permission in binary form", () -> share.getPermission(key, FilePermissionFormat.BINARY));
        calls.run("Create Permission in binary form", () -> share.createPermission(
            new ShareFilePermission().setPermission(binary).setPermissionFormat(FilePermissionFormat.BINARY)));

        ShareLeaseClient lease = new ShareLeaseClientBuilder().shareClient(share).buildClient();
        calls.run("Lease Share: acquire", lease::acquireLease);
        calls.run("Lease Share: renew", lease::renewLease);
        calls.run("Lease Share: change", () -> lease.changeLease(OTHER_LEASE));
        calls.run("Lease Share: release", lease::releaseLease);
        calls.run("Lease Share: acquire again", lease::acquireLease);
        calls.run("Lease Share: break", () -> lease.breakLeaseWithResponse(
            new ShareBreakLeaseOptions().setBreakPeriod(Duration.ZERO), null, Context.NONE));
        String snapshot = calls.get("Snapshot Share", () -> share.createSnapshot().getSnapshot());
        calls.run("Get Share Properties of a snapshot", () -> share.getSnapshotClient(snapshot).getProperties());
        calls.run("Get Share Properties of an unknown snapshot: exists", () ->
            expect(share.getSnapshotClient("2001-01-01T00:00:00.0000000Z").exists(), false));
        calls.run("Delete Share with its snapshots", () -> share.deleteWithResponse(new ShareDeleteOptions()
            .setDeleteSnapshotsOptions(ShareSnapshotsDeleteOptionType.INCLUDE), null, Context.NONE));
    }

    private void directories() {
        ShareClient share = service.createShare(unique("share"));
        ShareDirectoryClient directory = share.getDirectoryClient("directory ä");
        calls.run("Create Directory", () -> directory.createWithResponse(null, null, METADATA, null, Context.NONE));
        calls.run("Get Directory Properties", () -> expect(directory.getProperties().getMetadata(), METADATA));
        calls.run("Set Directory Properties", () -> directory.setProperties(new FileSmbProperties(), SDDL));
        calls.run("Set Directory Metadata", () -> directory.setMetadata(METADATA));
        calls.run("Create Directory in a directory", () -> directory.createSubdirectory("below"));
        calls.run("Create File in a directory", () -> directory.createFile("file", 10));
        calls.run("List Directories and Files", () -> expect(directory.listFilesAndDirectories(
            new ShareListFilesAndDirectoriesOptions().setIncludeExtendedInfo(true).setIncludeTimestamps(true)
                .setIncludeETag(true).setIncludeAttributes(true).setIncludePermissionKey(true), null, Context.NONE)
            .stream().count(), 2L));
        calls.run("List Handles", () -> expect(directory.listHandles(null, true, null, Context.NONE).stream().count(), 0L));
        calls.run("Force Close Handles", () -> directory.forceCloseAllHandles(true, null, Context.NONE));
        // The library does not encode the path of a directory that it renames.
        ShareDirectoryClient plain = share.createDirectory("plain");
        ShareDirectoryClient renamed = calls.get("Rename Directory", () -> plain.rename("directory ä/renamed"));
        calls.run("Delete Directory", () -> renamed.delete());
    }

    private void files() {
        ShareClient share = service.createShare(unique("share"));
        ShareDirectoryClient directory = share.createDirectory("directory ä");
        ShareFileClient file = directory.getFileClient("file name.txt");
        calls.run("Create File", () -> file.create(1024));
        calls.run("Put Range", () -> file.uploadRange(stream("f".repeat(512)), 512));
        calls.run("Get File Properties", () -> expect(file.getProperties().getContentLength(), 1024L));
        calls.run("Get File", () -> {
            var read = new ByteArrayOutputStream();
            file.download(read);
            expect(read.size(), 1024);
        });
        calls.run("Set File Properties", () -> file.setProperties(2048,
            new ShareFileHttpHeaders().setContentType("text/plain"), new FileSmbProperties(), SDDL));
        calls.run("Set File Metadata", () -> file.setMetadata(METADATA));
        String snapshot = calls.get("Snapshot Share: for ranges", () -> share.createSnapshot().getSnapshot());
        String sas = file.generateSas(
            new ShareServiceSasSignatureValues(soon(), new ShareFileSasPermission().setReadPermission(true)));
        calls.run("Put Range From URL", () -> file.uploadRangeFromUrl(512, 512, 0, file.getFileUrl() + "?" + sas));
        calls.run("List Ranges", () -> expect(file.listRanges().stream().count(), 1L));
        calls.run("List Ranges with a previous snapshot", () ->
            expect(file.listRangesDiff(snapshot).getRanges().size(), 1));
        calls.run("Put Range: clear", () -> file.clearRange(512));

        ShareFileClient target = directory.getFileClient("target ä");
        ShareFileCopyInfo copied = calls.get("Copy File", () -> target.beginCopy(file.getFileUrl(), METADATA,
            Duration.ofMillis(50)).waitForCompletion(Duration.ofSeconds(20)).getValue());
        calls.refused("Abort Copy File that is done", "NoPendingCopyOperation", () -> target.abortCopy(copied.getCopyId()));
        ShareLeaseClient lease = new ShareLeaseClientBuilder().fileClient(file).buildClient();
        calls.run("Lease File: acquire", lease::acquireLease);
        calls.run("Lease File: change", () -> lease.changeLease(OTHER_LEASE));
        calls.run("Lease File: release", lease::releaseLease);
        calls.run("Lease File: acquire again", lease::acquireLease);
        calls.run("Lease File: break", lease::breakLease);
        calls.run("List Handles of a file", () -> expect(file.listHandles().stream().count(), 0L));
        calls.run("Force Close Handles of a file", () -> file.forceCloseAllHandles(null, Context.NONE));
        calls.leaveOut("Create Hard Link, Create Symbolic Link, Get Symbolic Link", "only shares for NFS have links");
        calls.run("Put Range of an upload", () -> target.upload(stream("u".repeat(100)), 100, null));
        ShareFileClient renamed = calls.get("Rename File", () -> target.rename("directory ä/renamed file"));
        calls.run("Delete File", () -> renamed.delete());
    }
}
