import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The environment of a scenario: unique names, clients that are shut down after it, and helpers to inspect and wait. */
final class Lab implements AutoCloseable {
    /** Seconds: a push consumer that misses its first rebalance waits 20 s for the next one. */
    static final int PATIENCE = 50;

    private static final AtomicInteger CLIENTS = new AtomicInteger();

    final String namesrv;
    final String broker;
    final DefaultMQAdminExt admin;
    private final String unique;
    private final Deque<Runnable> shutdowns = new ArrayDeque<>();

    Lab(String namesrv, String broker, DefaultMQAdminExt admin, String unique) {
        this.namesrv = namesrv;
        this.broker = broker;
        this.admin = admin;
        this.unique = unique;
    }

    static DefaultMQAdminExt startAdmin(String namesrv) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(signature(), 10_000);
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("admin-" + CLIENTS.incrementAndGet());
        admin.start();
        return admin;
    }

    /** Signs the requests of a client, where the run has an account; else null. */
    static RPCHook signature() {
        String accessKey = System.getProperty("interop.accessKey");
        return accessKey == null ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, System.getProperty("interop.secretKey")));
    }

    static void check(boolean holds, String otherwise, Object... values) {
        if (!holds) {
            throw new Scenario.Failed(String.format(otherwise, values));
        }
    }

    static void same(Object expected, Object found, String what) {
        check(expected.equals(found), "%s: expected %s, found %s", what, expected, found);
    }

    /** Wait until the condition holds; {@code what} describes the failure. */
    static void await(int seconds, Callable<Boolean> condition, Callable<String> what) throws Exception {
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                throw new Scenario.Failed("after " + seconds + " s: " + what.call());
            }
            Thread.sleep(20);
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    String name(String role) {
        return role + "-" + unique;
    }

    /** Create a topic for this scenario and wait until the name server has its route. */
    String topic(String role, int queues) throws Exception {
        return topic(role, queues, 6);
    }

    String topic(String role, int queues, int permission) throws Exception {
        String topic = name(role);
        admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, queues, queues, permission));
        await(10, () -> hasRoute(topic), () -> "no route for the created topic " + topic);
        return topic;
    }

    boolean hasRoute(String topic) {
        try {
            return !admin.examineTopicRouteInfo(topic).getQueueDatas().isEmpty();
        } catch (Exception notYet) {
            return false;
        }
    }

    DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(name("producer" + CLIENTS.incrementAndGet()), signature());
        configure(producer);
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        onClose(producer::shutdown);
        return producer;
    }

    /** A push consumer that begins at the first message; the scenario subscribes and starts it. */
    DefaultMQPushConsumer pushConsumer(String group) {
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, signature(), new AllocateMessageQueueAveragely());
        configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        onClose(consumer::shutdown);
        return consumer;
    }

    DefaultMQPullConsumer pullConsumer(String group) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, signature());
        configure(consumer);
        consumer.start();
        onClose(consumer::shutdown);
        return consumer;
    }

    DefaultLitePullConsumer litePullConsumer(String group) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group, signature());
        configure(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollTimeoutMillis(1_000);
        onClose(consumer::shutdown);
        return consumer;
    }

    /** Settings for every client: a unique instance name, and short intervals for heartbeats and route polls. */
    void configure(ClientConfig client) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName("i" + CLIENTS.incrementAndGet() + "-" + unique);
        client.setPollNameServerInterval(1_000);
        client.setHeartbeatBrokerInterval(2_000); // a reply reaches only clients whose heartbeat has arrived
        client.setVipChannelEnabled(false);
    }

    void onClose(Runnable shutdown) {
        shutdowns.push(shutdown);
    }

    /** The number of messages that the group has not consumed yet, without the requests that newer admin clients send first. */
    long lag(String group, String topic) throws Exception {
        return MQClientManager.getInstance().getOrCreateMQClientInstance(admin, null).getMQClientAPIImpl()
            .getConsumeStats(broker, group, topic, 5_000).computeTotalDiff();
    }

    /** Wait until the topic contains this many messages and read them all, queue by queue. */
    List<MessageExt> readAll(String topic, int count) throws Exception {
        DefaultMQPullConsumer consumer = pullConsumer(name("reader" + CLIENTS.incrementAndGet()));
        List<MessageExt> found = new ArrayList<>();
        await(20, () -> {
            found.clear();
            found.addAll(read(consumer, topic));
            return found.size() >= count;
        }, () -> found.size() + " of " + count + " messages in " + topic);
        same(count, found.size(), "messages in " + topic);
        return found;
    }

    static List<MessageExt> read(DefaultMQPullConsumer consumer, String topic) throws Exception {
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
        queues.sort(Comparator.naturalOrder());
        List<MessageExt> found = new ArrayList<>();
        for (MessageQueue queue : queues) {
            long offset = consumer.minOffset(queue);
            while (offset < consumer.maxOffset(queue)) {
                PullResult result = consumer.pull(queue, "*", offset, 32, 10_000);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    found.addAll(result.getMsgFoundList());
                }
                check(result.getNextBeginOffset() > offset, "pull of %s at %d made no progress: %s", queue, offset, result);
                offset = result.getNextBeginOffset();
            }
        }
        return found;
    }

    @Override
    public void close() {
        while (!shutdowns.isEmpty()) {
            try {
                shutdowns.pop().run();
            } catch (RuntimeException ignored) {
                // A client that never started cannot be shut down; the scenario has already reported the reason.
            }
        }
    }
}
