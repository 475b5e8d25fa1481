package lazuli.clients;

import static lazuli.clients.Account.CONNECTION;
import static lazuli.clients.Account.METADATA;
import static lazuli.clients.Account.ONCE;
import static lazuli.clients.Account.soon;
import static lazuli.clients.Account.unique;
import static lazuli.clients.Calls.expect;

import com.azure.core.util.Context;
import com.azure.storage.queue.QueueClient;
import com.azure.storage.queue.QueueClientBuilder;
import com.azure.storage.queue.QueueServiceClient;
import com.azure.storage.queue.QueueServiceClientBuilder;
import com.azure.storage.queue.models.QueueAccessPolicy;
import com.azure.storage.queue.models.QueueMessageItem;
import com.azure.storage.queue.models.QueueServiceProperties;
import com.azure.storage.queue.models.QueueSignedIdentifier;
import com.azure.storage.queue.models.QueuesSegmentOptions;
import com.azure.storage.queue.models.UpdateMessageResult;
import com.azure.storage.queue.sas.QueueSasPermission;
import com.azure.storage.queue.sas.QueueServiceSasSignatureValues;
import java.time.Duration;
import java.util.List;

/** The queue service, by azure-storage-queue. */
final class QueueCalls {
    private final Calls calls;

    QueueCalls(Calls calls) {
        this.calls = calls;
    }

    void run() {
        QueueServiceClient service =
            new QueueServiceClientBuilder().connectionString(CONNECTION).retryOptions(ONCE).buildClient();
        calls.run("Set Queue Service Properties", () -> {
            QueueServiceProperties properties = service.getProperties();
            properties.getAnalyticsLogging().setRead(true);
            service.setProperties(properties);
        });
        calls.run("Get Queue Service Properties", () ->
            expect(service.getProperties().getAnalyticsLogging().isRead(), true));
        calls.leaveOut("Get Queue Service Stats",
            "the library expects an element QueueServiceStatistics where the protocol has StorageServiceStats");

        String name = unique("queue");
        QueueClient queue = service.getQueueClient(name);
        calls.run("Create Queue", () -> queue.createWithResponse(METADATA, null, Context.NONE));
        calls.run("List Queues", () -> expect(service.listQueues(
            new QueuesSegmentOptions().setPrefix(name).setIncludeMetadata(true), null, Context.NONE).stream().count(), 1L));
        calls.run("Set Queue Metadata", () -> queue.setMetadata(METADATA));
        calls.run("Get Queue Metadata", () -> expect(queue.getProperties().getMetadata(), METADATA));
        QueueSignedIdentifier policy = new QueueSignedIdentifier().setId("policy")
            .setAccessPolicy(new QueueAccessPolicy().setExpiresOn(soon()).setPermissions("r"));
        calls.run("Set Queue ACL", () -> queue.setAccessPolicy(List.of(policy)));
        calls.run("Get Queue ACL", () -> expect(queue.getAccessPolicy().stream().count(), 1L));

        calls.run("Put Message", () ->
            queue.sendMessageWithResponse("one", Duration.ZERO, Duration.ofSeconds(-1), null, Context.NONE));
        calls.run("Put Message with the defaults", () -> queue.sendMessage("two"));
        calls.run("Peek Messages", () -> expect(queue.peekMessages(2, null, Context.NONE).stream().count(), 2L));
        QueueMessageItem message = calls.get("Get Messages", queue::receiveMessage);
        UpdateMessageResult updated = calls.get("Update Message", () -> queue.updateMessage(
            message.getMessageId(), message.getPopReceipt(), "one again", Duration.ofMinutes(1)));
        calls.run("Delete Message", () -> queue.deleteMessage(message.getMessageId(), updated.getPopReceipt()));
        calls.run("Peek Messages by SAS", () -> {
            String sas = queue.generateSas(
                new QueueServiceSasSignatureValues(soon(), new QueueSasPermission().setReadPermission(true)));
            QueueClient guest = new QueueClientBuilder().endpoint(queue.getQueueUrl()).sasToken(sas).buildClient();
            expect(guest.peekMessage().getBody().toString(), "two");
        });
        calls.run("Clear Messages", queue::clearMessages);
        calls.run("Delete Queue", queue::delete);
    }
}
