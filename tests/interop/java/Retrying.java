import java.lang.reflect.Method;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Retries, delayed messages and dead letters. */
final class Retrying {
    private Retrying() {
    }

    static void register(Map<String, Scenario> all) {
        all.put("retry_to_success", Retrying::toSuccess);
        all.put("retry_to_dead_letters", Retrying::toDeadLetters);
        all.put("retry_orderly_to_dead_letters", Retrying::orderlyToDeadLetters);
        all.put("delay_levels", Retrying::delayLevels);
        all.put("timer_message", Retrying::timer);
        all.put("recall_message", Retrying::recall);
    }

    private static String toSuccess(Lab lab) throws Exception {
        String topic = lab.topic("retry", 1);
        String group = lab.name("group");
        SendResult sent = lab.producer().send(Sending.message(topic, 1));
        Queue<String> deliveries = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = lab.pushConsumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            deliveries.add(message.getReconsumeTimes() + " " + message.getTopic() + " " + message.getMsgId());
            context.setDelayLevelWhenNextConsume(1);
            return message.getReconsumeTimes() < 2 ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Lab.await(80, () -> deliveries.size() >= 3, () -> "deliveries " + deliveries);
        String again = " " + topic + " " + sent.getMsgId();
        Lab.same(List.of("0" + again, "1" + again, "2" + again), List.copyOf(deliveries), "deliveries");
        consumer.shutdown();
        Consuming.awaitNoLag(lab, group, topic);
        Consuming.awaitNoLag(lab, group, "%RETRY%" + group);
        return "delivered with 0, 1 and 2 retries under its own topic and id";
    }

    private static String toDeadLetters(Lab lab) throws Exception {
        String topic = lab.topic("dead", 1);
        String group = lab.name("group");
        SendResult sent = lab.producer().send(Sending.message(topic, 1));
        Queue<Integer> deliveries = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = lab.pushConsumer(group);
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            deliveries.add(messages.get(0).getReconsumeTimes());
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        Lab.await(80, () -> deliveries.size() >= 3 && lab.hasRoute("%DLQ%" + group), () -> "deliveries " + deliveries);
        return deadLetter(lab, group, topic, sent, deliveries);
    }

    private static String orderlyToDeadLetters(Lab lab) throws Exception {
        String topic = lab.topic("dead", 1);
        String group = lab.name("group");
        SendResult sent = lab.producer().send(Sending.message(topic, 1));
        Queue<Integer> deliveries = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = lab.pushConsumer(group);
        consumer.setMaxReconsumeTimes(2);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            deliveries.add(messages.get(0).getReconsumeTimes());
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        });
        consumer.start();
        Lab.await(80, () -> deliveries.size() >= 3 && lab.hasRoute("%DLQ%" + group), () -> "deliveries " + deliveries);
        return deadLetter(lab, group, topic, sent, deliveries);
    }

    private static String deadLetter(Lab lab, String group, String topic, SendResult sent, Queue<Integer> deliveries)
        throws Exception {
        Lab.same(List.of(0, 1, 2), List.copyOf(deliveries), "deliveries");
        String dead = "%DLQ%" + group;
        // In one of two cases 4.9 makes this topic write-only; an operator makes it readable like this.
        lab.admin.createAndUpdateTopicConfig(lab.broker, new TopicConfig(dead, 1, 1, 6));
        MessageExt letter = lab.readAll(dead, 1).get(0);
        Lab.same("body-1", Lab.text(letter), "body");
        Lab.same("key-1", letter.getKeys(), "keys");
        Lab.same("blue-1", letter.getUserProperty("colour"), "user property");
        Lab.same(topic, letter.getProperty("RETRY_TOPIC"), "RETRY_TOPIC");
        String origin = letter.getProperty("ORIGIN_MESSAGE_ID");
        Lab.check(sent.getOffsetMsgId().equals(origin) || sent.getMsgId().equals(origin),
            "ORIGIN_MESSAGE_ID is %s, sent was %s", origin, sent);
        return "3 deliveries, then in " + dead + " with its properties";
    }

    private static String delayLevels(Lab lab) throws Exception {
        String topic = lab.topic("delay", 2);
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        Map<String, Long> arrived = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = lab.pushConsumer(lab.name("group"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> arrived.putIfAbsent(Lab.text(message), System.currentTimeMillis()));
            received.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = lab.producer();
        long[] seconds = {0, 1, 5, 10};
        long[] sent = new long[seconds.length];
        for (int level = seconds.length - 1; level >= 0; level--) {
            Message message = Sending.message(topic, level);
            message.setDelayTimeLevel(level);
            sent[level] = System.currentTimeMillis();
            producer.send(message);
        }
        Lab.await(Lab.PATIENCE, () -> received.size() >= seconds.length, () -> "received " + arrived.keySet());
        StringBuilder evidence = new StringBuilder();
        for (int level = 0; level < seconds.length; level++) {
            long waited = arrived.get("body-" + level) - sent[level];
            Lab.check(waited >= seconds[level] * 1000, "level %d arrived after %d ms", level, waited);
            evidence.append(evidence.length() > 0 ? ", " : "").append("level ").append(level).append(": ").append(waited).append(" ms");
        }
        for (MessageExt message : received) {
            Lab.same(topic, message.getTopic(), "topic of a delayed message");
            Lab.same("blue-" + Lab.text(message).substring(5), message.getUserProperty("colour"), "user property");
        }
        return evidence.toString();
    }

    private static String timer(Lab lab) throws Exception {
        String topic = lab.topic("timer", 1);
        Message message = Sending.message(topic, 1);
        try {
            Message.class.getMethod("setDelayTimeMs", long.class).invoke(message, 3_000L);
        } catch (ReflectiveOperationException absent) {
            throw new Scenario.NotApplicable("this client has no timer messages");
        }
        long sent = System.currentTimeMillis();
        lab.producer().send(message);
        MessageExt stored = lab.readAll(topic, 1).get(0);
        Lab.same("body-1", Lab.text(stored), "body");
        long waited = System.currentTimeMillis() - sent;
        Lab.check(waited >= 2_000, "a message due in 3 s was readable after %d ms", waited); // the timer wheel has a resolution of 1 s
        return "due after 3,000 ms, readable after " + waited + " ms";
    }

    /** Two messages for the same moment: one is taken back and never arrives. */
    private static String recall(Lab lab) throws Exception {
        Method delay;
        Method handleOf;
        Method recall;
        try {
            delay = Message.class.getMethod("setDelayTimeMs", long.class);
            handleOf = SendResult.class.getMethod("getRecallHandle");
            recall = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        } catch (NoSuchMethodException absent) {
            throw new Scenario.NotApplicable("this client has no recall");
        }
        Properties allowed = new Properties();
        allowed.setProperty("recallMessageEnable", "true");
        lab.admin.updateBrokerConfig(lab.broker, allowed);
        String topic = lab.topic("recall", 1);
        DefaultMQProducer producer = lab.producer();
        Message taken = Sending.message(topic, 1);
        delay.invoke(taken, 8_000L);
        SendResult sent = producer.send(taken);
        String handle = (String) handleOf.invoke(sent);
        Lab.check(handle != null && !handle.isEmpty(), "the answer to a timer message has no recall handle");
        Message kept = Sending.message(topic, 2);
        delay.invoke(kept, 9_000L);
        producer.send(kept);
        Lab.same(sent.getMsgId(), recall.invoke(producer, topic, handle), "id of the recalled message");
        Lab.same("body-2", Lab.text(lab.readAll(topic, 1).get(0)), "the message that is left");
        Thread.sleep(2_000);
        lab.readAll(topic, 1);
        return "one of two taken back; the other arrived";
    }
}
