package lazuli.clients;

import com.azure.core.http.HttpClient;
import com.azure.core.http.netty.NettyAsyncHttpClientBuilder;
import io.netty.resolver.AbstractAddressResolver;
import io.netty.resolver.AddressResolver;
import io.netty.resolver.AddressResolverGroup;
import io.netty.util.concurrent.EventExecutor;
import io.netty.util.concurrent.Promise;
import java.net.InetSocketAddress;
import java.util.List;

/**
 * An HTTP client whose every connection goes to one address, whatever the host and port of the request.
 *
 * <p>azure-storage-file-share drops the port and the path of its endpoint, so it needs a host name for the account.
 */
final class NamedHost extends AddressResolverGroup<InetSocketAddress> {
    private final InetSocketAddress target;

    private NamedHost(InetSocketAddress target) {
        this.target = target;
    }

    static HttpClient connectingTo(InetSocketAddress target) {
        var connections = reactor.netty.http.client.HttpClient.create().resolver(new NamedHost(target));
        return new NettyAsyncHttpClientBuilder(connections).build();
    }

    @Override
    protected AddressResolver<InetSocketAddress> newResolver(EventExecutor executor) {
        return new AbstractAddressResolver<>(executor, InetSocketAddress.class) {
            @Override
            protected boolean doIsResolved(InetSocketAddress address) {
                return !address.isUnresolved();
            }

            @Override
            protected void doResolve(InetSocketAddress address, Promise<InetSocketAddress> promise) {
                promise.setSuccess(target);
            }

            @Override
            protected void doResolveAll(InetSocketAddress address, Promise<List<InetSocketAddress>> promise) {
                promise.setSuccess(List.of(target));
            }
        };
    }
}
