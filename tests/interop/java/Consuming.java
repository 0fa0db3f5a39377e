import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Push consumers: concurrent, orderly, filtered, several per group, broadcast. */
final class Consuming {
    private Consuming() {
    }

    static void register(Map<String, Scenario> all) {
        all.put("push_concurrent", Consuming::concurrent);
        all.put("push_orderly", Consuming::orderly);
        all.put("push_orderly_suspend", Consuming::orderlySuspend);
        all.put("push_tags", Consuming::tags);
        all.put("push_sql92", Consuming::sql);
        all.put("push_rebalance", Consuming::rebalance);
        all.put("push_orderly_rebalance", Consuming::orderlyRebalance);
        all.put("push_broadcast", Consuming::broadcast);
        all.put("push_start_positions", Consuming::startPositions);
        all.put("push_many", Consuming::many);
        all.put("several_brokers", Consuming::severalBrokers);
    }

    static MessageListenerConcurrently into(Queue<MessageExt> received) {
        return (messages, context) -> {
            received.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    static void send(DefaultMQProducer producer, String topic, int from, int until) throws Exception {
        for (int i = from; i < until; i++) {
            producer.send(Sending.message(topic, i));
        }
    }

    static Set<String> bodies(Iterable<MessageExt> messages) {
        Set<String> bodies = new HashSet<>();
        messages.forEach(message -> bodies.add(Lab.text(message)));
        return bodies;
    }

    /** Wait until the broker reports no lag for the group. */
    static void awaitNoLag(Lab lab, String group, String topic) throws Exception {
        Lab.await(Lab.PATIENCE, () -> lab.lag(group, topic) == 0,
            () -> "lag of " + group + " is " + lab.lag(group, topic));
    }

    private static String concurrent(Lab lab) throws Exception {
        String topic = lab.topic("concurrent", 4);
        String group = lab.name("group");
        DefaultMQProducer producer = lab.producer();
        send(producer, topic, 0, 50);
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = lab.pushConsumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(into(received));
        consumer.start();
        Lab.await(Lab.PATIENCE, () -> received.size() >= 50, () -> received.size() + " of 50 from before the start");
        send(producer, topic, 50, 100);
        Lab.await(Lab.PATIENCE, () -> received.size() >= 100, () -> received.size() + " of 100 received");
        Lab.same(100, bodies(received).size(), "different bodies");
        Lab.same(100, received.size(), "deliveries");
        consumer.shutdown();
        awaitNoLag(lab, group, topic);
        return "100 received once, no lag";
    }

    private static String many(Lab lab) throws Exception {
        String topic = lab.topic("many", 4);
        String group = lab.name("group");
        DefaultMQProducer producer = lab.producer();
        for (int round = 0; round < 60; round++) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < 50; i++) {
                batch.add(Sending.message(topic, round * 50 + i));
            }
            producer.send(batch);
        }
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = lab.pushConsumer(group);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(into(received));
        consumer.start();
        Lab.await(Lab.PATIENCE, () -> received.size() >= 3000, () -> received.size() + " of 3000 received");
        Lab.same(3000, bodies(received).size(), "different bodies");
        consumer.shutdown();
        awaitNoLag(lab, group, topic);
        return "3,000 received, delivered up to 32 at a time";
    }

    private static String severalBrokers(Lab lab) throws Exception {
        String topic = lab.name("several");
        Set<String> names = new HashSet<>();
        for (var broker : lab.admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            lab.admin.createAndUpdateTopicConfig(broker.selectBrokerAddr(), new TopicConfig(topic, 4, 4, 6));
            names.add(broker.getBrokerName());
        }
        if (names.size() == 1) {
            throw new Scenario.NotApplicable("this cluster has one broker");
        }
        Lab.await(20, () -> lab.hasRoute(topic) && lab.admin.examineTopicRouteInfo(topic).getQueueDatas().size()
            == names.size(), () -> "the route does not contain all of " + names);
        DefaultMQProducer producer = lab.producer();
        Set<String> used = new HashSet<>();
        for (int i = 0; i < 80; i++) {
            used.add(producer.send(Sending.message(topic, i)).getMessageQueue().getBrokerName());
        }
        Lab.same(names, used, "brokers used");
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = lab.pushConsumer(lab.name("group"));
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(into(received));
            consumer.start();
            consumers.add(consumer);
        }
        int half = 4 * names.size() / 2;
        Lab.await(Lab.PATIENCE, () -> owned(consumers.get(0), topic) == half && owned(consumers.get(1), topic) == half,
            () -> "they own " + owned(consumers.get(0), topic) + " and " + owned(consumers.get(1), topic));
        Lab.await(Lab.PATIENCE, () -> bodies(received).size() == 80, () -> bodies(received).size() + " of 80 received");
        return "80 messages over " + names + ", " + half + " queues for each of two consumers";
    }

    /** Messages 0..count-1, each to queue (number mod 4), so the order per queue is the order of the numbers. */
    private static void sendSharded(DefaultMQProducer producer, String topic, int from, int until) throws Exception {
        for (int i = from; i < until; i++) {
            producer.send(Sending.message(topic, i), (queues, message, key) -> queues.get((Integer) key % queues.size()), i);
        }
    }

    private static void checkOrder(Iterable<MessageExt> received) {
        Map<Integer, Long> last = new ConcurrentHashMap<>();
        for (MessageExt message : received) {
            Long before = last.put(message.getQueueId(), message.getQueueOffset());
            Lab.check(before == null || message.getQueueOffset() == before + 1, "queue %d: offset %d after %s",
                message.getQueueId(), message.getQueueOffset(), before);
        }
    }

    private static String orderly(Lab lab) throws Exception {
        String topic = lab.topic("orderly", 4);
        String group = lab.name("group");
        DefaultMQProducer producer = lab.producer();
        sendSharded(producer, topic, 0, 100);
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        Map<Integer, AtomicInteger> running = new ConcurrentHashMap<>();
        AtomicBoolean overlapped = new AtomicBoolean();
        DefaultMQPushConsumer consumer = lab.pushConsumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            AtomicInteger inQueue = running.computeIfAbsent(messages.get(0).getQueueId(), id -> new AtomicInteger());
            overlapped.compareAndSet(false, inQueue.incrementAndGet() > 1);
            received.addAll(messages);
            inQueue.decrementAndGet();
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Lab.await(Lab.PATIENCE, () -> received.size() >= 100, () -> received.size() + " of 100 received");
        checkOrder(received);
        Lab.check(!overlapped.get(), "two messages of one queue were handled at once");
        consumer.shutdown();
        awaitNoLag(lab, group, topic);
        return "100 in 4 queues, in order, one at a time";
    }

    private static String orderlySuspend(Lab lab) throws Exception {
        String topic = lab.topic("suspend", 1);
        DefaultMQProducer producer = lab.producer();
        send(producer, topic, 0, 10);
        Queue<MessageExt> done = new ConcurrentLinkedQueue<>();
        AtomicInteger suspended = new AtomicInteger();
        DefaultMQPushConsumer consumer = lab.pushConsumer(lab.name("group"));
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            if (Lab.text(messages.get(0)).equals("body-4") && suspended.incrementAndGet() <= 3) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            done.addAll(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Lab.await(Lab.PATIENCE, () -> done.size() >= 10, () -> done.size() + " of 10 done");
        checkOrder(done);
        Lab.same(4, suspended.get(), "deliveries of the suspended message");
        return "a message suspended 3 times held its queue back; order kept";
    }

    private static String tags(Lab lab) throws Exception {
        String topic = lab.topic("tags", 2);
        String group = lab.name("group");
        DefaultMQProducer producer = lab.producer();
        for (int i = 0; i < 30; i++) {
            String tag = "ABC".substring(i % 3, i % 3 + 1);
            producer.send(new Message(topic, tag, Lab.bytes(tag + i)));
        }
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = lab.pushConsumer(group);
        consumer.subscribe(topic, "A || C");
        consumer.registerMessageListener(into(received));
        consumer.start();
        Lab.await(Lab.PATIENCE, () -> received.size() >= 20, () -> received.size() + " of 20 received");
        Set<String> tags = new HashSet<>();
        received.forEach(message -> tags.add(message.getTags()));
        Lab.same(Set.of("A", "C"), tags, "tags received");
        awaitNoLag(lab, group, topic); // the committed offset passes the messages that were filtered out
        Lab.same(20, received.size(), "deliveries");
        return "A || C: 20 of 30";
    }

    private static String sql(Lab lab) throws Exception {
        String topic = lab.topic("sql", 2);
        String group = lab.name("group");
        DefaultMQProducer producer = lab.producer();
        for (int i = 0; i < 30; i++) {
            Message message = new Message(topic, i % 3 == 0 ? "gold" : "plain", Lab.bytes("body-" + i));
            message.putUserProperty("price", String.valueOf(i));
            if (i % 2 == 0) {
                message.putUserProperty("region", "eu");
            }
            producer.send(message);
        }
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = lab.pushConsumer(group);
        consumer.subscribe(topic, MessageSelector.bySql(
            "(price BETWEEN 10 AND 20 AND region IS NOT NULL) OR (TAGS IN ('gold') AND price > 25)"));
        consumer.registerMessageListener(into(received));
        consumer.start();
        Set<String> expected = Set.of("body-10", "body-12", "body-14", "body-16", "body-18", "body-20", "body-27");
        Lab.await(Lab.PATIENCE, () -> received.size() >= expected.size(), () -> received.size() + " of 7 received");
        awaitNoLag(lab, group, topic);
        Lab.same(expected, bodies(received), "bodies received");
        return "BETWEEN, IS NOT NULL, IN, OR: 7 of 30";
    }

    static int owned(DefaultMQPushConsumer consumer, String topic) throws Exception {
        int owned = 0;
        for (var queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            owned += queue.getTopic().equals(topic) ? 1 : 0;
        }
        return owned;
    }

    private static String rebalance(Lab lab) throws Exception {
        String topic = lab.topic("rebalance", 8);
        String group = lab.name("group");
        DefaultMQProducer producer = lab.producer();
        List<Queue<MessageExt>> received = List.of(new ConcurrentLinkedQueue<>(), new ConcurrentLinkedQueue<>());
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (Queue<MessageExt> mine : received) {
            DefaultMQPushConsumer consumer = lab.pushConsumer(group);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(into(mine));
            consumer.start();
            consumers.add(consumer);
            if (consumers.size() == 1) {
                Lab.await(Lab.PATIENCE, () -> owned(consumer, topic) == 8, () -> "a single consumer owns " + owned(consumer, topic) + " of 8");
            }
        }
        long joined = System.nanoTime();
        Lab.await(Lab.PATIENCE, () -> owned(consumers.get(0), topic) == 4 && owned(consumers.get(1), topic) == 4,
            () -> "together they own " + owned(consumers.get(0), topic) + " and " + owned(consumers.get(1), topic));
        long sharedMs = (System.nanoTime() - joined) / 1_000_000;
        send(producer, topic, 0, 80);
        Lab.await(Lab.PATIENCE, () -> received.get(0).size() + received.get(1).size() >= 80,
            () -> received.get(0).size() + " and " + received.get(1).size() + " of 80 received");
        Lab.same(40, received.get(0).size(), "received by the first");
        Lab.same(40, received.get(1).size(), "received by the second");
        consumers.get(1).shutdown();
        long left = System.nanoTime();
        Lab.await(Lab.PATIENCE, () -> owned(consumers.get(0), topic) == 8, () -> "the remaining consumer owns " + owned(consumers.get(0), topic));
        long takenMs = (System.nanoTime() - left) / 1_000_000;
        send(producer, topic, 80, 160);
        Lab.await(Lab.PATIENCE, () -> received.get(0).size() >= 120, () -> received.get(0).size() + " of 120 received by the first");
        return "8, then 4 and 4 after " + sharedMs + " ms, then 8 again after " + takenMs + " ms";
    }

    private static String orderlyRebalance(Lab lab) throws Exception {
        String topic = lab.topic("lock", 4);
        String group = lab.name("group");
        DefaultMQProducer producer = lab.producer();
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = lab.pushConsumer(group);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                received.addAll(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        sendSharded(producer, topic, 0, 40);
        Lab.await(Lab.PATIENCE, () -> owned(consumers.get(0), topic) == 2 && owned(consumers.get(1), topic) == 2,
            () -> "together they own " + owned(consumers.get(0), topic) + " and " + owned(consumers.get(1), topic));
        sendSharded(producer, topic, 40, 80);
        Lab.await(Lab.PATIENCE, () -> received.size() >= 80, () -> received.size() + " of 80 received");
        consumers.get(1).shutdown(); // releases its locks, so the other takes over at once
        sendSharded(producer, topic, 80, 120);
        Lab.await(Lab.PATIENCE, () -> bodies(received).size() >= 120, () -> bodies(received).size() + " of 120 received");
        Lab.same(120, received.size(), "deliveries");
        checkOrder(received);
        return "120 in order while locks moved from one to two consumers and back";
    }

    private static String broadcast(Lab lab) throws Exception {
        String topic = lab.topic("broadcast", 4);
        String group = lab.name("group");
        DefaultMQProducer producer = lab.producer();
        List<Queue<MessageExt>> received = List.of(new ConcurrentLinkedQueue<>(), new ConcurrentLinkedQueue<>());
        for (Queue<MessageExt> mine : received) {
            DefaultMQPushConsumer consumer = lab.pushConsumer(group);
            var model = consumer.getMessageModel(); // its package moved between 4.9 and 5.0
            consumer.setMessageModel(Enum.valueOf(model.getDeclaringClass(), "BROADCASTING"));
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(into(mine));
            consumer.start();
        }
        send(producer, topic, 0, 40);
        Lab.await(Lab.PATIENCE, () -> received.get(0).size() >= 40 && received.get(1).size() >= 40,
            () -> received.get(0).size() + " and " + received.get(1).size() + " of 40 received");
        Lab.same(40, bodies(received.get(0)).size(), "different bodies of the first");
        Lab.same(40, bodies(received.get(1)).size(), "different bodies of the second");
        return "both consumers received all 40";
    }

    private static String startPositions(Lab lab) throws Exception {
        String topic = lab.topic("positions", 1);
        DefaultMQProducer producer = lab.producer();
        send(producer, topic, 0, 5);
        Thread.sleep(2_500); // CONSUME_FROM_TIMESTAMP counts in seconds
        long middle = System.currentTimeMillis();
        Thread.sleep(1_500);
        SendResult last = null;
        for (int i = 5; i < 10; i++) {
            last = producer.send(Sending.message(topic, i));
        }
        Lab.same(9L, last.getQueueOffset(), "queue offset of the tenth");
        Queue<MessageExt> first = started(lab, topic, "first", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, 0);
        Queue<MessageExt> timed = started(lab, topic, "timed", ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, middle);
        Lab.await(Lab.PATIENCE, () -> first.size() >= 10, () -> first.size() + " of 10 from the first on");
        Lab.await(Lab.PATIENCE, () -> timed.size() >= 5, () -> timed.size() + " of at least 5 from a time on");
        // A new group starts at 0 in a new topic whose first message is still in memory, regardless of its setting.
        Queue<MessageExt> fresh = started(lab, topic, "fresh", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 0);
        Lab.await(Lab.PATIENCE, () -> fresh.size() >= 10, () -> fresh.size() + " of 10 for a new group on a new topic");
        return "first: " + first.size() + ", by time: " + timed.size() + ", last on a new topic: " + fresh.size();
    }

    private static Queue<MessageExt> started(Lab lab, String topic, String role, ConsumeFromWhere where, long time)
        throws Exception {
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = lab.pushConsumer(lab.name(role));
        consumer.setConsumeFromWhere(where);
        if (time > 0) {
            consumer.setConsumeTimestamp(UtilAll.timeMillisToHumanString3(time));
        }
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(into(received));
        consumer.start();
        return received;
    }
}
