package lazuli.clients;

import com.microsoft.azure.storage.CloudStorageAccount;
import com.microsoft.azure.storage.LocationMode;
import com.microsoft.azure.storage.RequestOptions;
import com.microsoft.azure.storage.RetryNoRetry;
import com.microsoft.azure.storage.StorageCredentials;
import com.microsoft.azure.storage.StorageUri;
import java.net.URI;
import java.util.Date;
import java.util.HashMap;

/** The account as azure-storage 8.6.6 sees it. */
final class OldAccount {
    static final HashMap<String, String> METADATA = new HashMap<>(Account.METADATA);

    static CloudStorageAccount open() throws Exception {
        return CloudStorageAccount.parse(Account.CONNECTION);
    }

    static StorageCredentials credentials() throws Exception {
        return open().getCredentials();
    }

    /** Both locations of a service. Statistics are read at the second. */
    static StorageUri locations(String endpoint) throws Exception {
        return new StorageUri(new URI(Account.part(endpoint)), new URI(Account.secondary(endpoint)));
    }

    static void once(RequestOptions options) {
        options.setRetryPolicyFactory(new RetryNoRetry());
        options.setLocationMode(LocationMode.PRIMARY_ONLY);
    }

    static Date soon() {
        return Date.from(Account.soon().toInstant());
    }

    private OldAccount() {}
}
