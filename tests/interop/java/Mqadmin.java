import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's mqadmin, many commands in one JVM: a line "SECONDS TAB ARGUMENT TAB ARGUMENT..." on standard input runs one
 * and is answered by one JSON line with its output. Lines that begin with "!" start clients for it to inspect.
 */
public final class Mqadmin {
    private static final Deque<Runnable> SHUTDOWNS = new ArrayDeque<>();

    private Mqadmin() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        PrintStream errors = System.err;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            Thread runner = new Thread(() -> run(words));
            runner.setDaemon(true);
            runner.start();
            runner.join(Long.parseLong(words[0].replace("!", "")) * 1_000);
            boolean finished = !runner.isAlive();
            String output = printed.toString(StandardCharsets.UTF_8);
            if (!finished) {
                runner.interrupt(); // some commands repeat until they are stopped
                runner.join(3_000);
            }
            System.setErr(errors);
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("finished", finished);
            answer.put("output", output);
            answers.println(Json.object(answer));
            answers.flush();
        }
        while (!SHUTDOWNS.isEmpty()) {
            SHUTDOWNS.pop().run();
        }
        System.exit(0);
    }

    private static void run(String[] words) {
        try {
            if (words[0].startsWith("!")) {
                start(words[1], words[2], words[3], words[4]);
            } else {
                MQAdminStartup.main0(Arrays.copyOfRange(words, 1, words.length), null);
            }
        } catch (Throwable error) {
            error.printStackTrace();
        }
    }

    private static void start(String kind, String namesrv, String group, String topic) throws Exception {
        if (kind.equals("producer")) {
            DefaultMQProducer producer = new DefaultMQProducer(group);
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName(group);
            producer.start();
            SHUTDOWNS.push(producer::shutdown);
            for (int i = 0; i < 8; i++) {
                var result = producer.send(new Message(topic, "tag-" + i % 2, "key-" + i, Lab.bytes("body-" + i)));
                System.out.println(result.getMsgId() + " " + result.getOffsetMsgId() + " "
                    + result.getMessageQueue().getQueueId() + " " + result.getQueueOffset());
            }
        } else {
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(namesrv);
            consumer.setInstanceName(group);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, "*");
            AtomicInteger received = new AtomicInteger();
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                received.addAndGet(messages.size());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            if (kind.equals("idle")) { // has committed and then left
                Lab.await(Lab.PATIENCE, () -> received.get() >= 8, () -> received + " of 8 received");
                consumer.shutdown();
            } else {
                SHUTDOWNS.push(consumer::shutdown);
            }
            System.out.println(consumer.buildMQClientId());
        }
    }
}
