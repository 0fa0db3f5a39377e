import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Generates load with the official client: prints one JSON line with the figures of each row.
 *
 * <p>Usage: LoadGenerator NAMESRV BROKER SECONDS ROW..., each row one of sync-THREADS-SIZE, async-INFLIGHT-SIZE,
 * batch-COUNT-SIZE, drain-MESSAGES-SIZE, latency-RATE-SIZE, transaction-THREADS-SIZE,
 * timer-THREADS-SIZE, due-MESSAGES-SIZE. Each send row runs once to warm up, then for SECONDS. With "-" instead of rows
 * they are read from standard input, one a line, until it ends: the client stays warm in between.
 */
public final class LoadGenerator {
    private static final int QUEUES = 8;
    private static final AtomicInteger NAMES = new AtomicInteger();

    private final String namesrv;
    private final String broker;
    private final int seconds;
    private final DefaultMQAdminExt admin;
    private final DefaultMQProducer producer;

    private LoadGenerator(String namesrv, String broker, int seconds) throws Exception {
        this.namesrv = namesrv;
        this.broker = broker;
        this.seconds = seconds;
        admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("load-admin");
        admin.start();
        producer = new DefaultMQProducer("load-producer");
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("load-producer");
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setVipChannelEnabled(false);
        producer.start();
    }

    public static void main(String[] args) {
        try {
            runAll(args);
            System.exit(0);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1); // the client's threads would keep the JVM running
        }
    }

    private static void runAll(String[] args) throws Exception {
        LoadGenerator load = new LoadGenerator(args[0], args[1], Integer.parseInt(args[2]));
        if (!args[3].equals("-")) {
            for (String row : Arrays.copyOfRange(args, 3, args.length)) {
                load.print(row);
            }
            return;
        }
        BufferedReader rows = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String row = rows.readLine(); row != null; row = rows.readLine()) {
            load.print(row);
        }
    }

    private void print(String row) throws Exception {
        String[] words = row.split("-");
        int number = Integer.parseInt(words[1]);
        int size = Integer.parseInt(words[2]);
        System.out.println("{\"row\":\"" + row + "\"," + run(words[0], number, size) + "}");
        System.out.flush();
    }

    private String run(String kind, int number, int size) throws Exception {
        switch (kind) {
            case "sync":
                sync(topic(), number, size, Math.max(1, seconds / 2));
                return rate(sync(topic(), number, size, seconds));
            case "async":
                async(topic(), number, size, Math.max(1, seconds / 2));
                return rate(async(topic(), number, size, seconds));
            case "batch":
                batch(topic(), number, size, Math.max(1, seconds / 2));
                return rate(batch(topic(), number, size, seconds));
            case "transaction":
                return rate(transactions(number, size));
            case "timer":
                sync(this::later, topic(), number, size, Math.max(1, seconds / 2));
                return rate(sync(this::later, topic(), number, size, seconds));
            case "due":
                return due(number, size);
            case "drain":
                return drain(number, size, false);
            case "pop":
                return drain(number, size, true);
            case "lateness":
                return lateness(number, size);
            case "latency":
                return latency(number, size);
            default:
                throw new IllegalArgumentException("no row of kind " + kind);
        }
    }

    private static String rate(double perSecond) {
        return String.format("\"messages_per_second\":%.0f", perSecond);
    }

    private String topic() throws Exception {
        String topic = "load-" + NAMES.incrementAndGet();
        admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, QUEUES, QUEUES, 6));
        for (int i = 0; i < 500; i++) {
            try {
                if (!admin.examineTopicRouteInfo(topic).getQueueDatas().isEmpty()) {
                    producer.fetchPublishMessageQueues(topic);
                    return topic;
                }
            } catch (Exception notYet) {
                Thread.sleep(20);
            }
        }
        throw new IllegalStateException("no route for " + topic);
    }

    private static void accepted(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }

    /** What one thread of a row does again and again. */
    private interface Send {
        SendResult send(Message message) throws Exception;
    }

    /** Transactions that commit at once: half, local transaction, decision (one-way, as the client sends it). */
    private double transactions(int threads, int size) throws Exception {
        TransactionMQProducer bank = new TransactionMQProducer("load-transactions");
        bank.setNamesrvAddr(namesrv);
        bank.setInstanceName("load-transactions");
        bank.setSendMsgTimeout(10_000);
        bank.setRetryTimesWhenSendFailed(0);
        bank.setVipChannelEnabled(false);
        bank.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        bank.start();
        try {
            Send send = message -> bank.sendMessageInTransaction(message, null);
            sync(send, topic(), threads, size, Math.max(1, seconds / 2));
            return sync(send, topic(), threads, size, seconds);
        } finally {
            bank.shutdown();
        }
    }

    private SendResult later(Message message) throws Exception {
        message.setDelayTimeMs(3_600_000L);
        return producer.send(message);
    }

    /** Timer messages that are all due in one second: how fast they are stored, and how late the last of 100 is. */
    private String due(int messages, int size) throws Exception {
        String topic = topic();
        long due = (System.currentTimeMillis() / 1_000 + 10 + messages / 2_000) * 1_000;
        long[] stored = new long[messages];
        AtomicInteger received = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(messages);
        DefaultMQPushConsumer consumer = consumer(topic, (found, context) -> {
            for (MessageExt message : found) {
                int at = received.getAndIncrement();
                if (at < messages) {
                    stored[at] = message.getStoreTimestamp();
                    done.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        AtomicInteger left = new AtomicInteger(messages);
        List<Throwable> errors = new ArrayList<>();
        List<Thread> senders = new ArrayList<>();
        for (int i = 0; i < 32; i++) {
            Thread sender = new Thread(() -> {
                try {
                    while (left.getAndDecrement() > 0) {
                        Message message = new Message(topic, new byte[size]);
                        message.setDeliverTimeMs(due);
                        accepted(producer.send(message));
                    }
                } catch (Throwable error) {
                    synchronized (errors) {
                        errors.add(error);
                    }
                }
            });
            sender.start();
            senders.add(sender);
        }
        for (Thread sender : senders) {
            sender.join();
        }
        failOn(errors);
        if (System.currentTimeMillis() >= due) {
            throw new IllegalStateException("sending " + messages + " messages took longer than they wait");
        }
        boolean finished = done.await(120, TimeUnit.SECONDS);
        consumer.shutdown();
        if (!finished) {
            throw new IllegalStateException(done.getCount() + " of " + messages + " timers did not arrive");
        }
        Arrays.sort(stored);
        double taken = Math.max(1, stored[messages - 1] - stored[0]) / 1e3;
        return String.format(
            "\"messages_per_second\":%.0f,\"late_p50_ms\":%d,\"late_p99_ms\":%d",
            messages / taken, stored[messages / 2] - due, stored[messages * 99 / 100] - due);
    }

    private double sync(String topic, int threads, int size, int duration) throws Exception {
        return sync(producer::send, topic, threads, size, duration);
    }

    private double sync(Send send, String topic, int threads, int size, int duration) throws Exception {
        AtomicLong sent = new AtomicLong();
        List<Throwable> errors = new ArrayList<>();
        long began = System.nanoTime();
        long deadline = began + duration * 1_000_000_000L;
        List<Thread> senders = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread sender = new Thread(() -> {
                try {
                    while (System.nanoTime() < deadline) {
                        accepted(send.send(new Message(topic, new byte[size])));
                        sent.incrementAndGet();
                    }
                } catch (Throwable error) {
                    synchronized (errors) {
                        errors.add(error);
                    }
                }
            });
            sender.start();
            senders.add(sender);
        }
        for (Thread sender : senders) {
            sender.join();
        }
        failOn(errors);
        return sent.get() * 1e9 / (System.nanoTime() - began);
    }

    private static void failOn(List<Throwable> errors) {
        if (!errors.isEmpty()) {
            throw new IllegalStateException(errors.size() + " sends failed, first: " + errors.get(0), errors.get(0));
        }
    }

    private double async(String topic, int inFlight, int size, int duration) throws Exception {
        Semaphore slots = new Semaphore(inFlight);
        AtomicLong sent = new AtomicLong();
        List<Throwable> errors = new ArrayList<>();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                sent.incrementAndGet();
                slots.release();
            }

            @Override
            public void onException(Throwable error) {
                synchronized (errors) {
                    errors.add(error);
                }
                slots.release();
            }
        };
        long began = System.nanoTime();
        long deadline = began + duration * 1_000_000_000L;
        while (System.nanoTime() < deadline) {
            slots.acquire();
            producer.send(new Message(topic, new byte[size]), callback);
        }
        slots.acquire(inFlight); // all answered
        failOn(errors);
        return sent.get() * 1e9 / (System.nanoTime() - began);
    }

    /** One thread, one batch in flight: the time of a batch is the client's time plus the broker's. */
    private double batch(String topic, int count, int size, int duration) throws Exception {
        long began = System.nanoTime();
        long deadline = began + duration * 1_000_000_000L;
        long sent = 0;
        while (System.nanoTime() < deadline) {
            accepted(producer.send(messages(topic, count, size)));
            sent += count;
        }
        return sent * 1e9 / (System.nanoTime() - began);
    }

    private static List<Message> messages(String topic, int count, int size) {
        List<Message> batch = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            batch.add(new Message(topic, new byte[size]));
        }
        return batch;
    }

    private DefaultMQPushConsumer consumer(String topic, MessageListenerConcurrently listener) throws Exception {
        return consumer(topic, listener, false);
    }

    private DefaultMQPushConsumer consumer(String topic, MessageListenerConcurrently listener, boolean pops)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("group-" + topic);
        if (pops) {
            SubscriptionGroupConfig group = new SubscriptionGroupConfig();
            group.setGroupName("group-" + topic);
            admin.createAndUpdateSubscriptionGroupConfig(broker, group);
            admin.setMessageRequestMode(broker, topic, "group-" + topic, MessageRequestMode.POP, 0, 10_000);
            consumer.setClientRebalance(false);
        }
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("group-" + topic);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    /** Fill a topic, then let one push consumer read it; the time is from its first message to its last. */
    private String drain(int messages, int size, boolean pops) throws Exception {
        String topic = topic();
        for (int sent = 0; sent < messages; sent += 100) {
            accepted(producer.send(messages(topic, 100, size)));
        }
        AtomicLong received = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(topic, (found, context) -> {
            first.compareAndSet(0, System.nanoTime());
            if (received.addAndGet(found.size()) >= messages) {
                last.compareAndSet(0, System.nanoTime());
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }, pops);
        boolean finished = done.await(120, TimeUnit.SECONDS);
        consumer.shutdown();
        if (!finished) {
            throw new IllegalStateException(received.get() + " of " + messages + " received after 120 s");
        }
        return rate(messages * 1e9 / (last.get() - first.get()));
    }

    /** Fail each popped message once; how much later than its ten seconds it comes again. */
    private String lateness(int messages, int size) throws Exception {
        String topic = topic();
        Map<String, Long> failed = new ConcurrentHashMap<>();
        long[] late = new long[messages];
        AtomicInteger again = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(messages);
        DefaultMQPushConsumer consumer = consumer(topic, (found, context) -> {
            long now = System.nanoTime();
            boolean isFirst = found.get(0).getReconsumeTimes() == 0;
            found.forEach(message -> {
                Long since = failed.putIfAbsent(message.getMsgId(), now);
                int at = since == null ? messages : again.getAndIncrement();
                if (at < messages) {
                    late[at] = now - since - 10_000_000_000L;
                    done.countDown();
                }
            });
            return isFirst ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }, true);
        for (int sent = 0; sent < messages; sent += 100) {
            accepted(producer.send(messages(topic, 100, size)));
        }
        boolean finished = done.await(120, TimeUnit.SECONDS);
        consumer.shutdown();
        if (!finished) {
            throw new IllegalStateException(done.getCount() + " of " + messages + " did not come again");
        }
        Arrays.sort(late);
        return String.format("\"p50_ms\":%.0f,\"max_ms\":%.0f", late[messages / 2] / 1e6, late[messages - 1] / 1e6);
    }

    /** Send at a steady rate; each body contains its send time, from which the consumer computes the latency. */
    private String latency(int perSecond, int size) throws Exception {
        String topic = topic();
        int warm = perSecond * 2;
        int count = warm + perSecond * seconds;
        long[] nanos = new long[count];
        AtomicInteger received = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = consumer(topic, (found, context) -> {
            long now = System.nanoTime();
            found.forEach(message -> {
                int at = received.getAndIncrement();
                if (at < count) {
                    nanos[at] = now - ByteBuffer.wrap(message.getBody()).getLong();
                }
                done.countDown();
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        awaitAssignment(consumer, topic);
        List<Throwable> errors = new ArrayList<>();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
            }

            @Override
            public void onException(Throwable error) {
                synchronized (errors) {
                    errors.add(error);
                }
            }
        };
        long step = 1_000_000_000L / perSecond;
        long next = System.nanoTime();
        for (int i = 0; i < count; i++) {
            while (System.nanoTime() < next) {
                Thread.sleep(0, 200_000);
            }
            byte[] body = new byte[Math.max(size, Long.BYTES)];
            ByteBuffer.wrap(body).putLong(System.nanoTime());
            producer.send(new Message(topic, body), callback);
            next += step;
        }
        boolean finished = done.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        failOn(errors);
        if (!finished) {
            throw new IllegalStateException(done.getCount() + " of " + count + " never received");
        }
        long[] measured = Arrays.copyOfRange(nanos, warm, count);
        Arrays.sort(measured);
        return String.format("\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"p999_ms\":%.3f",
            measured[measured.length / 2] / 1e6, measured[(int) (measured.length * 0.99)] / 1e6,
            measured[(int) (measured.length * 0.999)] / 1e6);
    }

    private static void awaitAssignment(DefaultMQPushConsumer consumer, String topic) throws Exception {
        for (int i = 0; i < 1_500; i++) {
            long owned = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
                .filter(queue -> queue.getTopic().equals(topic)).count();
            if (owned == QUEUES) {
                return;
            }
            Thread.sleep(20);
        }
        throw new IllegalStateException("the consumer has no queues after 30 s");
    }
}
