package lazuli.clients;

import static lazuli.clients.Account.SDDL;
import static lazuli.clients.Account.stream;
import static lazuli.clients.Account.unique;
import static lazuli.clients.Calls.expect;
import static lazuli.clients.OldAccount.METADATA;

import com.microsoft.azure.storage.file.CloudFile;
import com.microsoft.azure.storage.file.CloudFileClient;
import com.microsoft.azure.storage.file.CloudFileDirectory;
import com.microsoft.azure.storage.file.CloudFileShare;
import com.microsoft.azure.storage.file.FileServiceProperties;
import com.microsoft.azure.storage.file.FileSharePermissions;
import com.microsoft.azure.storage.file.SharedAccessFilePermissions;
import com.microsoft.azure.storage.file.SharedAccessFilePolicy;
import java.net.URI;
import java.util.EnumSet;

/** The file service, by azure-storage 8.6.6. */
final class OldFileCalls {
    private final Calls calls;

    OldFileCalls(Calls calls) {
        this.calls = calls;
    }

    private static SharedAccessFilePolicy reading() {
        SharedAccessFilePolicy policy = new SharedAccessFilePolicy();
        policy.setPermissions(EnumSet.of(SharedAccessFilePermissions.READ));
        policy.setSharedAccessExpiryTime(OldAccount.soon());
        return policy;
    }

    void run() throws Exception {
        CloudFileClient client = OldAccount.open().createCloudFileClient();
        OldAccount.once(client.getDefaultRequestOptions());
        calls.run("Set File Service Properties", () -> {
            FileServiceProperties properties = client.downloadServiceProperties();
            client.uploadServiceProperties(properties);
        });
        calls.run("Get File Service Properties", () -> client.downloadServiceProperties());

        CloudFileShare share = client.getShareReference(unique("share"));
        calls.run("Create Share", () -> share.create());
        calls.run("List Shares", () -> expect(client.listShares(share.getName()).iterator().hasNext(), true));
        calls.run("Get Share Properties", () -> share.downloadAttributes());
        share.getProperties().setShareQuota(6);
        calls.run("Set Share Properties", () -> share.uploadProperties());
        share.setMetadata(METADATA);
        calls.run("Set Share Metadata", () -> share.uploadMetadata());
        calls.run("Set Share ACL", () -> {
            FileSharePermissions permissions = new FileSharePermissions();
            permissions.getSharedAccessPolicies().put("policy", reading());
            share.uploadPermissions(permissions);
        });
        calls.run("Get Share ACL", () -> expect(share.downloadPermissions().getSharedAccessPolicies().size(), 1));
        calls.run("Get Share Stats", () -> share.getStats());
        String key = calls.get("Create Permission", () -> share.createFilePermission(SDDL));
        calls.run("Get Permission", () -> share.getFilePermission(key));

        CloudFileDirectory directory = share.getRootDirectoryReference().getDirectoryReference("directory ä");
        calls.run("Create Directory", () -> directory.create());
        calls.run("Get Directory Properties", () -> directory.downloadAttributes());
        calls.run("Set Directory Properties", () -> directory.uploadProperties());
        directory.setMetadata(METADATA);
        calls.run("Set Directory Metadata", () -> directory.uploadMetadata());

        CloudFile file = directory.getFileReference("file name.txt");
        calls.run("Create File", () -> file.create(1024));
        calls.run("Put Range", () -> file.uploadRange(stream("f".repeat(512)), 0, 512));
        calls.run("Get File Properties", () -> file.downloadAttributes());
        calls.run("Get File", () -> expect(file.downloadText().length(), 1024));
        calls.run("Set File Properties", () -> file.uploadProperties());
        file.setMetadata(METADATA);
        calls.run("Set File Metadata", () -> file.uploadMetadata());
        calls.run("Set File Properties: size", () -> file.resize(2048));
        calls.run("Put Range From URL", () -> {
            URI source = new URI(file.getUri() + "?" + file.generateSharedAccessSignature(reading(), null));
            file.putRangeFromURL(512, 512, source, 0);
        });
        calls.run("List Ranges", () -> expect(file.downloadFileRanges().size(), 1));
        calls.run("Put Range: clear", () -> file.clearRange(0, 512));
        calls.run("List Directories and Files", () ->
            expect(directory.listFilesAndDirectories().iterator().hasNext(), true));
        calls.run("List Handles", () -> expect(directory.listHandles().iterator().hasNext(), false));
        calls.run("Force Close Handles", () -> directory.closeAllHandlesSegmented());
        calls.run("List Handles of a file", () -> expect(file.listHandles().iterator().hasNext(), false));
        calls.run("Force Close Handles of a file", () -> file.closeAllHandlesSegmented());

        CloudFile copy = directory.getFileReference("copy ä");
        String id = calls.get("Copy File", () -> copy.startCopy(file));
        calls.refused("Abort Copy File that is done", "NoPendingCopyOperation", () -> copy.abortCopy(id));
        calls.run("Delete File", () -> copy.delete());
        file.delete();
        calls.run("Delete Directory", () -> directory.delete());
        CloudFileShare snapshot = calls.get("Snapshot Share", () -> share.createSnapshot());
        calls.run("Get Share Properties of a snapshot", () -> snapshot.downloadAttributes());
        calls.run("Delete Share: a snapshot", () -> snapshot.delete());
        calls.run("Delete Share", () -> share.delete());
    }
}
