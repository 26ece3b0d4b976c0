package cashew;

import io.lettuce.core.ClientOptions;
import io.lettuce.core.MaintNotificationsConfig;
import io.lettuce.core.MaintNotificationsConfig.EndpointType;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.protocol.ProtocolVersion;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** Lettuce while an instance drains: asks until the file CASHEW_DRAIN_END is there, and counts what fails. */
public final class LettuceDrain {
    private static final int CLIENTS = 6;
    private static final Path END = Path.of(System.getenv("CASHEW_DRAIN_END"));
    private static final AtomicInteger DONE = new AtomicInteger();
    private static final AtomicInteger ERRORS = new AtomicInteger();

    private static ClientOptions options() {
        boolean wants = "enabled".equals(System.getenv("CASHEW_DRAIN_MODE"));
        MaintNotificationsConfig config = wants
            ? MaintNotificationsConfig.enabled(EndpointType.INTERNAL_IP)
            : MaintNotificationsConfig.disabled();
        return ClientOptions.builder().protocolVersion(ProtocolVersion.RESP3)
            .maintNotificationsConfig(config).build();
    }

    private static void ask(RedisClient client, int number) {
        RedisCommands<String, String> redis = client.connect().sync();
        String key = "lettuce:" + number;
        while (!Files.exists(END)) {
            try {
                redis.set(key, "1");
                if (!"1".equals(redis.get(key))) {
                    throw new RedisException("another reply");
                }
                DONE.addAndGet(2);
            } catch (RedisException error) {
                if (ERRORS.incrementAndGet() < 5) {
                    System.out.println("client " + number + ": " + error);
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        RedisURI address = RedisURI.builder().withHost(Sections.host()).withPort(Sections.port())
            .withTimeout(Duration.ofSeconds(1)).build();
        RedisClient client = RedisClient.create(address);
        client.setOptions(options());
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < CLIENTS; number++) {
            int its = number;
            Thread thread = new Thread(() -> ask(client, its));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("done " + DONE + " errors " + ERRORS);
        System.exit(0);
    }
}
