// A queue with two consumers. The first one stops in the middle of its work, and the second one takes over.
//
//     npm install --prefix examples
//     node examples/queue_visibility.mjs
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { QueueServiceClient } from "@azure/storage-queue";

// The development account that `make serve` serves. Its key is public.
const DEVELOPMENT =
  "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;" +
  "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;" +
  "QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1";
const service = QueueServiceClient.fromConnectionString(process.env.AZURE_STORAGE_CONNECTION_STRING ?? DEVELOPMENT);
const queue = service.getQueueClient(`example-${randomUUID().slice(0, 12)}`);

/** Receives one message and hides it from other consumers for the given time. */
async function receive(visibilityTimeout) {
  const { receivedMessageItems } = await queue.receiveMessages({ numberOfMessages: 1, visibilityTimeout });
  return receivedMessageItems[0];
}

await queue.create();
try {
  await queue.sendMessage("resize cat.jpg");

  const first = await receive(2);
  console.log(`first consumer: received "${first.messageText}", dequeue count ${first.dequeueCount}`);
  console.log(`second consumer: received ${await receive(30)} while the message is invisible`);

  // The first consumer does not delete the message in time, so the message becomes visible again.
  let second;
  while (!(second = await receive(30))) await sleep(200);
  console.log(`second consumer: received "${second.messageText}", dequeue count ${second.dequeueCount}`);

  // Each receive returns a new pop receipt. The old one no longer deletes the message.
  const refusal = await queue.deleteMessage(first.messageId, first.popReceipt).catch((error) => error);
  console.log(`first consumer: its late delete was refused with ${refusal.statusCode} ${refusal.code}`);
  await queue.deleteMessage(second.messageId, second.popReceipt);
  const { approximateMessagesCount } = await queue.getProperties();
  console.log(`second consumer: deleted the message; ${approximateMessagesCount} messages are left`);
} finally {
  await queue.delete();
}
