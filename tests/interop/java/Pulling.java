import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Pull consumers: lite pull of 4.6 and later, and the pull consumer that it replaced. */
final class Pulling {
    private Pulling() {
    }

    static void register(Map<String, Scenario> all) {
        all.put("lite_pull_subscribe", Pulling::liteSubscribe);
        all.put("lite_pull_assign", Pulling::liteAssign);
        all.put("old_pull", Pulling::oldPull);
        all.put("old_pull_no_permission", Pulling::noPermission);
        all.put("old_pull_long_polling", Pulling::longPolling);
        all.put("old_pull_offsets", Pulling::offsets);
    }

    private static List<MessageExt> poll(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<MessageExt> received = new ArrayList<>();
        Lab.await(Lab.PATIENCE, () -> {
            received.addAll(consumer.poll(500));
            return received.size() >= count;
        }, () -> received.size() + " of " + count + " polled");
        return received;
    }

    private static String liteSubscribe(Lab lab) throws Exception {
        String topic = lab.topic("lite", 4);
        String group = lab.name("group");
        Consuming.send(lab.producer(), topic, 0, 60);
        DefaultLitePullConsumer consumer = lab.litePullConsumer(group);
        consumer.setAutoCommit(true);
        consumer.setAutoCommitIntervalMillis(1_000);
        consumer.subscribe(topic, "*");
        consumer.start();
        List<MessageExt> received = poll(consumer, 60);
        Lab.same(60, Consuming.bodies(received).size(), "different bodies");
        Lab.await(Lab.PATIENCE, () -> {
            received.addAll(consumer.poll(500)); // automatic commits happen inside poll
            return lab.lag(group, topic) == 0;
        }, () -> "lag is " + lab.lag(group, topic));
        Lab.same(60, received.size(), "deliveries");
        return "60 polled, offsets committed";
    }

    private static String liteAssign(Lab lab) throws Exception {
        String topic = lab.topic("assign", 2);
        String group = lab.name("group");
        Consuming.send(lab.producer(), topic, 0, 40);
        DefaultLitePullConsumer consumer = lab.litePullConsumer(group);
        consumer.setAutoCommit(false);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        Lab.same(2, queues.size(), "queues");
        MessageQueue queue = queues.stream().filter(one -> one.getQueueId() == 1).findFirst().orElseThrow();
        consumer.assign(List.of(queue));
        // Seek while the client waits at the end of the queue: in the middle of a pull, it may still deliver what it had asked for.
        Lab.same(0L, poll(consumer, 20).get(0).getQueueOffset(), "first offset of a group that committed nothing");
        consumer.seek(queue, 15);
        List<MessageExt> received = poll(consumer, 5);
        Lab.same(5, received.size(), "messages from offset 15 of 20 on, the first is at " + received.get(0).getQueueOffset());
        Lab.same(15L, received.get(0).getQueueOffset(), "first offset after seek");
        consumer.commitSync();
        Lab.await(10, () -> consumer.committed(queue) == 20, () -> "committed offset is " + consumer.committed(queue));
        consumer.seekToBegin(queue);
        Lab.same(0L, poll(consumer, 20).get(0).getQueueOffset(), "first offset after seekToBegin");
        long early = consumer.offsetForTimestamp(queue, received.get(0).getStoreTimestamp() - 60_000);
        Lab.same(0L, early, "offset for a time before the first message");
        return "assigned one queue, polled it, seek to 15, polled 15 to 19, committed 20, seek to 0";
    }

    private static MessageQueue only(DefaultMQPullConsumer consumer, String topic) throws Exception {
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(topic);
        Lab.same(1, queues.size(), "queues of " + topic);
        return queues.iterator().next();
    }

    private static String oldPull(Lab lab) throws Exception {
        String topic = lab.topic("pull", 1);
        DefaultMQProducer producer = lab.producer();
        DefaultMQPullConsumer consumer = lab.pullConsumer(lab.name("group"));
        MessageQueue queue = only(consumer, topic);
        Lab.same(PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", 0, 8).getPullStatus(), "status in an empty queue");
        Consuming.send(producer, topic, 0, 20);
        Lab.await(20, () -> consumer.maxOffset(queue) == 20, () -> "max offset is " + consumer.maxOffset(queue));
        PullResult found = consumer.pull(queue, "*", 4, 8);
        Lab.same(PullStatus.FOUND, found.getPullStatus(), "status");
        Lab.same(8, found.getMsgFoundList().size(), "messages of a pull of 8");
        Lab.same(12L, found.getNextBeginOffset(), "next offset");
        Lab.same(0L, found.getMinOffset(), "min offset");
        Lab.same(20L, found.getMaxOffset(), "max offset");
        Lab.same("body-4", Lab.text(found.getMsgFoundList().get(0)), "first body");
        Lab.same(PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", 20, 8).getPullStatus(), "status at the end");
        PullResult beyond = consumer.pull(queue, "*", 1_000, 8);
        Lab.same(PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus(), "status beyond the end");
        Lab.same(20L, beyond.getNextBeginOffset(), "corrected offset beyond the end");
        PullResult other = consumer.pull(queue, "no-such-tag", 0, 32);
        Lab.same(PullStatus.NO_MATCHED_MSG, other.getPullStatus(), "status when no tag matches");
        Lab.same(20L, other.getNextBeginOffset(), "next offset when no tag matches");
        PullResult odd = consumer.pull(queue, "odd", 0, 32);
        Lab.same(10, odd.getMsgFoundList().size(), "odd messages");
        Lab.await(Lab.PATIENCE, () -> chosenBySql(consumer, queue) == 1, () -> "not one message chosen by SQL92");
        return "FOUND, NO_NEW_MSG, NO_MATCHED_MSG, OFFSET_ILLEGAL, tags and SQL92";
    }

    private static int chosenBySql(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        try {
            return consumer.pull(queue, MessageSelector.bySql("colour = 'blue-7'"), 0, 32).getMsgFoundList().size();
        } catch (MQClientException early) {
            return 0; // the client first needs the broker's version from a heartbeat
        }
    }

    private static String noPermission(Lab lab) throws Exception {
        String closed = lab.topic("write-only", 1, 2);
        String open = lab.topic("open", 1);
        DefaultMQPullConsumer consumer = lab.pullConsumer(lab.name("group"));
        MessageQueue queue = only(consumer, open); // the consumer now knows the broker
        try {
            consumer.pull(new MessageQueue(closed, queue.getBrokerName(), 0), "*", 0, 8);
            throw new Scenario.Failed("a pull from a write-only topic was answered");
        } catch (MQBrokerException refused) {
            Lab.same(16, refused.getResponseCode(), "response code");
            return "refused: 16 " + refused.getErrorMessage();
        }
    }

    private static String longPolling(Lab lab) throws Exception {
        String topic = lab.topic("poll", 1);
        DefaultMQProducer producer = lab.producer();
        Consuming.send(producer, topic, 0, 1);
        DefaultMQPullConsumer consumer = lab.pullConsumer(lab.name("group"));
        MessageQueue queue = only(consumer, topic);
        Thread sender = new Thread(() -> {
            try {
                Thread.sleep(1_500);
                Consuming.send(producer, topic, 1, 2);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        long began = System.nanoTime();
        sender.start();
        PullResult result = consumer.pullBlockIfNotFound(queue, "*", 1, 32);
        long waitedMs = (System.nanoTime() - began) / 1_000_000;
        sender.join();
        Lab.same(PullStatus.FOUND, result.getPullStatus(), "status");
        Lab.same("body-1", Lab.text(result.getMsgFoundList().get(0)), "body");
        Lab.check(waitedMs >= 1_000 && waitedMs < 10_000, "answered after %d ms, sent after 1,500", waitedMs);
        return "sent after 1,500 ms, answered after " + waitedMs + " ms";
    }

    private static String offsets(Lab lab) throws Exception {
        String topic = lab.topic("offsets", 1);
        String group = lab.name("group");
        DefaultMQProducer producer = lab.producer();
        Consuming.send(producer, topic, 0, 5);
        Thread.sleep(800); // 4.9 returns the message nearest in time, 5.x the first one at or after it
        long middle = System.currentTimeMillis();
        Thread.sleep(100);
        Consuming.send(producer, topic, 5, 10);
        DefaultMQPullConsumer consumer = lab.pullConsumer(group);
        MessageQueue queue = only(consumer, topic);
        Lab.same(0L, consumer.minOffset(queue), "min offset");
        Lab.await(20, () -> consumer.maxOffset(queue) == 10, () -> "max offset is " + consumer.maxOffset(queue));
        Lab.same(5L, consumer.searchOffset(queue, middle), "offset at a time between the two halves");
        Lab.same(0L, consumer.searchOffset(queue, middle - 3_600_000), "offset at a time before the first message");
        long earliest = consumer.earliestMsgStoreTime(queue);
        Lab.check(Math.abs(earliest - middle) < 60_000, "earliest store time %d, now about %d", earliest, middle);
        Lab.await(Lab.PATIENCE, () -> {
            // A commit is one-way, and refused until the first heartbeat has registered the group.
            consumer.updateConsumeOffset(queue, 7);
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persistAll(new HashSet<>(Set.of(queue)));
            return consumer.fetchConsumeOffset(queue, true) == 7;
        }, () -> "committed offset read from the broker is " + consumer.fetchConsumeOffset(queue, true));
        return "min 0, max 10, by time 5, committed 7";
    }
}
