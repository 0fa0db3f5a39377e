import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Members of groups that also have members of another client. Each input line is a command, words separated by tabs,
 * answered by one JSON line with "answer"; messages that consumers receive are JSON lines with "member".
 *
 * <pre>
 *   consume ID KIND GROUP TOPIC PAUSE_MS      KIND: concurrent, orderly, popping (as the broker says), failing (the first attempt fails), replying
 *   assigned ID                               the queue ids assigned to a consumer
 *   stop ID
 *   send TOPIC COUNT PREFIX                   body PREFIX-i with key k(i mod 8), in the queue given by Java's hash
 *   send-big TOPIC                            one compressed message with keys, tag and property
 *   ask TOPIC BODY                            a request; the answer is the reply's body
 * </pre>
 */
public final class Member {
    private static final PrintStream OUT = System.out;
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new ConcurrentHashMap<>();
    private static String namesrv;
    private static String unique;
    private static DefaultMQProducer producer;

    private Member() {
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // output of the client library is not an answer
        namesrv = args[0];
        unique = args[1];
        producer = new DefaultMQProducer("java-producer-" + unique);
        configure(producer, "producer");
        producer.setSendMsgTimeout(10_000);
        producer.start();
        say("answer", "ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                say("answer", run(line.split("\t")));
            } catch (Exception error) {
                say("error", error.toString());
            }
        }
        CONSUMERS.values().forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
        System.exit(0);
    }

    private static String run(String[] words) throws Exception {
        switch (words[0]) {
            case "consume":
                consume(words[1], words[2], words[3], words[4], Long.parseLong(words[5]));
                return "started";
            case "assigned":
                return assigned(CONSUMERS.get(words[1]));
            case "stop":
                CONSUMERS.remove(words[1]).shutdown();
                return "stopped";
            case "send":
                return send(words[1], Integer.parseInt(words[2]), words[3]);
            case "send-big":
                return sendBig(words[1]);
            case "ask":
                return Lab.text(producer.request(new Message(words[1], Lab.bytes(words[2])), 20_000));
            default:
                throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    private static void configure(ClientConfig client, String role) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName(role + "-" + unique);
        client.setPollNameServerInterval(1_000);
        client.setHeartbeatBrokerInterval(2_000);
        client.setVipChannelEnabled(false);
    }

    private static void consume(String id, String kind, String group, String topic, long pause) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        configure(consumer, id);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.subscribe(topic, "*");
        if (kind.equals("popping")) {
            // By name: releases before 5.0 do not have it.
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        if (kind.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                handle(id, messages, pause);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                handle(id, messages, pause);
                if (kind.equals("failing") && messages.get(0).getReconsumeTimes() == 0) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                if (kind.equals("replying")) {
                    reply(messages.get(0));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        CONSUMERS.put(id, consumer);
        consumer.start();
    }

    private static void reply(MessageExt request) {
        try {
            String body = "java says " + Lab.text(request);
            producer.send(MessageUtil.createReplyMessage(request, Lab.bytes(body)), 3_000);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static void handle(String id, List<MessageExt> messages, long pause) {
        long began = System.currentTimeMillis();
        try {
            Thread.sleep(pause);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
        long ended = System.currentTimeMillis();
        for (MessageExt message : messages) {
            Map<String, Object> report = new LinkedHashMap<>();
            report.put("member", id);
            report.put("topic", message.getTopic());
            report.put("queue", message.getQueueId());
            report.put("offset", message.getQueueOffset());
            report.put("attempt", message.getReconsumeTimes());
            report.put("began", began);
            report.put("ended", ended);
            report.put("size", message.getBody().length);
            report.put("body", message.getBody().length > 200 ? "big" : Lab.text(message));
            report.put("keys", message.getKeys());
            report.put("tags", message.getTags());
            report.put("colour", message.getUserProperty("colour"));
            report.put("msg_id", message.getMsgId());
            print(report);
        }
    }

    private static String assigned(DefaultMQPushConsumer consumer) {
        TreeSet<Integer> ids = new TreeSet<>();
        for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (!queue.getTopic().startsWith("%RETRY%")) {
                ids.add(queue.getQueueId());
            }
        }
        return ids.toString();
    }

    private static String send(String topic, int count, String prefix) throws Exception {
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic, Lab.bytes(prefix + "-" + i));
            producer.send(message, new SelectMessageQueueByHash(), "k" + i % 8);
        }
        return String.valueOf(count);
    }

    private static String sendBig(String topic) throws Exception {
        StringBuilder body = new StringBuilder();
        for (int i = 0; i < 4_000; i++) {
            body.append("a text that repeats itself; ");
        }
        Message message = new Message(topic, "bad", "k-1 k-2", Lab.bytes(body.toString()));
        message.putUserProperty("colour", "gr\u00fcn");
        SendResult result = producer.send(message);
        return result.getMsgId();
    }

    private static void say(String key, String value) {
        Map<String, Object> report = new LinkedHashMap<>();
        report.put(key, value);
        print(report);
    }

    private static void print(Map<String, Object> report) {
        synchronized (OUT) {
            OUT.println(Json.object(report));
            OUT.flush();
        }
    }
}
