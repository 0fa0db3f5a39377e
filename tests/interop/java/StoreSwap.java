import java.io.PrintStream;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Prints the content of a broker as the official client sees it, one JSON line per message or key.
 *
 * <p>Usage: StoreSwap NAMESRV BROKER (fill|keep) TOPIC=KEY,KEY...: "fill" first sends various messages to swap-plain,
 * swap-batch and swap-big, and commits the middle of each queue for the group swap-reader. Both then print every message
 * of the topics, the messages found by each key, and the committed offsets of swap-reader.
 */
public final class StoreSwap {
    private static final int LIMIT_SECONDS = 200;

    private StoreSwap() {
    }

    public static void main(String[] args) {
        try {
            run(args);
            System.exit(0);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1); // the client's threads would keep the JVM running
        }
    }

    private static void run(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        watch(Thread.currentThread());
        DefaultMQAdminExt admin = Lab.startAdmin(args[0]);
        try (Lab lab = new Lab(args[0], args[1], admin, "swap")) {
            if (args[2].equals("fill")) {
                fill(lab);
            }
            DefaultMQPullConsumer consumer = lab.pullConsumer("swap-reader");
            for (int i = 3; i < args.length; i++) {
                String topic = args[i].split("=")[0];
                Lab.await(Lab.PATIENCE, () -> lab.hasRoute(topic), () -> "no route for " + topic);
                for (MessageExt message : Lab.read(consumer, topic)) {
                    out.println(Json.object(describe(message)));
                }
                for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                    if (args[2].equals("fill")) {
                        commit(consumer, queue, consumer.maxOffset(queue) / 2);
                    }
                    out.println(Json.object(Map.of("queue", topic + "/" + queue.getQueueId(),
                        "committed", consumer.fetchConsumeOffset(queue, true))));
                }
                for (String key : args[i].split("=")[1].split(",")) {
                    out.println(Json.object(Map.of("key", key, "ids", String.join(",", ids(admin, topic, key)))));
                }
            }
        }
        out.flush();
    }

    /** Instead of hanging, print where the main thread is stuck. */
    private static void watch(Thread main) {
        Thread watchdog = new Thread(() -> {
            try {
                Thread.sleep(LIMIT_SECONDS * 1_000L);
            } catch (InterruptedException never) {
                return;
            }
            System.err.println("not finished after " + LIMIT_SECONDS + " s, at " + Arrays.toString(main.getStackTrace()));
            Runtime.getRuntime().halt(3);
        });
        watchdog.setDaemon(true);
        watchdog.start();
    }

    private static void fill(Lab lab) throws Exception {
        lab.topic("swap-plain", 4);
        lab.topic("swap-batch", 2);
        lab.topic("swap-big", 1);
        DefaultMQProducer producer = lab.producer();
        for (int i = 0; i < 1_000; i++) {
            Message message = new Message(lab.name("swap-plain"), "tag-" + i % 3, "key-" + i + " shared-" + i % 50,
                Lab.bytes("plain body " + i));
            message.putUserProperty("colour", "gr\u00fcn-" + i);
            message.setFlag(i);
            producer.send(message);
        }
        for (int round = 0; round < 20; round++) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < 32; i++) {
                batch.add(new Message(lab.name("swap-batch"), "tag", "batch-" + (round * 32 + i), Lab.bytes("in a batch " + i)));
            }
            producer.send(batch);
        }
        Random random = new Random(9);
        for (int i = 0; i < 20; i++) {
            byte[] noise = new byte[20_000 + random.nextInt(20_000)];
            random.nextBytes(noise);
            producer.send(new Message(lab.name("swap-big"), "noise", "noise-" + i, noise));
            producer.send(new Message(lab.name("swap-big"), "text", "text-" + i, Lab.bytes("squeeze me ".repeat(5_000 + i))));
        }
    }

    private static void commit(DefaultMQPullConsumer consumer, MessageQueue queue, long offset) throws Exception {
        Lab.await(Lab.PATIENCE, () -> {
            // A commit is one-way, and refused until the first heartbeat has registered the group.
            consumer.updateConsumeOffset(queue, offset);
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persistAll(new HashSet<>(Set.of(queue)));
            return consumer.fetchConsumeOffset(queue, true) == offset;
        }, () -> "offset " + offset + " of " + queue + " was not committed");
    }

    private static List<String> ids(DefaultMQAdminExt admin, String topic, String key) throws Exception {
        List<String> ids = new ArrayList<>();
        try {
            for (MessageExt message : admin.queryMessage(topic, key, 64, 0, Long.MAX_VALUE).getMessageList()) {
                ids.add(((MessageClientExt) message).getOffsetMsgId());
            }
        } catch (MQClientException none) {
            return ids; // the client raises an error for an empty answer
        }
        return ids;
    }

    private static Map<String, Object> describe(MessageExt message) throws Exception {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", message.getTopic());
        fields.put("queue_id", message.getQueueId());
        fields.put("queue_offset", message.getQueueOffset());
        fields.put("log_position", message.getCommitLogOffset());
        fields.put("size", message.getStoreSize());
        fields.put("flag", message.getFlag());
        fields.put("sys_flag", message.getSysFlag() & ~1); // some clients clear the bit when they decompress a body
        fields.put("born_timestamp", message.getBornTimestamp());
        fields.put("store_timestamp", message.getStoreTimestamp());
        fields.put("reconsume_times", message.getReconsumeTimes());
        fields.put("body_length", message.getBody().length);
        StringBuilder digest = new StringBuilder();
        for (byte one : MessageDigest.getInstance("SHA-256").digest(message.getBody())) {
            digest.append(String.format("%02x", one));
        }
        fields.put("body_sha256", digest);
        fields.put("msg_id", message.getMsgId());
        fields.put("offset_msg_id", ((MessageClientExt) message).getOffsetMsgId());
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.remove("MIN_OFFSET"); // the client adds these two to pulled messages
        properties.remove("MAX_OFFSET");
        fields.put("properties", properties);
        return fields;
    }
}
