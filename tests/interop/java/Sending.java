import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** All kinds of sends; the stored messages are read back and compared. */
final class Sending {
    private static final int MIB = 1024 * 1024;

    private Sending() {
    }

    static void register(Map<String, Scenario> all) {
        all.put("send_sync", Sending::sync);
        all.put("send_async", Sending::async);
        all.put("send_oneway", Sending::oneway);
        all.put("send_batch", Sending::batch);
        all.put("send_big", Sending::big);
        all.put("send_too_big", Sending::tooBig);
        all.put("send_compressed_lz4", lab -> compressed(lab, "LZ4"));
        all.put("send_compressed_zstd", lab -> compressed(lab, "ZSTD"));
        all.put("send_to_queue", Sending::toQueue);
        all.put("send_vip_channel", Sending::vipChannel);
        all.put("send_auto_create", Sending::autoCreate);
    }

    static Message message(String topic, int number) {
        Message message = new Message(topic, number % 2 == 0 ? "even" : "odd", "key-" + number, Lab.bytes("body-" + number));
        message.putUserProperty("colour", "blue-" + number);
        message.setFlag(7);
        return message;
    }

    static void compare(Message sent, MessageExt stored) {
        Lab.check(Arrays.equals(sent.getBody(), stored.getBody()), "body of %s differs: %d bytes sent, %d stored",
            stored.getMsgId(), sent.getBody().length, stored.getBody().length);
        Lab.same(sent.getTags(), stored.getTags(), "tags of " + stored.getMsgId());
        Lab.same(sent.getKeys(), stored.getKeys(), "keys of " + stored.getMsgId());
        Lab.same(sent.getFlag(), stored.getFlag(), "flag of " + stored.getMsgId());
        Lab.same(sent.getUserProperty("colour"), stored.getUserProperty("colour"), "property of " + stored.getMsgId());
    }

    private static void accepted(SendResult result) {
        Lab.same(SendStatus.SEND_OK, result.getSendStatus(), "send status");
        Lab.check(result.getOffsetMsgId() != null && result.getOffsetMsgId().length() >= 32, "offset message id %s",
            result.getOffsetMsgId());
    }

    private static String sync(Lab lab) throws Exception {
        String topic = lab.topic("sync", 4);
        DefaultMQProducer producer = lab.producer();
        Map<String, Message> sent = new HashMap<>();
        Map<String, SendResult> results = new HashMap<>();
        for (int i = 0; i < 20; i++) {
            Message message = message(topic, i);
            SendResult result = producer.send(message);
            accepted(result);
            sent.put(result.getMsgId(), message);
            results.put(result.getMsgId(), result);
        }
        Set<Integer> queues = new HashSet<>();
        for (MessageExt stored : lab.readAll(topic, 20)) {
            Lab.check(sent.containsKey(stored.getMsgId()), "message id %s was never sent", stored.getMsgId());
            compare(sent.get(stored.getMsgId()), stored);
            SendResult result = results.get(stored.getMsgId());
            Lab.same(result.getQueueOffset(), stored.getQueueOffset(), "queue offset of " + stored.getMsgId());
            Lab.same(result.getMessageQueue().getQueueId(), stored.getQueueId(), "queue of " + stored.getMsgId());
            queues.add(stored.getQueueId());
        }
        Lab.same(4, queues.size(), "queues used");
        return "20 sent and read back from 4 queues";
    }

    private static String async(Lab lab) throws Exception {
        String topic = lab.topic("async", 4);
        DefaultMQProducer producer = lab.producer();
        CountDownLatch open = new CountDownLatch(200);
        ConcurrentLinkedQueue<Throwable> errors = new ConcurrentLinkedQueue<>();
        Set<String> ids = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 200; i++) {
            producer.send(message(topic, i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    ids.add(result.getMsgId());
                    open.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    errors.add(error);
                    open.countDown();
                }
            });
        }
        Lab.check(open.await(30, TimeUnit.SECONDS), "%d async sends unanswered", open.getCount());
        Lab.check(errors.isEmpty(), "%d async sends failed, first: %s", errors.size(), errors.peek());
        Set<String> stored = new HashSet<>();
        lab.readAll(topic, 200).forEach(message -> stored.add(message.getMsgId()));
        Lab.same(ids, stored, "message ids");
        return "200 sent with callbacks, all stored";
    }

    private static String oneway(Lab lab) throws Exception {
        String topic = lab.topic("oneway", 4);
        DefaultMQProducer producer = lab.producer();
        Set<String> sent = new HashSet<>();
        for (int i = 0; i < 50; i++) {
            Message message = message(topic, i);
            producer.sendOneway(message);
            sent.add(Lab.text(message));
        }
        Set<String> stored = new HashSet<>();
        lab.readAll(topic, 50).forEach(message -> stored.add(Lab.text(message)));
        Lab.same(sent, stored, "bodies");
        return "50 sent one-way, all stored";
    }

    private static String batch(Lab lab) throws Exception {
        String topic = lab.topic("batch", 2);
        DefaultMQProducer producer = lab.producer();
        Map<String, Message> sent = new HashMap<>();
        for (int round = 0; round < 3; round++) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < 32; i++) {
                batch.add(message(topic, round * 32 + i));
            }
            SendResult result = producer.send(batch);
            accepted(result);
            String[] ids = result.getMsgId().split(",");
            String[] offsetIds = result.getOffsetMsgId().split(",");
            Lab.same(32, ids.length, "message ids of a batch");
            Lab.same(32, offsetIds.length, "offset message ids of a batch");
            for (int i = 0; i < 32; i++) {
                sent.put(ids[i], batch.get(i));
            }
        }
        for (MessageExt stored : lab.readAll(topic, 96)) {
            Lab.check(sent.containsKey(stored.getMsgId()), "message id %s was never sent", stored.getMsgId());
            compare(sent.get(stored.getMsgId()), stored);
        }
        return "3 batches of 32, each message stored separately";
    }

    private static String big(Lab lab) throws Exception {
        String topic = lab.topic("big", 1);
        DefaultMQProducer producer = lab.producer();
        byte[] noise = new byte[4 * MIB - 16 * 1024]; // grows slightly when compressed; headers count too
        new Random(5).nextBytes(noise);
        byte[] text = Lab.bytes("compressible ".repeat(4 * MIB / 14));
        for (byte[] body : List.of(noise, text)) {
            // The producer replaces the body by the compressed one while it sends, and restores it afterwards.
            accepted(producer.send(new Message(topic, "tag", "big", body.clone())));
        }
        List<MessageExt> stored = lab.readAll(topic, 2);
        Lab.check(Arrays.equals(noise, stored.get(0).getBody()), "the incompressible body differs");
        Lab.check(Arrays.equals(text, stored.get(1).getBody()), "the compressible body differs");
        Lab.check(stored.get(1).getStoreSize() < text.length / 10, "stored size %d of a compressible body of %d",
            stored.get(1).getStoreSize(), text.length);
        return noise.length + " random bytes and " + text.length + " of text stored in " + stored.get(1).getStoreSize();
    }

    private static String tooBig(Lab lab) throws Exception {
        String topic = lab.topic("too-big", 1);
        DefaultMQProducer producer = lab.producer();
        producer.setMaxMessageSize(16 * MIB);
        byte[] noise = new byte[5 * MIB];
        new Random(6).nextBytes(noise);
        try {
            producer.send(new Message(topic, noise));
            throw new Scenario.Failed("a message of 5 MiB was accepted");
        } catch (MQBrokerException refused) {
            Lab.same(13, refused.getResponseCode(), "response code");
            accepted(producer.send(message(topic, 1)));
            lab.readAll(topic, 1);
            return "5 MiB refused: " + refused.getResponseCode() + " " + refused.getErrorMessage();
        }
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static String compressed(Lab lab, String type) throws Exception {
        String topic = lab.topic("compressed", 1);
        DefaultMQProducer producer = lab.producer();
        try {
            Class types = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
            producer.getClass().getMethod("setCompressType", types).invoke(producer, Enum.valueOf(types, type));
        } catch (ReflectiveOperationException absent) {
            throw new Scenario.NotApplicable("this client compresses with zlib only");
        }
        byte[] text = Lab.bytes("compressible ".repeat(10_000));
        accepted(producer.send(new Message(topic, text.clone())));
        MessageExt stored = lab.readAll(topic, 1).get(0);
        Lab.check(Arrays.equals(text, stored.getBody()), "the body differs");
        Lab.check(stored.getStoreSize() < text.length / 10, "stored size %d", stored.getStoreSize());
        return text.length + " bytes stored in " + stored.getStoreSize();
    }

    private static String toQueue(Lab lab) throws Exception {
        String topic = lab.topic("to-queue", 8);
        DefaultMQProducer producer = lab.producer();
        for (int i = 0; i < 16; i++) {
            SendResult result = producer.send(message(topic, i), (queues, message, key) -> {
                List<MessageQueue> sorted = new ArrayList<>(queues);
                sorted.sort(null);
                return sorted.get((Integer) key % sorted.size());
            }, i);
            accepted(result);
            Lab.same(i % 8, result.getMessageQueue().getQueueId(), "chosen queue");
            Lab.same((long) (i / 8), result.getQueueOffset(), "offset in the chosen queue");
        }
        lab.readAll(topic, 16);
        return "16 sent to the queues chosen by a selector";
    }

    private static String vipChannel(Lab lab) throws Exception {
        String topic = lab.topic("vip", 1);
        DefaultMQProducer producer = new DefaultMQProducer(lab.name("vip-producer"));
        lab.configure(producer);
        producer.setVipChannelEnabled(true);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        lab.onClose(producer::shutdown);
        accepted(producer.send(message(topic, 1)));
        lab.readAll(topic, 1);
        return "sent through the VIP channel, the port two below";
    }

    private static String autoCreate(Lab lab) throws Exception {
        String topic = lab.name("auto-created");
        DefaultMQProducer producer = lab.producer();
        accepted(producer.send(message(topic, 1)));
        Lab.await(10, () -> lab.hasRoute(topic), () -> "no route for the auto-created topic");
        lab.readAll(topic, 1);
        int queues = lab.admin.examineTopicRouteInfo(topic).getQueueDatas().get(0).getWriteQueueNums();
        Lab.same(4, queues, "queues of an auto-created topic");
        return "created with 4 queues by its first message";
    }
}
