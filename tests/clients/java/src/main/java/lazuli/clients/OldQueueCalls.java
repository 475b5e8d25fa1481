package lazuli.clients;

import static lazuli.clients.Account.unique;
import static lazuli.clients.Calls.expect;
import static lazuli.clients.OldAccount.METADATA;

import com.microsoft.azure.storage.LocationMode;
import com.microsoft.azure.storage.ServiceProperties;
import com.microsoft.azure.storage.queue.CloudQueue;
import com.microsoft.azure.storage.queue.CloudQueueClient;
import com.microsoft.azure.storage.queue.CloudQueueMessage;
import com.microsoft.azure.storage.queue.MessageUpdateFields;
import com.microsoft.azure.storage.queue.QueuePermissions;
import com.microsoft.azure.storage.queue.SharedAccessQueuePermissions;
import com.microsoft.azure.storage.queue.SharedAccessQueuePolicy;
import java.net.URI;
import java.util.EnumSet;

/** The queue service, by azure-storage 8.6.6. */
final class OldQueueCalls {
    private final Calls calls;

    OldQueueCalls(Calls calls) {
        this.calls = calls;
    }

    void run() throws Exception {
        CloudQueueClient client = OldAccount.open().createCloudQueueClient();
        OldAccount.once(client.getDefaultRequestOptions());
        calls.run("Set Queue Service Properties", () -> {
            ServiceProperties properties = client.downloadServiceProperties();
            client.uploadServiceProperties(properties);
        });
        calls.run("Get Queue Service Properties", () -> client.downloadServiceProperties());
        CloudQueueClient both = new CloudQueueClient(OldAccount.locations("QueueEndpoint"), OldAccount.credentials());
        both.getDefaultRequestOptions().setLocationMode(LocationMode.SECONDARY_ONLY);
        calls.run("Get Queue Service Stats", () -> both.getServiceStats());

        CloudQueue queue = client.getQueueReference(unique("queue"));
        calls.run("Create Queue", () -> queue.create());
        calls.run("List Queues", () -> expect(client.listQueues(queue.getName()).iterator().hasNext(), true));
        queue.setMetadata(METADATA);
        calls.run("Set Queue Metadata", () -> queue.uploadMetadata());
        calls.run("Get Queue Metadata", () -> queue.downloadAttributes());
        SharedAccessQueuePolicy policy = new SharedAccessQueuePolicy();
        policy.setPermissions(EnumSet.of(SharedAccessQueuePermissions.READ));
        policy.setSharedAccessExpiryTime(OldAccount.soon());
        calls.run("Set Queue ACL", () -> {
            QueuePermissions permissions = new QueuePermissions();
            permissions.getSharedAccessPolicies().put("policy", policy);
            queue.uploadPermissions(permissions);
        });
        calls.run("Get Queue ACL", () -> expect(queue.downloadPermissions().getSharedAccessPolicies().size(), 1));
        calls.run("Put Message", () -> queue.addMessage(new CloudQueueMessage("one")));
        queue.addMessage(new CloudQueueMessage("two"));
        calls.run("Peek Messages", () -> expect(queue.peekMessage().getMessageContentAsString(), "one"));
        CloudQueueMessage message = calls.get("Get Messages", () -> queue.retrieveMessage());
        message.setMessageContent("one again");
        EnumSet<MessageUpdateFields> fields = EnumSet.of(MessageUpdateFields.CONTENT, MessageUpdateFields.VISIBILITY);
        calls.run("Update Message", () -> queue.updateMessage(message, 60, fields, null, null));
        calls.run("Delete Message", () -> queue.deleteMessage(message));
        calls.run("Peek Messages by SAS", () -> {
            String sas = queue.generateSharedAccessSignature(policy, null);
            expect(new CloudQueue(new URI(queue.getUri() + "?" + sas)).peekMessage().getMessageContentAsString(), "two");
        });
        calls.run("Clear Messages", () -> queue.clear());
        calls.run("Delete Queue", () -> queue.delete());
    }
}
