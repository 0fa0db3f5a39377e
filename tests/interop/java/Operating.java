import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.command.topic.DeleteTopicSubCommand;

/** Request and reply, queries, and admin operations on running consumers. */
final class Operating {
    private Operating() {
    }

    static void register(Map<String, Scenario> all) {
        all.put("request_reply", Operating::requestReply);
        all.put("query_by_key", Operating::queryByKey);
        all.put("query_by_unique_key", Operating::queryByUniqueKey);
        all.put("query_by_offset_id", Operating::queryByOffsetId);
        all.put("reset_offset_online", Operating::resetOffset);
        all.put("reset_offset_offline", Operating::resetOffsetOffline);
        all.put("consumer_running_info", Operating::runningInfo);
        all.put("consume_directly", Operating::consumeDirectly);
        all.put("topic_delete", Operating::deleteTopic);
    }

    private static String requestReply(Lab lab) throws Exception {
        String topic = lab.topic("request", 2);
        DefaultMQProducer replier = lab.producer();
        DefaultMQPushConsumer consumer = lab.pushConsumer(lab.name("group"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    replier.send(MessageUtil.createReplyMessage(message, Lab.bytes("reply to " + Lab.text(message))), 3_000);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Lab.await(Lab.PATIENCE, () -> Consuming.owned(consumer, topic) == 2, () -> "the replier has no queues");
        DefaultMQProducer requester = lab.producer();
        for (int i = 0; i < 10; i++) {
            Message reply = requester.request(new Message(topic, Lab.bytes("request-" + i)), 20_000);
            Lab.same("reply to request-" + i, Lab.text(reply), "reply");
        }
        return "10 requests, 10 replies";
    }

    private static String queryByKey(Lab lab) throws Exception {
        String topic = lab.topic("key", 2);
        DefaultMQProducer producer = lab.producer();
        long began = System.currentTimeMillis() - 60_000;
        for (int i = 0; i < 6; i++) {
            Message message = Sending.message(topic, i);
            message.setKeys("shared-" + i % 2 + " own-" + i);
            producer.send(message);
        }
        long until = System.currentTimeMillis() + 60_000;
        Lab.await(20, () -> queried(lab, topic, "shared-1", began, until) == 3,
            () -> queried(lab, topic, "shared-1", began, until) + " of 3 found by a shared key");
        Lab.same(1, queried(lab, topic, "own-4", began, until), "found by its own key");
        Lab.same(0, queried(lab, topic, "shared-1", began - 600_000, began), "found before they were sent");
        Lab.same(0, queried(lab, topic, "no-such-key", began, until), "found by an unknown key");
        return "3 by a shared key, 1 by its own, 0 outside the time range";
    }

    private static int queried(Lab lab, String topic, String key, long begin, long end) throws Exception {
        try {
            return lab.admin.queryMessage(topic, key, 32, begin, end).getMessageList().size();
        } catch (MQClientException none) {
            if (none.getResponseCode() == 17 || none.getResponseCode() == 208 || none.getResponseCode() == 22) {
                return 0; // the client raises an error for an empty answer
            }
            throw none;
        }
    }

    private static String queryByUniqueKey(Lab lab) throws Exception {
        String topic = lab.topic("unique", 2);
        DefaultMQProducer producer = lab.producer();
        SendResult sent = producer.send(Sending.message(topic, 3));
        lab.readAll(topic, 1);
        Lab.await(20, () -> byUniqueKey(producer, topic, sent.getMsgId()) != null, () -> "nothing found by " + sent.getMsgId());
        MessageExt found = byUniqueKey(producer, topic, sent.getMsgId());
        Lab.same(sent.getMsgId(), found.getMsgId(), "message id");
        Sending.compare(Sending.message(topic, 3), found);
        return "found by " + sent.getMsgId();
    }

    private static MessageExt byUniqueKey(DefaultMQProducer producer, String topic, String id) throws Exception {
        try {
            return producer.getDefaultMQProducerImpl().getMqClientFactory().getMQAdminImpl().queryMessageByUniqKey(topic, id);
        } catch (MQClientException none) {
            return null;
        }
    }

    private static String queryByOffsetId(Lab lab) throws Exception {
        String topic = lab.topic("offset-id", 2);
        SendResult sent = lab.producer().send(Sending.message(topic, 4));
        MessageExt found = lab.admin.viewMessage(topic, sent.getOffsetMsgId());
        Lab.same(sent.getQueueOffset(), found.getQueueOffset(), "queue offset");
        Sending.compare(Sending.message(topic, 4), found);
        return "found by " + sent.getOffsetMsgId();
    }

    private static DefaultMQPushConsumer consumer(Lab lab, String group, String topic, Queue<MessageExt> received)
        throws Exception {
        DefaultMQPushConsumer consumer = lab.pushConsumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(Consuming.into(received));
        consumer.start();
        return consumer;
    }

    private static String resetOffset(Lab lab) throws Exception {
        String topic = lab.topic("reset", 2);
        String group = lab.name("group");
        long before = System.currentTimeMillis() - 1_000;
        Consuming.send(lab.producer(), topic, 0, 20);
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        consumer(lab, group, topic, received);
        Lab.await(Lab.PATIENCE, () -> received.size() >= 20, () -> received.size() + " of 20 received");
        Consuming.awaitNoLag(lab, group, topic);
        Map<?, Long> table = lab.admin.resetOffsetByTimestamp(topic, group, before, true);
        Lab.same(2, table.size(), "queues reset");
        Lab.check(table.values().stream().allMatch(offset -> offset == 0), "reset to %s", table);
        Lab.await(Lab.PATIENCE, () -> received.size() >= 40, () -> received.size() + " of 40 after the reset");
        Lab.same(20, Consuming.bodies(received).size(), "different bodies");
        Consuming.awaitNoLag(lab, group, topic);
        return "20 received, reset to before the first, 20 received again";
    }

    private static String resetOffsetOffline(Lab lab) throws Exception {
        String topic = lab.topic("reset", 1);
        String group = lab.name("group");
        Consuming.send(lab.producer(), topic, 0, 20);
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = consumer(lab, group, topic, received);
        Lab.await(Lab.PATIENCE, () -> received.size() >= 20, () -> received.size() + " of 20 received");
        consumer.shutdown();
        Consuming.awaitNoLag(lab, group, topic);
        lab.admin.resetOffsetByTimestampOld(group, topic, received.peek().getStoreTimestamp() - 1_000, true);
        Lab.same(20L, lab.lag(group, topic), "lag after the reset");
        return "lag 0, reset, lag 20";
    }

    private static String clientId(Lab lab, String group) throws Exception {
        Lab.await(20, () -> {
            try {
                return !lab.admin.examineConsumerConnectionInfo(group).getConnectionSet().isEmpty();
            } catch (Exception notYet) {
                return false;
            }
        }, () -> "no connection of " + group);
        return lab.admin.examineConsumerConnectionInfo(group).getConnectionSet().iterator().next().getClientId();
    }

    private static String runningInfo(Lab lab) throws Exception {
        String topic = lab.topic("info", 2);
        String group = lab.name("group");
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        consumer(lab, group, topic, received);
        String id = clientId(lab, group);
        Lab.await(Lab.PATIENCE, () -> lab.admin.getConsumerRunningInfo(group, id, false).getMqTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(topic)).count() == 2, () -> "its two queues are not reported");
        var info = lab.admin.getConsumerRunningInfo(group, id, true);
        Lab.check(info.getJstack() != null && info.getJstack().contains("Thread"), "no stack traces");
        var connection = lab.admin.examineConsumerConnectionInfo(group);
        Lab.check(connection.getSubscriptionTable().containsKey(topic), "subscriptions %s", connection.getSubscriptionTable());
        return "client " + id + " reported its queues, subscriptions and stacks";
    }

    private static String consumeDirectly(Lab lab) throws Exception {
        String topic = lab.topic("direct", 1);
        String group = lab.name("group");
        SendResult sent = lab.producer().send(Sending.message(topic, 1));
        Queue<MessageExt> received = new ConcurrentLinkedQueue<>();
        consumer(lab, group, topic, received);
        Lab.await(Lab.PATIENCE, () -> received.size() == 1, () -> received.size() + " of 1 received");
        var result = lab.admin.consumeMessageDirectly(group, clientId(lab, group), topic, sent.getOffsetMsgId());
        Lab.same("CR_SUCCESS", result.getConsumeResult().name(), "result");
        Lab.same(2, received.size(), "deliveries");
        return "consumed again on request: " + result.getConsumeResult();
    }

    private static String deleteTopic(Lab lab) throws Exception {
        String topic = lab.topic("deleted", 2);
        Consuming.send(lab.producer(), topic, 0, 5);
        lab.readAll(topic, 5); // a message not yet in its queue would arrive in the new topic
        String cluster = lab.admin.examineBrokerClusterInfo().getClusterAddrTable().keySet().iterator().next();
        DeleteTopicSubCommand.deleteTopic(lab.admin, cluster, topic);
        Lab.await(20, () -> !lab.hasRoute(topic), () -> "the deleted topic still has a route");
        lab.topic("deleted", 2);
        Consuming.send(lab.producer(), topic, 0, 3);
        lab.readAll(topic, 3);
        return "deleted with 5 messages; created again it starts empty";
    }
}
