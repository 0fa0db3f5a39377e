import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** Push consumers that leave rebalancing to the broker, and so pop where it says so. */
final class Popping {
    private Popping() {
    }

    static void register(Map<String, Scenario> all) {
        all.put("pop_shared_queue", Popping::sharedQueue);
        all.put("pop_retries", Popping::retries);
        all.put("pop_slow_listener", Popping::slowListener);
        all.put("pop_mode_switched", Popping::modeSwitched);
    }

    /** A method of 5.x: releases before it have neither modes nor assignment by the broker. */
    private static Method method(Class<?> of, String name) {
        for (Method method : of.getMethods()) {
            if (method.getName().equals(name)) {
                return method;
            }
        }
        throw new Scenario.NotApplicable("this client has no " + name);
    }

    private static String topic(Lab lab, String role, int queues, String group, String mode) throws Exception {
        method(DefaultMQPushConsumer.class, "setClientRebalance");
        if ("ROCKETMQ".equals(System.getProperty("rocketmq.serialize.type"))) {
            throw new Scenario.NotApplicable("binary headers have 16 bits for a request code, 200050 needs more");
        }
        String topic = lab.topic(role, queues);
        Method create = method(lab.admin.getClass(), "createAndUpdateSubscriptionGroupConfig");
        Object config = create.getParameterTypes()[1].getDeclaredConstructor().newInstance();
        config.getClass().getMethod("setGroupName", String.class).invoke(config, group);
        create.invoke(lab.admin, lab.broker, config);
        setMode(lab, topic, group, mode);
        return topic;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setMode(Lab lab, String topic, String group, String mode) throws Exception {
        Method set = method(lab.admin.getClass(), "setMessageRequestMode");
        Object wanted = Enum.valueOf((Class) set.getParameterTypes()[3], mode);
        set.invoke(lab.admin, lab.broker, topic, group, wanted, 0, 10_000L);
    }

    private static DefaultMQPushConsumer consumer(Lab lab, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = lab.pushConsumer(group);
        set(consumer, "setClientRebalance", false);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    private static void set(DefaultMQPushConsumer consumer, String name, Object value) throws Exception {
        method(DefaultMQPushConsumer.class, name).invoke(consumer, value);
    }

    private static String sharedQueue(Lab lab) throws Exception {
        String group = lab.name("group");
        String topic = topic(lab, "shared", 1, group, "POP");
        List<Queue<MessageExt>> received = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            Queue<MessageExt> mine = new ConcurrentLinkedQueue<>();
            received.add(mine);
            DefaultMQPushConsumer consumer = consumer(lab, group, topic);
            set(consumer, "setPopBatchNums", 8);
            consumer.registerMessageListener(Consuming.into(mine));
            consumer.start();
        }
        Thread.sleep(3_000);
        DefaultMQProducer producer = lab.producer();
        int total = 10_000;
        Consuming.send(producer, topic, 0, total);
        Queue<MessageExt> all = new ConcurrentLinkedQueue<>();
        Lab.await(120, () -> received.stream().mapToInt(Queue::size).sum() >= total,
            () -> received.stream().mapToInt(Queue::size).sum() + " of " + total);
        received.forEach(all::addAll);
        Lab.same(total, Consuming.bodies(all).size(), "different bodies");
        Lab.same(total, all.size(), "deliveries");
        long working = received.stream().filter(mine -> !mine.isEmpty()).count();
        Lab.check(working >= 2, "only %s of 4 members got messages of one queue", working);
        return total + " messages of one queue once, shared by " + working + " members";
    }

    private static String retries(Lab lab) throws Exception {
        String group = lab.name("group");
        String topic = topic(lab, "retries", 1, group, "POP");
        Queue<long[]> seen = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = consumer(lab, group, topic);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                seen.add(new long[] {System.currentTimeMillis(), message.getReconsumeTimes()});
                if (!message.getTopic().equals(topic)) {
                    seen.add(new long[] {0, -1});
                }
            }
            return seen.size() < 4 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Consuming.send(lab.producer(), topic, 0, 1);
        Lab.await(180, () -> seen.size() >= 4, () -> seen.size() + " of 4 attempts");
        List<long[]> attempts = new ArrayList<>(seen);
        long[] delays = {10_000, 30_000, 60_000};
        StringBuilder again = new StringBuilder("again after");
        for (int i = 0; i < 4; i++) {
            Lab.same((long) i, attempts.get(i)[1], "reconsumeTimes of attempt " + i);
            if (i > 0) {
                long waited = attempts.get(i)[0] - attempts.get(i - 1)[0];
                long wanted = delays[i - 1];
                Lab.check(waited >= wanted - 100 && waited < wanted + 15_000, "retry %s after %s ms", i, waited);
                again.append(' ').append(waited / 1000).append(" s");
            }
        }
        return again.toString();
    }

    private static String slowListener(Lab lab) throws Exception {
        String group = lab.name("group");
        String topic = topic(lab, "slow", 1, group, "POP");
        AtomicInteger calls = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer(lab, group, topic);
        set(consumer, "setPopInvisibleTime", 5_000L);
        consumer.registerMessageListener((MessageListenerConcurrently)
            (messages, context) -> {
                if (calls.incrementAndGet() == 1) {
                    try {
                        Thread.sleep(8_000);
                    } catch (InterruptedException stopped) {
                        Thread.currentThread().interrupt();
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        consumer.start();
        Consuming.send(lab.producer(), topic, 0, 1);
        Lab.await(60, () -> calls.get() >= 2, () -> calls.get() + " of 2 calls");
        Thread.sleep(8_000);
        Lab.same(2, calls.get(), "calls");
        return "delivered again after its invisible time, the late result was ignored";
    }

    private static String modeSwitched(Lab lab) throws Exception {
        String group = lab.name("group");
        String topic = topic(lab, "switched", 2, group, "POP");
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer(lab, group, topic);
        consumer.registerMessageListener((MessageListenerConcurrently)
            (messages, context) -> {
                messages.forEach(message -> seen.add(Lab.text(message)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        consumer.start();
        DefaultMQProducer producer = lab.producer();
        int sent = 0;
        for (String mode : new String[] {"POP", "PULL", "POP"}) {
            setMode(lab, topic, group, mode);
            for (int i = 0; i < 25; i++) {
                Consuming.send(producer, topic, sent, sent + 1);
                sent++;
                Thread.sleep(1_000);
            }
        }
        int total = sent;
        Lab.await(90, () -> new java.util.HashSet<>(seen).size() >= total, () -> seen.size() + " of " + total);
        return total + " messages while the mode changed twice, " + (seen.size() - total) + " came twice";
    }
}
