package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// A consumer that misses its first rebalance waits 20 s for the next one.
const patience = 50 * time.Second

var clients int64

// The environment of a scenario: unique names, clients that are shut down after it, and helpers to inspect and wait.
type lab struct {
	namesrv, broker, unique string
	admin                   admin.Admin
	shutdowns               []func()
}

// The key that every client signs its requests with; without one it signs none.
func credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: os.Getenv("INTEROP_ACCESS_KEY"), SecretKey: os.Getenv("INTEROP_SECRET_KEY")}
}

func newLab(namesrv, broker, unique string) *lab {
	operator, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		admin.WithCredentials(credentials()))
	must(err)
	return &lab{namesrv: namesrv, broker: broker, unique: unique, admin: operator}
}

func (l *lab) close() {
	for at := len(l.shutdowns) - 1; at >= 0; at-- {
		l.shutdowns[at]()
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(holds bool, otherwise string, values ...interface{}) {
	if !holds {
		panic(fmt.Sprintf(otherwise, values...))
	}
}

func same(expected, found interface{}, what string) {
	check(fmt.Sprint(expected) == fmt.Sprint(found), "%s: expected %v, found %v", what, expected, found)
}

func await(patience time.Duration, condition func() bool, what func() string) {
	deadline := time.Now().Add(patience)
	for !condition() {
		check(time.Now().Before(deadline), "after %v: %s", patience, what())
		time.Sleep(20 * time.Millisecond)
	}
}

func (l *lab) name(role string) string {
	return role + "-" + l.unique
}

func (l *lab) instance() string {
	return fmt.Sprintf("i%d-%s", atomic.AddInt64(&clients, 1), l.unique)
}

// Create a topic for this scenario and wait until the name server has its route.
func (l *lab) topic(role string, queues int) string {
	topic := l.name(role)
	l.create(topic, queues)
	return topic
}

func (l *lab) create(topic string, queues int) {
	must(l.admin.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(l.broker),
		admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues)))
	// The client reports no error of the broker, so wait for the route.
	await(10*time.Second, func() bool { return l.isListed(topic) }, func() string { return "no route for " + topic })
}

func (l *lab) isListed(topic string) bool {
	topics, err := l.admin.FetchAllTopicList(context.Background())
	must(err)
	for _, one := range topics.TopicList {
		if one == topic {
			return true
		}
	}
	return false
}

func (l *lab) producer(options ...producer.Option) rocketmq.Producer {
	made, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{l.namesrv})),
		producer.WithGroupName(l.name("producer")),
		producer.WithInstanceName(l.instance()),
		producer.WithCredentials(credentials()),
		producer.WithRetry(0),
	}, options...)...)
	must(err)
	must(made.Start())
	l.shutdowns = append(l.shutdowns, func() { _ = made.Shutdown() })
	return made
}

func (l *lab) consumerOptions(group string, options []consumer.Option) []consumer.Option {
	return append([]consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{l.namesrv})),
		consumer.WithGroupName(group),
		consumer.WithInstance(l.instance()),
		consumer.WithCredentials(credentials()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, options...)
}

// Messages that a consumer received, from several goroutines.
type seen struct {
	lock     sync.Mutex
	messages []*primitive.MessageExt
}

func (s *seen) add(messages ...*primitive.MessageExt) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.messages = append(s.messages, messages...)
}

func (s *seen) all() []*primitive.MessageExt {
	s.lock.Lock()
	defer s.lock.Unlock()
	return append([]*primitive.MessageExt{}, s.messages...)
}

func (s *seen) bodies() []string {
	found := []string{}
	for _, one := range s.all() {
		found = append(found, string(one.Body))
	}
	sort.Strings(found)
	return found
}

func (s *seen) awaitBodies(expected []string) {
	await(patience, func() bool { return len(s.all()) >= len(expected) },
		func() string { return fmt.Sprintf("%d of %d messages arrived", len(s.all()), len(expected)) })
	sorted := append([]string{}, expected...)
	sort.Strings(sorted)
	same(sorted, s.bodies(), "bodies")
}

// A started push consumer; each message is recorded and passed to the listener if there is one.
func (l *lab) push(group, topic, filter string, listener func(*primitive.MessageExt) consumer.ConsumeResult,
	options ...consumer.Option) (rocketmq.PushConsumer, *seen) {
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: filter}
	return l.pushSelected(group, topic, selector, listener, options...)
}

func (l *lab) pushSelected(group, topic string, selector consumer.MessageSelector,
	listener func(*primitive.MessageExt) consumer.ConsumeResult, options ...consumer.Option) (rocketmq.PushConsumer, *seen) {
	made, err := rocketmq.NewPushConsumer(l.consumerOptions(group, options)...)
	must(err)
	got := &seen{}
	must(made.Subscribe(topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		result := consumer.ConsumeSuccess
		for _, message := range messages {
			got.add(message)
			if listener != nil {
				result = listener(message)
			}
		}
		return result, nil
	}))
	must(made.Start())
	l.shutdowns = append(l.shutdowns, func() { _ = made.Shutdown() })
	return made, got
}

func (l *lab) pull(group, topic string, options ...consumer.Option) rocketmq.PullConsumer {
	made, err := rocketmq.NewPullConsumer(l.consumerOptions(group, options)...)
	must(err)
	must(made.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	must(made.Start())
	l.shutdowns = append(l.shutdowns, func() { _ = made.Shutdown() })
	return made
}

func (l *lab) queues(topic string) []*primitive.MessageQueue {
	found, err := l.admin.FetchPublishMessageQueues(context.Background(), topic)
	must(err)
	return found
}

// Wait until the topic contains this many messages; sorted by queue and offset.
func (l *lab) readAll(topic string, count int) []*primitive.MessageExt {
	got := l.follow(topic)
	await(20*time.Second, func() bool { return len(got.all()) >= count },
		func() string { return fmt.Sprintf("%d of %d messages in %s", len(got.all()), count, topic) })
	found := got.all()
	same(count, len(found), "messages in "+topic)
	sort.Slice(found, func(i, j int) bool {
		if found[i].Queue.QueueId != found[j].Queue.QueueId {
			return found[i].Queue.QueueId < found[j].Queue.QueueId
		}
		return found[i].QueueOffset < found[j].QueueOffset
	})
	return found
}

// Pull each queue from its beginning in its own goroutine: at the end of a queue the broker holds a pull for 20 s.
func (l *lab) follow(topic string) *seen {
	reader := l.pull(l.name(fmt.Sprintf("reader%d", atomic.AddInt64(&clients, 1))), topic)
	got := &seen{}
	for _, queue := range l.queues(topic) {
		go func(queue *primitive.MessageQueue) {
			for offset := int64(0); ; {
				result, err := reader.PullFrom(context.Background(), queue, offset, 32)
				if err != nil {
					return // shut down
				}
				got.add(result.GetMessageExts()...)
				offset = result.NextBeginOffset
			}
		}(queue)
	}
	return got
}

func texts(count int, prefix string) []string {
	made := []string{}
	for at := 0; at < count; at++ {
		made = append(made, fmt.Sprintf("%s-%d", prefix, at))
	}
	return made
}

func sendTexts(sender rocketmq.Producer, topic string, bodies []string) {
	for _, body := range bodies {
		_, err := sender.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)))
		must(err)
	}
}

// A message with all fields set; each contains the number.
func numbered(topic string, number int) *primitive.Message {
	message := primitive.NewMessage(topic, []byte(fmt.Sprintf("body-%d", number)))
	message.WithTag(fmt.Sprintf("tag-%d", number%2))
	message.WithKeys([]string{fmt.Sprintf("key-%d", number), "shared"})
	message.WithProperty("colour", fmt.Sprintf("grün-%d", number))
	message.Flag = int32(number)
	return message
}

func checkNumbered(message *primitive.MessageExt, number int) {
	same(fmt.Sprintf("body-%d", number), string(message.Body), "body")
	same(fmt.Sprintf("tag-%d", number%2), message.GetTags(), "tag")
	same(fmt.Sprintf("key-%d shared", number), message.GetKeys(), "keys")
	same(fmt.Sprintf("grün-%d", number), message.GetProperty("colour"), "user property")
	same(number, message.Flag, "flag")
}

func numberOf(message *primitive.MessageExt) int {
	var number int
	_, err := fmt.Sscanf(string(message.Body)[strings.LastIndex(string(message.Body), "-"):], "-%d", &number)
	must(err)
	return number
}
