package main

import (
	"context"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var background = context.Background()

func sendSync(lab *lab) string {
	topic := lab.topic("sync", 2)
	sender := lab.producer()
	results := map[int]*primitive.SendResult{}
	for number := 0; number < 10; number++ {
		result, err := sender.SendSync(background, numbered(topic, number))
		must(err)
		same(primitive.SendOK, result.Status, "status")
		results[number] = result
	}
	for _, message := range lab.readAll(topic, 10) {
		number := numberOf(message)
		checkNumbered(message, number)
		same(results[number].MsgID, message.MsgId, "unique id")
		same(results[number].OffsetMsgID, message.OffsetMsgId, "id by offset")
		same(results[number].QueueOffset, message.QueueOffset, "queue offset")
		same(results[number].MessageQueue.QueueId, message.Queue.QueueId, "queue")
	}
	return "10 read back with keys, tag, property, flag and both ids as in the results"
}

func sendAsync(lab *lab) string {
	topic := lab.topic("async", 4)
	sender := lab.producer()
	var waiting sync.WaitGroup
	var lock sync.Mutex
	ids := map[string]bool{}
	for number := 0; number < 100; number++ {
		waiting.Add(1)
		must(sender.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
			defer waiting.Done()
			if err == nil {
				lock.Lock()
				ids[result.MsgID] = true
				lock.Unlock()
			}
		}, numbered(topic, number)))
	}
	waiting.Wait()
	same(100, len(ids), "acknowledged")
	for _, message := range lab.readAll(topic, 100) {
		check(ids[message.MsgId], "%s was never acknowledged", message.MsgId)
	}
	return "100 acknowledged and read back"
}

func sendOneway(lab *lab) string {
	topic := lab.topic("oneway", 4)
	sender := lab.producer()
	for number := 0; number < 50; number++ {
		must(sender.SendOneWay(background, numbered(topic, number)))
	}
	for _, message := range lab.readAll(topic, 50) {
		checkNumbered(message, numberOf(message))
	}
	return "50 read back"
}

func sendBatch(lab *lab) string {
	topic := lab.topic("batch", 2)
	sender := lab.producer()
	var batch []*primitive.Message
	for number := 0; number < 20; number++ {
		batch = append(batch, numbered(topic, number))
	}
	result, err := sender.SendSync(background, batch...)
	must(err)
	same(primitive.SendOK, result.Status, "status")
	ids := strings.Split(result.OffsetMsgID, ",")
	same(20, len(ids), "ids in the result")
	for at, message := range lab.readAll(topic, 20) {
		checkNumbered(message, at)
		same(ids[at], message.OffsetMsgId, "id by offset")
		same(result.QueueOffset+int64(at), message.QueueOffset, "queue offset")
	}
	return "one request, 20 messages in one queue, each with its own keys and id"
}

func sendBig(lab *lab) string {
	topic := lab.topic("big", 1)
	sender := lab.producer()
	text := []byte(strings.Repeat("a text that repeats itself; ", 50_000))
	noise := make([]byte, 3<<20)
	rand.New(rand.NewSource(1)).Read(noise)
	for _, body := range [][]byte{text, noise, text[:4095], text[:4096]} {
		_, err := sender.SendSync(background, primitive.NewMessage(topic, body))
		must(err)
	}
	found := lab.readAll(topic, 4)
	for at, body := range [][]byte{text, noise, text[:4095], text[:4096]} {
		check(string(body) == string(found[at].Body), "body %d differs", at)
		same(len(body) >= 4096, found[at].SysFlag&primitive.FlagCompressed != 0, "compressed")
	}
	check(found[0].StoreSize < 100_000, "1.4 MB of text took %d bytes", found[0].StoreSize)
	return fmt.Sprintf("1.4 MB of text stored in %d bytes, 3 MiB of random bytes, just below and above 4 KiB", found[0].StoreSize)
}

func sendTooBig(lab *lab) string {
	topic := lab.topic("too-big", 1)
	sender := lab.producer()
	noise := make([]byte, 5<<20)
	rand.New(rand.NewSource(1)).Read(noise)
	_, err := sender.SendSync(background, primitive.NewMessage(topic, noise))
	check(err != nil && strings.Contains(err.Error(), "CODE: 13"), "5 MiB: %v", err)
	sendTexts(sender, topic, []string{"after"})
	lab.readAll(topic, 1)
	return "refused with 13, the next message was stored"
}

func sendToQueue(lab *lab) string {
	topic := lab.topic("queue", 4)
	byKey := lab.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for number := 0; number < 40; number++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("key%d-%d", number%5, number)))
		message.WithShardingKey(fmt.Sprintf("key%d", number%5))
		_, err := byKey.SendSync(background, message)
		must(err)
	}
	places, last := map[string]int{}, map[string]int{}
	for _, message := range lab.readAll(topic, 40) {
		key := message.GetShardingKey()
		if place, known := places[key]; known {
			same(place, message.Queue.QueueId, "queue of "+key)
			check(numberOf(message) > last[key], "%s out of order", key)
		}
		places[key], last[key] = message.Queue.QueueId, numberOf(message)
	}
	same(5, len(places), "keys")
	byHand := lab.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	message := primitive.NewMessage(topic, []byte("by hand"))
	message.Queue = lab.queues(topic)[3]
	result, err := byHand.SendSync(background, message)
	must(err)
	same(message.Queue.QueueId, result.MessageQueue.QueueId, "chosen queue")
	return "each sharding key in one queue and in order; an explicitly chosen queue"
}

func sendAutoCreate(lab *lab) string {
	topic := lab.name("new")
	result, err := lab.producer().SendSync(background, primitive.NewMessage(topic, []byte("first")))
	must(err)
	same(primitive.SendOK, result.Status, "status")
	await(10*time.Second, func() bool { return lab.isListed(topic) }, func() string { return "no route" })
	same(4, len(lab.queues(topic)), "queues")
	lab.readAll(topic, 1)
	return "the first message created the topic with 4 queues"
}

func sendTraced(lab *lab) string {
	topic := lab.topic("traced", 1)
	// The client's tracer creates no topic: without this one its traces are lost without an error.
	sendTexts(lab.producer(), "RMQ_SYS_TRACE_TOPIC", []string{"first"})
	await(10*time.Second, func() bool { return lab.isListed("RMQ_SYS_TRACE_TOPIC") }, func() string { return "no trace topic" })
	sender := lab.producer(producer.WithTrace(&primitive.TraceConfig{
		GroupName: lab.name("trace"),
		Access:    primitive.Local,
		Resolver:  primitive.NewPassthroughResolver([]string{lab.namesrv}),
	}))
	result, err := sender.SendSync(background, primitive.NewMessage(topic, []byte("traced")))
	must(err)
	check(result.TraceOn, "the broker's answer disables tracing")
	traces := lab.follow("RMQ_SYS_TRACE_TOPIC")
	await(30*time.Second, func() bool { return strings.Contains(strings.Join(traces.bodies(), ""), result.MsgID) },
		func() string { return fmt.Sprintf("%d traces, none of %s", len(traces.all()), result.MsgID) })
	return "the trace of the message is in RMQ_SYS_TRACE_TOPIC"
}
