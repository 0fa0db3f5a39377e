package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func pushConcurrent(lab *lab) string {
	topic := lab.topic("push", 4)
	sender := lab.producer()
	sendTexts(sender, topic, texts(50, "before"))
	_, got := lab.push(lab.name("group"), topic, "*", nil)
	got.awaitBodies(texts(50, "before"))
	sendTexts(sender, topic, texts(50, "after"))
	got.awaitBodies(append(texts(50, "before"), texts(50, "after")...))
	return "50 from before and 50 from after the start, each once"
}

func pushTags(lab *lab) string {
	topic := lab.topic("tags", 2)
	sender := lab.producer()
	_, got := lab.push(lab.name("group"), topic, "red || grün", nil)
	for number, tag := range []string{"red", "blue", "grün", "", "red"} {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("%s-%d", tag, number)))
		message.WithTag(tag)
		_, err := sender.SendSync(background, message)
		must(err)
	}
	await(patience, func() bool { return len(got.all()) >= 2 }, func() string { return "no message with tag red" })
	time.Sleep(time.Second) // time for messages that must not arrive
	for _, body := range got.bodies() {
		check(body != "blue-1" && body != "-3", "%s passed the filter", body)
	}
	same("[red-0 red-4]", got.bodies()[len(got.bodies())-2:], "with tag red")
	return fmt.Sprintf("%v of five arrived", got.bodies())
}

func pushSql92(lab *lab) string {
	topic := lab.topic("sql", 2)
	sender := lab.producer()
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "age > 17 AND colour = 'grün'"}
	_, got := lab.pushSelected(lab.name("group"), topic, selector, nil)
	for _, age := range []string{"16", "17", "18", "19"} {
		message := primitive.NewMessage(topic, []byte("age-"+age))
		message.WithProperty("age", age)
		message.WithProperty("colour", "grün")
		_, err := sender.SendSync(background, message)
		must(err)
	}
	await(patience, func() bool { return len(got.all()) >= 2 }, func() string { return "nothing arrived" })
	got.awaitBodies([]string{"age-18", "age-19"})
	return "two of four arrived"
}

func pushOrderly(lab *lab) string {
	topic := lab.topic("orderly", 4)
	sender := lab.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for number := 0; number < 100; number++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("m-%d", number)))
		message.WithShardingKey(fmt.Sprintf("k%d", number%7))
		_, err := sender.SendSync(background, message)
		must(err)
	}
	var lock sync.Mutex
	busy, last := map[int]bool{}, map[int]int64{}
	suspended, problem := 0, ""
	_, got := lab.push(lab.name("group"), topic, "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		queue := message.Queue.QueueId
		lock.Lock()
		if busy[queue] {
			problem = fmt.Sprintf("two messages of queue %d at once", queue)
		}
		if next, known := last[queue]; known && message.QueueOffset != next+1 {
			problem = fmt.Sprintf("queue %d: %d after %d", queue, message.QueueOffset, next)
		}
		busy[queue] = true
		fails := message.QueueOffset == 3 && message.ReconsumeTimes == 0
		lock.Unlock()
		time.Sleep(2 * time.Millisecond)
		lock.Lock()
		defer lock.Unlock()
		busy[queue] = false
		if fails {
			suspended++
			return consumer.SuspendCurrentQueueAMoment
		}
		last[queue] = message.QueueOffset
		return consumer.ConsumeSuccess
	}, consumer.WithConsumerOrder(true))
	await(patience, func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(got.all()) >= 100+suspended
	}, func() string { return fmt.Sprintf("%d of 100 arrived", len(got.all())) })
	check(problem == "", problem)
	check(suspended > 0, "no message was suspended")
	return fmt.Sprintf("100 in order, one at a time per queue, %d suspended once", suspended)
}

func pushBroadcast(lab *lab) string {
	topic, group := lab.topic("broadcast", 4), lab.name("group")
	_, one := lab.push(group, topic, "*", nil, consumer.WithConsumerModel(consumer.BroadCasting))
	_, two := lab.push(group, topic, "*", nil, consumer.WithConsumerModel(consumer.BroadCasting))
	sendTexts(lab.producer(), topic, texts(40, "m"))
	one.awaitBodies(texts(40, "m"))
	two.awaitBodies(texts(40, "m"))
	return "all 40 to both"
}

func queuesOf(got *seen) map[int]bool {
	found := map[int]bool{}
	for _, message := range got.all() {
		found[message.Queue.QueueId] = true
	}
	return found
}

func pushRebalance(lab *lab) string {
	topic, group := lab.topic("rebalance", 8), lab.name("group")
	sender := lab.producer()
	first, one := lab.push(group, topic, "*", nil)
	sendTexts(sender, topic, texts(32, "a"))
	one.awaitBodies(texts(32, "a"))
	same(8, len(queuesOf(one)), "queues of one consumer alone")
	_, two := lab.push(group, topic, "*", nil)
	// The notification of a new member makes the first one release its queues at once.
	round := 0
	await(patience, func() bool {
		round++
		sendTexts(sender, topic, texts(8, fmt.Sprintf("probe%d", round)))
		time.Sleep(300 * time.Millisecond)
		return len(queuesOf(two)) == 4
	}, func() string { return fmt.Sprintf("the second holds %v", queuesOf(two)) })
	before := len(one.all()) + len(two.all())
	one.lock.Lock()
	one.messages = nil
	one.lock.Unlock()
	two.lock.Lock()
	two.messages = nil
	two.lock.Unlock()
	sendTexts(sender, topic, texts(32, "b"))
	await(patience, func() bool { return len(one.all())+len(two.all()) >= 32 }, func() string { return "not all arrived" })
	same("4 and 4", fmt.Sprintf("%d and %d", len(queuesOf(one)), len(queuesOf(two))), "queues")
	must(first.Shutdown()) // this client does not unregister; the broker sees its connection end
	await(patience, func() bool {
		round++
		sendTexts(sender, topic, texts(8, fmt.Sprintf("probe%d", round)))
		time.Sleep(300 * time.Millisecond)
		return len(queuesOf(two)) == 8
	}, func() string { return fmt.Sprintf("the second holds %v", queuesOf(two)) })
	return fmt.Sprintf("8 queues, then 4 and 4, then 8 again; %d messages while they moved", before-32)
}

func pushRestart(lab *lab) string {
	topic, group := lab.topic("restart", 4), lab.name("group")
	sender := lab.producer()
	sendTexts(sender, topic, texts(40, "a"))
	first, one := lab.push(group, topic, "*", nil)
	one.awaitBodies(texts(40, "a"))
	must(first.Shutdown())
	sendTexts(sender, topic, texts(40, "b"))
	_, two := lab.push(group, topic, "*", nil)
	two.awaitBodies(texts(40, "b"))
	return "the next consumer continues where the first stopped"
}

func pushStartPositions(lab *lab) string {
	topic := lab.topic("positions", 2)
	sender := lab.producer()
	sendTexts(sender, topic, texts(10, "old"))
	// A broker answers 0 to a new group while a queue still has its first message, regardless of the client's setting.
	for _, where := range []consumer.ConsumeFromWhere{
		consumer.ConsumeFromFirstOffset, consumer.ConsumeFromLastOffset, consumer.ConsumeFromTimestamp} {
		_, got := lab.push(lab.name(fmt.Sprintf("from%d", where)), topic, "*", nil, consumer.WithConsumeFromWhere(where))
		got.awaitBodies(texts(10, "old"))
	}
	return "every new group reads a new topic from its beginning"
}
