package lazuli.clients;

import com.azure.core.credential.AccessToken;
import com.azure.core.credential.TokenCredential;
import com.azure.storage.common.StorageSharedKeyCredential;
import com.azure.storage.common.policy.RequestRetryOptions;
import com.azure.storage.common.policy.RetryPolicyType;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.Map;
import java.util.UUID;
import reactor.core.publisher.Mono;

/** The account that the run was given, and values that calls need. */
final class Account {
    static final String CONNECTION = System.getenv("CONNECTION");
    static final String NAME = part("AccountName");
    static final String KEY = part("AccountKey");
    static final StorageSharedKeyCredential CREDENTIAL = new StorageSharedKeyCredential(NAME, KEY);
    static final Map<String, String> METADATA = Map.of("color", "blue");
    static final String OTHER_LEASE = "2f6b7a2e-1111-4222-8333-444455556666";
    static final String SDDL = "O:S-1-5-21-1-2-3-1001G:S-1-5-21-1-2-3-513D:(A;;FA;;;WD)";
    /** Retries would hide an answer that a client does not understand. */
    static final RequestRetryOptions ONCE = new RequestRetryOptions(RetryPolicyType.FIXED, 1, 60, null, null, null);
    static final TokenCredential TOKEN = request ->
        Mono.just(new AccessToken(System.getenv("TOKEN"), OffsetDateTime.now().plusHours(1)));

    /** One value of the connection string. */
    static String part(String key) {
        for (String part : CONNECTION.split(";")) {
            if (part.startsWith(key + "=")) {
                return part.substring(key.length() + 1);
            }
        }
        throw new IllegalStateException("the connection string has no " + key);
    }

    /** The endpoint of a service at the account's secondary location. */
    static String secondary(String endpoint) {
        String primary = part(endpoint);
        return (primary.endsWith("/") ? primary.substring(0, primary.length() - 1) : primary) + "-secondary";
    }

    static String unique(String prefix) {
        return prefix + UUID.randomUUID().toString().replace("-", "");
    }

    static OffsetDateTime soon() {
        return OffsetDateTime.now(ZoneOffset.UTC).plusHours(1).truncatedTo(ChronoUnit.SECONDS);
    }

    static InputStream stream(String text) {
        return new ByteArrayInputStream(text.getBytes(StandardCharsets.UTF_8));
    }

    private Account() {}
}
