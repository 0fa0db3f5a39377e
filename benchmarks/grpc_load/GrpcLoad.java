import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Load by the official Java client of the 5.x series: ENDPOINT SUFFIX SECONDS; rows come from standard input.
 *
 * <p>A row is send-INFLIGHT-SIZE, push-MESSAGES-SIZE or simple-MESSAGES-SIZE; each answers with a JSON line. Lines "begin"
 * and "end" enclose what the rate is of. The topics send_SUFFIX and receive_SUFFIX and the group load_SUFFIX exist.
 */
public final class GrpcLoad {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int FILL_IN_FLIGHT = 64;
    private static final int BATCH = 32;
    private static final int SIMPLE_THREADS = 4;
    private static final long LIMIT_SECONDS = 120;

    private final ClientConfiguration where;
    private final String suffix;
    private final int seconds;
    private final Producer producer;
    private int drains;

    private GrpcLoad(String endpoint, String suffix, int seconds) throws Exception {
        this.suffix = suffix;
        this.seconds = seconds;
        where = ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        producer = PROVIDER.newProducerBuilder().setClientConfiguration(where)
            .setTopics("send_" + suffix, "receive_" + suffix).setMaxAttempts(1).build();
    }

    public static void main(String[] arguments) {
        try {
            GrpcLoad load = new GrpcLoad(arguments[0], arguments[1], Integer.parseInt(arguments[2]));
            BufferedReader rows = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String row = rows.readLine(); row != null; row = rows.readLine()) {
                String[] words = row.split("-");
                double rate = load.run(words[0], Integer.parseInt(words[1]), Integer.parseInt(words[2]));
                System.out.printf("{\"row\":\"%s\",\"messages_per_second\":%.1f}%n", row, rate);
                System.out.flush();
            }
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // the client's threads would keep the JVM running
        }
    }

    private static void say(String word) {
        System.out.println(word);
        System.out.flush();
    }

    private double run(String kind, int number, int size) throws Exception {
        switch (kind) {
            case "send":
                return sendFor(number, size);
            case "push":
                return drain(number, size, this::push);
            case "simple":
                return drain(number, size, this::simple);
            default:
                throw new IllegalArgumentException("no row of kind " + kind);
        }
    }

    private Message message(String topic, String start, int size) {
        byte[] body = new byte[Math.max(size, start.length())];
        System.arraycopy(start.getBytes(StandardCharsets.UTF_8), 0, body, 0, start.length());
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build();
    }

    private double sendFor(int inFlight, int size) throws Exception {
        say("begin");
        long begun = System.nanoTime();
        long end = begun + seconds * 1_000_000_000L;
        int sent = send("send_" + suffix, "", size, inFlight, count -> System.nanoTime() < end);
        double rate = sent * 1e9 / (System.nanoTime() - begun);
        say("end");
        return rate;
    }

    private interface More {
        boolean after(int sent);
    }

    /** Sends with some in flight; all are answered when it returns. */
    private int send(String topic, String start, int size, int inFlight, More more) throws Exception {
        Semaphore free = new Semaphore(inFlight);
        AtomicInteger failed = new AtomicInteger();
        int sent = 0;
        while (more.after(sent)) {
            free.acquire();
            sent++;
            producer.sendAsync(message(topic, start, size)).whenComplete((receipt, error) -> {
                if (error != null && failed.getAndIncrement() == 0) {
                    error.printStackTrace();
                }
                free.release();
            });
        }
        free.acquire(inFlight);
        if (failed.get() > 0) {
            throw new IllegalStateException(failed + " of " + sent + " sends failed");
        }
        return sent;
    }

    /** Counts the messages of one drain, and when the first and the last came. */
    private static final class Drained {
        final String start;
        final CountDownLatch left;
        final AtomicLong first = new AtomicLong();
        final AtomicLong last = new AtomicLong();

        Drained(String start, int count) {
            this.start = start;
            left = new CountDownLatch(count);
        }

        void take(MessageView message) {
            String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
            if (body.startsWith(start)) {
                if (first.compareAndSet(0, System.nanoTime())) {
                    say("begin");
                }
                left.countDown();
                if (left.getCount() == 0 && last.compareAndSet(0, System.nanoTime())) {
                    say("end");
                }
            }
        }
    }

    private interface Taking {
        AutoCloseable from(Drained drained) throws Exception;
    }

    /** Messages per second from the first delivery to the last one, of a topic that was filled before. */
    private double drain(int count, int size, Taking taking) throws Exception {
        String start = "drain " + ++drains + ";";
        send("receive_" + suffix, start, size, FILL_IN_FLIGHT, sent -> sent < count);
        Drained drained = new Drained(start, count);
        try (AutoCloseable consumer = taking.from(drained)) {
            if (!drained.left.await(LIMIT_SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException(drained.left.getCount() + " of " + count + " did not come");
            }
        }
        return (count - 1) * 1e9 / Math.max(1, drained.last.get() - drained.first.get());
    }

    private AutoCloseable push(Drained drained) throws Exception {
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(where)
            .setConsumerGroup("load_" + suffix)
            .setSubscriptionExpressions(Map.of("receive_" + suffix, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                drained.take(message);
                return ConsumeResult.SUCCESS;
            }).build();
        return () -> {
            Thread closing = new Thread(() -> {
                try {
                    consumer.close();
                } catch (Exception error) {
                    error.printStackTrace();
                }
            });
            closing.start();
            endPolls(closing);
        };
    }

    /** Polls wait for seconds at an empty topic, and a consumer for its polls: send until it has ended. */
    private void endPolls(Thread thread) throws Exception {
        while (thread.isAlive()) {
            producer.send(message("receive_" + suffix, "end", 3));
            thread.join(20);
        }
    }

    private AutoCloseable simple(Drained drained) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(where)
            .setConsumerGroup("load_" + suffix).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of("receive_" + suffix, FilterExpression.SUB_ALL)).build();
        Thread[] threads = new Thread[SIMPLE_THREADS];
        for (int i = 0; i < SIMPLE_THREADS; i++) {
            threads[i] = new Thread(() -> receive(consumer, drained));
            threads[i].start();
        }
        return () -> {
            for (Thread thread : threads) {
                endPolls(thread);
            }
            consumer.close();
        };
    }

    private static void receive(SimpleConsumer consumer, Drained drained) {
        while (drained.left.getCount() > 0) {
            try {
                List<MessageView> got = consumer.receive(BATCH, Duration.ofSeconds(60));
                for (MessageView message : got) {
                    consumer.ack(message);
                    drained.take(message);
                }
            } catch (Exception error) {
                error.printStackTrace();
            }
        }
    }
}
