package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Members of groups that also have members of another client: the same commands and answers as Member.java.
type member struct {
	lab       *lab
	sender    rocketmq.Producer
	consumers map[string]rocketmq.PushConsumer
	printing  sync.Mutex
}

func runMember(namesrv, unique string) {
	lab := newLab(namesrv, "", unique)
	m := &member{lab: lab, consumers: map[string]rocketmq.PushConsumer{}}
	m.sender = lab.producer(producer.WithQueueSelector(javaHash{}))
	m.print(map[string]interface{}{"answer": "ready"})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		m.print(m.answer(strings.Split(lines.Text(), "\t")))
	}
	for _, one := range m.consumers {
		_ = one.Shutdown()
	}
	lab.close()
}

func (m *member) print(report map[string]interface{}) {
	m.printing.Lock()
	defer m.printing.Unlock()
	line, err := json.Marshal(report)
	must(err)
	fmt.Println(string(line))
}

func (m *member) answer(words []string) (report map[string]interface{}) {
	defer func() {
		if problem := recover(); problem != nil {
			report = map[string]interface{}{"error": fmt.Sprint(problem)}
		}
	}()
	return map[string]interface{}{"answer": m.run(words)}
}

func (m *member) run(words []string) string {
	switch words[0] {
	case "consume":
		pause, err := strconv.Atoi(words[5])
		must(err)
		m.consume(words[1], words[2], words[3], words[4], time.Duration(pause)*time.Millisecond)
		return "started"
	case "assigned":
		return assigned(m.consumers[words[1]])
	case "stop":
		must(m.consumers[words[1]].Shutdown())
		delete(m.consumers, words[1])
		return "stopped"
	case "send":
		count, err := strconv.Atoi(words[2])
		must(err)
		for at := 0; at < count; at++ {
			message := primitive.NewMessage(words[1], []byte(fmt.Sprintf("%s-%d", words[3], at)))
			message.WithShardingKey(fmt.Sprintf("k%d", at%8))
			_, err := m.sender.SendSync(background, message)
			must(err)
		}
		return words[2]
	case "send-big":
		message := primitive.NewMessage(words[1], []byte(strings.Repeat("a text that repeats itself; ", 4000)))
		message.WithTag("bad")
		message.WithKeys([]string{"k-1", "k-2"})
		message.WithProperty("colour", "grün")
		result, err := m.sender.SendSync(background, message)
		must(err)
		return result.MsgID
	case "ask":
		reply, err := m.sender.Request(background, 20*time.Second, primitive.NewMessage(words[1], []byte(words[2])))
		must(err)
		return string(reply.Body)
	}
	panic("no command " + words[0])
}

func (m *member) consume(id, kind, group, topic string, pause time.Duration) {
	made, err := rocketmq.NewPushConsumer(m.lab.consumerOptions(group, []consumer.Option{
		consumer.WithConsumerOrder(kind == "orderly"),
	})...)
	must(err)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	must(made.Subscribe(topic, selector, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			m.handle(id, message, pause)
		}
		if kind == "failing" && messages[0].ReconsumeTimes == 0 {
			if concurrent, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				concurrent.DelayLevelWhenNextConsume = 1
			}
			return consumer.ConsumeRetryLater, nil
		}
		if kind == "replying" {
			reply, err := consumer.CreateReplyMessage(messages[0], nil)
			if err == nil {
				reply.Body = append([]byte("go says "), messages[0].Body...)
				_, err = m.sender.SendSync(background, reply)
			}
			return consumer.ConsumeSuccess, err
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(made.Start())
	m.consumers[id] = made
}

func (m *member) handle(id string, message *primitive.MessageExt, pause time.Duration) {
	began := time.Now()
	time.Sleep(pause)
	body := string(message.Body)
	if len(body) > 200 {
		body = "big"
	}
	m.print(map[string]interface{}{
		"member": id, "topic": message.Topic, "queue": message.Queue.QueueId, "offset": message.QueueOffset,
		"attempt": message.ReconsumeTimes, "began": began.UnixMilli(), "ended": time.Now().UnixMilli(),
		"size": len(message.Body), "body": body, "keys": message.GetKeys(), "tags": message.GetTags(),
		"colour": message.GetProperty("colour"), "msg_id": message.MsgId,
	})
}

// The client reports its queues only to an admin client, so this reads the data of that report.
func assigned(one rocketmq.PushConsumer) string {
	report := reflect.ValueOf(one).MethodByName("GetConsumerRunningInfo").Call([]reflect.Value{reflect.ValueOf(false)})
	ids := []int{}
	for _, key := range report[0].Elem().FieldByName("MQTable").MapKeys() {
		if queue := key.Interface().(primitive.MessageQueue); !strings.HasPrefix(queue.Topic, "%RETRY%") {
			ids = append(ids, queue.QueueId)
		}
	}
	sort.Ints(ids)
	found, err := json.Marshal(ids)
	must(err)
	return string(found)
}

// Selects the queue given by Java's hash of the sharding key; the client's own hash differs.
type javaHash struct{}

func (javaHash) Select(message *primitive.Message, queues []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	hash := int32(0)
	for _, unit := range message.GetShardingKey() {
		hash = 31*hash + unit
	}
	if hash < 0 {
		hash = -hash
	}
	// The client reverses the order of the queues with every sort; only the queue id counts.
	wanted := int(hash) % len(queues)
	for _, queue := range queues {
		if queue.QueueId == wanted {
			return queue
		}
	}
	return queues[0]
}
