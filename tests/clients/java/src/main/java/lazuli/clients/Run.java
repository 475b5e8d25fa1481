package lazuli.clients;

import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;

/** Calls every operation of the Java client libraries once. */
public final class Run {
    public static void main(String[] arguments) throws Exception {
        trust(Path.of(System.getenv("SSL_CERT_FILE")));
        Calls calls = new Calls();
        calls.of("azure-storage-blob", () -> new BlobCalls(calls).run());
        calls.of("azure-storage-blob, kinds of blobs", () -> new BlobKindCalls(calls).run());
        calls.of("azure-storage-queue", () -> new QueueCalls(calls).run());
        calls.of("azure-storage-file-share", () -> new ShareCalls(calls).run());
        calls.of("azure-data-tables", () -> new TableCalls(calls).run());
        calls.of("azure-storage 8.6.6, blob", () -> new OldBlobCalls(calls).run());
        calls.of("azure-storage 8.6.6, queue", () -> new OldQueueCalls(calls).run());
        calls.of("azure-storage 8.6.6, file", () -> new OldFileCalls(calls).run());
        calls.of("azure-storage 8.6.6, table", () -> new OldTableCalls(calls).run());
        calls.summarize();
        // Threads of the clients would keep the process alive.
        System.exit(calls.failed() == 0 ? 0 : 1);
    }

    /** Makes this process trust the server's own certificate, and no other. */
    private static void trust(Path certificate) throws Exception {
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        try (var pem = Files.newInputStream(certificate)) {
            trusted.setCertificateEntry("server", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        Path store = Files.createTempFile("trusted", ".p12");
        store.toFile().deleteOnExit();
        try (OutputStream out = Files.newOutputStream(store)) {
            trusted.store(out, "changeit".toCharArray());
        }
        System.setProperty("javax.net.ssl.trustStore", store.toString());
        System.setProperty("javax.net.ssl.trustStorePassword", "changeit");
    }
}
