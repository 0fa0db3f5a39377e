package main

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// The attempts of deliveries in order of arrival; an orderly consumer increments the count in the same message.
type tries struct {
	lock  sync.Mutex
	found []int32
}

func (t *tries) note(message *primitive.MessageExt) int32 {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.found = append(t.found, message.ReconsumeTimes)
	return message.ReconsumeTimes
}

func (t *tries) String() string {
	t.lock.Lock()
	defer t.lock.Unlock()
	return fmt.Sprint(t.found)
}

// The client finds its retry topic at its next route poll (30 s) and rebalance (20 s), unless it existed before.
func (l *lab) introduce(group, topic string) {
	first, _ := l.push(group, topic, "*", nil)
	await(20*time.Second, func() bool { return l.isListed("%RETRY%" + group) }, func() string { return "no retry topic" })
	must(first.Shutdown())
}

func retryToSuccess(lab *lab) string {
	topic, group := lab.topic("retry", 1), lab.name("group")
	result, err := lab.producer().SendSync(background, numbered(topic, 1))
	must(err)
	tried := &tries{}
	_, got := lab.push(group, topic, "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		if tried.note(message) == 0 {
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	})
	await(100*time.Second, func() bool { return len(got.all()) >= 2 }, tried.String)
	same("[0 1]", tried, "attempts")
	for _, message := range got.all() {
		same(topic, message.Topic, "topic")
		same(result.MsgID, message.MsgId, "unique id")
		checkNumbered(message, 1)
	}
	return "redelivered from the retry topic, which the client found automatically"
}

func retryToDeadLetters(lab *lab) string {
	topic, group := lab.topic("dead", 1), lab.name("group")
	lab.introduce(group, topic)
	result, err := lab.producer().SendSync(background, numbered(topic, 1))
	must(err)
	tried := &tries{}
	lab.push(group, topic, "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		tried.note(message)
		return consumer.ConsumeRetryLater
	}, consumer.WithMaxReconsumeTimes(1))
	return lab.deadLetter(group, topic, result, tried, "[0 1]")
}

func retryOrderlyToDeadLetters(lab *lab) string {
	topic, group := lab.topic("dead", 1), lab.name("group")
	result, err := lab.producer().SendSync(background, numbered(topic, 1))
	must(err)
	tried := &tries{}
	lab.push(group, topic, "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		tried.note(message)
		return consumer.SuspendCurrentQueueAMoment
	}, consumer.WithMaxReconsumeTimes(1), consumer.WithConsumerOrder(true))
	return lab.deadLetter(group, topic, result, tried, "[0 1 2]") // this client makes one attempt more than others
}

func (l *lab) deadLetter(group, topic string, sent *primitive.SendResult, tried *tries, deliveries string) string {
	dead := "%DLQ%" + group
	await(100*time.Second, func() bool { return l.isListed(dead) }, tried.String)
	same(deliveries, tried, "attempts")
	l.create(dead, 1) // readable, even if the broker creates it without read permission
	letter := l.readAll(dead, 1)[0]
	checkNumbered(letter, 1)
	same(topic, letter.GetProperty(primitive.PropertyRetryTopic), "RETRY_TOPIC")
	same(sent.MsgID, letter.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex), "unique id")
	return fmt.Sprintf("attempts %s, then in %s with its properties", deliveries, dead)
}

func delayLevels(lab *lab) string {
	topic := lab.topic("delay", 2)
	sender := lab.producer()
	var lock sync.Mutex
	arrived := map[string]time.Time{}
	_, got := lab.push(lab.name("group"), topic, "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		lock.Lock()
		defer lock.Unlock()
		arrived[string(message.Body)] = time.Now()
		return consumer.ConsumeSuccess
	})
	seconds := []int{0, 1, 5, 10}
	sent := map[int]time.Time{}
	for level := range seconds {
		message := numbered(topic, level)
		if level > 0 {
			message.WithDelayTimeLevel(level)
		}
		sent[level] = time.Now()
		_, err := sender.SendSync(background, message)
		must(err)
	}
	await(patience, func() bool { return len(got.all()) >= len(seconds) }, func() string { return fmt.Sprint(got.bodies()) })
	evidence := ""
	for level, delay := range seconds {
		waited := arrived["body-"+strconv.Itoa(level)].Sub(sent[level])
		check(waited >= time.Duration(delay)*time.Second, "level %d arrived after %v", level, waited)
		evidence += fmt.Sprintf("level %d: %d ms; ", level, waited.Milliseconds())
	}
	for _, message := range got.all() {
		same(topic, message.Topic, "topic")
		checkNumbered(message, numberOf(message))
	}
	return evidence
}
