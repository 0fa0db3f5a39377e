import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that become visible when their producer commits them. */
final class Transactions {
    private Transactions() {
    }

    static void register(Map<String, Scenario> all) {
        all.put("transaction", Transactions::transaction);
    }

    private static String transaction(Lab lab) throws Exception {
        String topic = lab.topic("transaction", 1);
        Set<String> asked = ConcurrentHashMap.newKeySet();
        TransactionMQProducer producer = new TransactionMQProducer(lab.name("producer"), Lab.signature());
        lab.configure(producer);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                asked.add(Lab.text(message));
                return Lab.text(message).equals("body-3") ? LocalTransactionState.COMMIT_MESSAGE
                    : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        producer.start();
        lab.onClose(producer::shutdown);
        producer.sendMessageInTransaction(Sending.message(topic, 1), LocalTransactionState.COMMIT_MESSAGE);
        producer.sendMessageInTransaction(Sending.message(topic, 2), LocalTransactionState.ROLLBACK_MESSAGE);
        producer.sendMessageInTransaction(Sending.message(topic, 3), LocalTransactionState.UNKNOW);
        Lab.same(Set.of("body-1"), Consuming.bodies(lab.readAll(topic, 1)), "visible at once");
        Lab.await(60, () -> asked.contains("body-3"), () -> "the producer was never checked");
        // A check may repeat before the answer to the first is processed, so the third message may appear more than once.
        DefaultMQPullConsumer reader = lab.pullConsumer(lab.name("reader"));
        Lab.await(20, () -> Consuming.bodies(Lab.read(reader, topic)).equals(Set.of("body-1", "body-3")),
            () -> "visible are " + Consuming.bodies(Lab.read(reader, topic)));
        return "committed, rolled back, and committed when checked";
    }
}
