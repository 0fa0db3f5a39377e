import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Scenarios of the Java client of the 5.x series: ENDPOINT SUFFIX NAME...; a JSON line for each. */
public class GrpcScenarios {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static ClientConfiguration where;
    static String suffix;

    static String topic(String kind) {
        return kind + "_" + suffix;
    }

    static MessageBuilder message(String kind, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic(kind)).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static Producer producer(String kind) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(where).setTopics(topic(kind)).build();
    }

    static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    /** One delivery. */
    record Delivery(long at, String group, String body, int attempt) {}

    /** Notes deliveries; fails as often as it is told. */
    static class Listener {
        final List<Delivery> got = Collections.synchronizedList(new ArrayList<>());
        final int failures;

        Listener(int failures) {
            this.failures = failures;
        }

        ConsumeResult consume(MessageView message) {
            got.add(new Delivery(System.nanoTime(), message.getMessageGroup().orElse(""), body(message),
                message.getDeliveryAttempt()));
            return message.getDeliveryAttempt() <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        }
    }

    static PushConsumer pushing(String group, String kind, Listener listener) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(where)
            .setConsumerGroup(group + "_" + suffix)
            .setSubscriptionExpressions(Map.of(topic(kind), FilterExpression.SUB_ALL))
            .setMessageListener(listener::consume).build();
    }

    static void check(boolean holds, Object found) {
        if (!holds) {
            throw new AssertionError(String.valueOf(found));
        }
    }

    static void waitFor(Callable<Boolean> condition, Object what) throws Exception {
        long deadline = System.nanoTime() + 90_000_000_000L;
        while (!condition.call()) {
            check(System.nanoTime() < deadline, "not in 90 s: " + what);
            Thread.sleep(50);
        }
    }

    static String sendAndSimpleConsumer() throws Exception {
        Producer sender = producer("NORMAL");
        String sent = sender.send(message("NORMAL", "hello").setTag("t").setKeys("k")
            .addProperty("colour", "red").build()).getMessageId().toString();
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(where)
            .setConsumerGroup("simple_" + suffix).setAwaitDuration(Duration.ofSeconds(20))
            .setSubscriptionExpressions(Map.of(topic("NORMAL"), new FilterExpression("t"))).build();
        List<MessageView> got = consumer.receive(10, Duration.ofSeconds(15));
        check(got.size() == 1, got);
        MessageView one = got.get(0);
        check(one.getMessageId().toString().equals(sent) && body(one).equals("hello")
            && one.getTag().get().equals("t") && one.getKeys().contains("k")
            && one.getProperties().get("colour").equals("red"), one);
        consumer.changeInvisibleDuration(one, Duration.ofSeconds(20));
        consumer.ack(one);
        return sent;
    }

    static String push() throws Exception {
        Producer sender = producer("PUSH");
        Listener listener = new Listener(0);
        pushing("push", "PUSH", listener);
        for (int number = 0; number < 50; number++) {
            sender.send(message("PUSH", "" + number).build());
        }
        waitFor(() -> listener.got.size() >= 50, listener.got);
        check(listener.got.stream().map(Delivery::body).distinct().count() == 50, listener.got);
        return "50 messages";
    }

    static String pushRetries() throws Exception {
        Producer sender = producer("RETRY");
        Listener listener = new Listener(2);
        pushing("retry", "RETRY", listener);
        sender.send(message("RETRY", "bad").build());
        waitFor(() -> listener.got.size() >= 3, listener.got);
        double first = (listener.got.get(1).at() - listener.got.get(0).at()) / 1e9;
        double second = (listener.got.get(2).at() - listener.got.get(1).at()) / 1e9;
        check(0.9 < first && first < 5 && 4.5 < second && second < 12, first + " " + second);
        check(listener.got.get(2).attempt() == 3, listener.got);
        return first + " s, " + second + " s";
    }

    static String fifo() throws Exception {
        Producer sender = producer("FIFO");
        Listener listener = new Listener(0);
        pushing("fifo", "FIFO", listener);
        pushing("fifo", "FIFO", listener);
        for (int number = 10; number < 50; number++) {
            sender.send(message("FIFO", "" + number).setMessageGroup("g" + number % 4).build());
        }
        waitFor(() -> listener.got.size() >= 40, listener.got);
        Map<String, String> last = new HashMap<>();
        for (Delivery one : listener.got) {
            String before = last.put(one.group(), one.body());
            check(before == null || before.compareTo(one.body()) < 0, listener.got);
        }
        return "4 groups, 2 consumers";
    }

    static String delayAndRecall() throws Exception {
        Producer sender = producer("DELAY");
        Listener listener = new Listener(0);
        pushing("delay", "DELAY", listener);
        long at = System.currentTimeMillis() + 5000;
        SendReceipt recalled = sender.send(message("DELAY", "recalled").setDeliveryTimestamp(at).build());
        sender.send(message("DELAY", "kept").setDeliveryTimestamp(at).build());
        sender.recallMessage(topic("DELAY"), recalled.getRecallHandle());
        waitFor(() -> !listener.got.isEmpty(), "nothing");
        long late = System.currentTimeMillis() - at;
        Thread.sleep(2000);
        check(listener.got.size() == 1 && listener.got.get(0).body().equals("kept"), listener.got);
        check(-1000 <= late && late < 5000, late);
        return late + " ms late";
    }

    static String transaction() throws Exception {
        List<String> asked = Collections.synchronizedList(new ArrayList<>());
        Producer sender = PROVIDER.newProducerBuilder().setClientConfiguration(where)
            .setTopics(topic("TRANSACTION")).setTransactionChecker(half -> {
                asked.add(body(half));
                return TransactionResolution.COMMIT;
            }).build();
        Listener listener = new Listener(0);
        pushing("transaction", "TRANSACTION", listener);
        for (String decision : List.of("commit", "rollback", "undecided")) {
            Transaction open = sender.beginTransaction();
            sender.send(message("TRANSACTION", decision).build(), open);
            if (decision.equals("commit")) {
                open.commit();
            } else if (decision.equals("rollback")) {
                open.rollback();
            }
        }
        waitFor(() -> listener.got.size() >= 2, listener.got);
        check(listener.got.stream().map(Delivery::body).sorted().toList()
            .equals(List.of("commit", "undecided")), listener.got);
        check(asked.equals(List.of("undecided")), asked);
        return "one committed, one asked about";
    }

    static String restart() throws Exception {
        Producer sender = producer("RESTART");
        List<Long> got = Collections.synchronizedList(new ArrayList<>());
        PROVIDER.newPushConsumerBuilder().setClientConfiguration(where)
            .setConsumerGroup("restart_" + suffix)
            .setSubscriptionExpressions(Map.of(topic("RESTART"), FilterExpression.SUB_ALL))
            .setMessageListener(one -> {
                got.add(System.currentTimeMillis());
                return ConsumeResult.SUCCESS;
            }).build();
        List<Long> sent = new ArrayList<>();
        long end = System.currentTimeMillis() + 1000 * Long.parseLong(System.getenv("INTEROP_SECONDS"));
        System.out.println("running");
        for (int number = 0; System.currentTimeMillis() < end; number++) {
            try {
                sender.send(message("RESTART", "" + number).build());
                sent.add(System.currentTimeMillis());
            } catch (Exception error) {
                error.printStackTrace();
            }
            Thread.sleep(100);
        }
        return "{\"sent\":" + sent + ",\"got\":" + new ArrayList<>(got) + "}";
    }

    static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\s+", " ") + '"';
    }

    public static void main(String[] arguments) {
        ClientConfigurationBuilder building = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .enableSsl("1".equals(System.getenv("INTEROP_TLS")));
        String key = System.getenv("INTEROP_ACCESS_KEY");
        if (key != null) {
            String secret = System.getenv("INTEROP_SECRET_KEY");
            building.setCredentialProvider(new StaticSessionCredentialsProvider(key, secret));
        }
        where = building.build();
        suffix = arguments[1];
        Map<String, Callable<String>> scenarios = new TreeMap<>();
        scenarios.put("grpc_send_and_simple_consumer", GrpcScenarios::sendAndSimpleConsumer);
        scenarios.put("grpc_push", GrpcScenarios::push);
        scenarios.put("grpc_push_retries", GrpcScenarios::pushRetries);
        scenarios.put("grpc_fifo", GrpcScenarios::fifo);
        scenarios.put("grpc_delay_and_recall", GrpcScenarios::delayAndRecall);
        scenarios.put("grpc_transaction", GrpcScenarios::transaction);
        scenarios.put("grpc_restart", GrpcScenarios::restart);
        for (String name : Arrays.copyOfRange(arguments, 2, arguments.length)) {
            long begun = System.nanoTime();
            String status = "pass";
            String evidence;
            try {
                evidence = scenarios.get(name).call();
            } catch (Throwable error) {
                error.printStackTrace();
                status = "fail";
                evidence = error.toString();
            }
            long ms = (System.nanoTime() - begun) / 1_000_000;
            System.out.printf("{\"scenario\":\"%s\",\"status\":\"%s\",\"evidence\":%s,\"ms\":%d}%n",
                name, status, quoted(evidence), ms);
        }
        System.exit(0);
    }
}
