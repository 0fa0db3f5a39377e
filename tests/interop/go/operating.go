package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func pullFrom(lab *lab) string {
	topic, group := lab.topic("pull", 1), lab.name("group")
	sender := lab.producer()
	sendTexts(sender, topic, texts(20, "m"))
	reader := lab.pull(group, topic)
	queue := lab.queues(topic)[0]
	result, err := reader.PullFrom(background, queue, 5, 7)
	must(err)
	same(primitive.PullFound, result.Status, "status")
	same(7, len(result.GetMessageExts()), "messages")
	same("m-5", string(result.GetMessageExts()[0].Body), "first body")
	same("0 20 12", fmt.Sprint(result.MinOffset, result.MaxOffset, result.NextBeginOffset), "offsets")
	beyond, err := reader.PullFrom(background, queue, 1000, 1)
	must(err)
	same(primitive.PullOffsetIllegal, beyond.Status, "status beyond the end")
	same(20, beyond.NextBeginOffset, "next offset")
	began, sent := time.Now(), make(chan bool)
	go func() {
		defer close(sent)
		time.Sleep(500 * time.Millisecond)
		sendTexts(sender, topic, []string{"late"})
	}()
	held, err := reader.PullFrom(background, queue, 20, 1)
	must(err)
	same("late", string(held.GetMessageExts()[0].Body), "message returned by the long poll")
	check(time.Since(began) < 10*time.Second, "the long poll took %v", time.Since(began))
	<-sent
	return "a range, beyond the end, and a long poll answered on arrival"
}

func pullPoll(lab *lab) string {
	topic, group := lab.topic("poll", 4), lab.name("group")
	sender := lab.producer()
	sendTexts(sender, topic, texts(40, "a"))
	poll := func(reader rocketmq.PullConsumer, count int) *seen {
		got := &seen{}
		await(patience, func() bool {
			request, err := reader.Poll(background, time.Second)
			if err != nil {
				return len(got.all()) >= count
			}
			got.add(request.GetMsgList()...)
			reader.ACK(background, request, consumer.ConsumeSuccess)
			return len(got.all()) >= count
		}, func() string { return fmt.Sprintf("%d of %d polled", len(got.all()), count) })
		return got
	}
	first := lab.pull(group, topic)
	poll(first, 40).awaitBodies(texts(40, "a"))
	must(first.PersistOffset(background, topic))
	must(first.Shutdown())
	sendTexts(sender, topic, texts(40, "b"))
	// A pull consumer without a batch size asks for 0 messages at a time.
	second := lab.pull(group, topic, consumer.WithPullBatchSize(16))
	poll(second, 40).awaitBodies(texts(40, "b"))
	return "40 polled one at a time, 40 more by the next consumer, which continued where the first stopped"
}

func requestReply(lab *lab) string {
	topic := lab.topic("request", 2)
	asking, replying := lab.producer(), lab.producer(producer.WithGroupName(lab.name("replying")))
	problem := ""
	lab.push(lab.name("group"), topic, "*", func(request *primitive.MessageExt) consumer.ConsumeResult {
		reply, err := consumer.CreateReplyMessage(request, nil)
		if err == nil {
			reply.Body = append([]byte("re: "), request.Body...)
			_, err = replying.SendSync(background, reply)
		}
		if err != nil {
			problem = err.Error()
		}
		return consumer.ConsumeSuccess
	})
	// The broker knows a client by its heartbeat, which this client sends when it first uses a topic, then every 30 s.
	reply := ""
	await(60*time.Second, func() bool {
		answer, err := asking.Request(background, 5*time.Second, primitive.NewMessage(topic, []byte("question")))
		if err == nil && answer != nil {
			reply = string(answer.Body)
		}
		return reply != ""
	}, func() string { return "no reply; " + problem })
	same("re: question", reply, "reply")
	answered := make(chan string, 1)
	must(asking.RequestAsync(background, 10*time.Second, func(_ context.Context, reply *primitive.Message, err error) {
		if err != nil {
			answered <- err.Error()
			return
		}
		answered <- string(reply.Body)
	}, primitive.NewMessage(topic, []byte("again"))))
	same("re: again", <-answered, "reply to the callback")
	return "blocking and by callback"
}

func adminTopics(lab *lab) string {
	topic := lab.topic("admin", 5)
	same(5, len(lab.queues(topic)), "queues")
	sendTexts(lab.producer(), topic, []string{"m"})
	group := lab.name("group")
	_, got := lab.push(group, topic, "*", nil)
	got.awaitBodies([]string{"m"})
	groups, err := lab.admin.GetAllSubscriptionGroup(background, lab.broker, 5*time.Second)
	must(err)
	found, known := groups.SubscriptionGroupTable[group]
	check(known, "the group is not in the table of %d", len(groups.SubscriptionGroupTable))
	same("true 16 1", fmt.Sprint(found.ConsumeEnable, found.RetryMaxTimes, found.RetryQueueNums), "the group's settings")
	doomed := lab.topic("doomed", 1)
	must(lab.admin.DeleteTopic(background, admin.WithTopicDelete(doomed), admin.WithBrokerAddrDelete(lab.broker),
		admin.WithNameSrvAddr([]string{lab.namesrv})))
	await(10*time.Second, func() bool { return !lab.isListed(doomed) }, func() string { return "still listed" })
	_, err = lab.producer(producer.WithCreateTopicKey("no-such-topic")).SendSync(background, primitive.NewMessage(doomed, []byte("m")))
	check(err != nil, "a deleted topic accepted a message")
	return "create, list, queues, groups, delete"
}

func namespace(lab *lab) string {
	topic, group := lab.name("topic"), lab.name("group")
	lab.create("space%"+topic, 2)
	sender := lab.producer(producer.WithNamespace("space"))
	sendTexts(sender, topic, texts(10, "m"))
	_, got := lab.push(group, topic, "*", nil, consumer.WithNamespace("space"))
	got.awaitBodies(texts(10, "m"))
	check(lab.isListed("%RETRY%space%"+group), "no retry topic of the group in its namespace")
	return "topic and group within a namespace"
}

type undecided struct{ ran chan string }

func (u undecided) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (u undecided) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	u.ran <- string(message.Body)
	return primitive.CommitMessageState
}

func transaction(lab *lab) string {
	topic := lab.topic("transaction", 1)
	listener := undecided{make(chan string, 100)}
	sender, err := rocketmq.NewTransactionProducer(listener,
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{lab.namesrv})),
		producer.WithGroupName(lab.name("producer")), producer.WithInstanceName(lab.instance()), producer.WithRetry(0))
	must(err)
	must(sender.Start())
	defer sender.Shutdown()
	_, got := lab.push(lab.name("group"), topic, "*", nil)
	for _, body := range []string{"commit", "rollback", "unknown"} {
		result, err := sender.SendMessageInTransaction(background, primitive.NewMessage(topic, []byte(body)))
		if err != nil && strings.Contains(err.Error(), "CODE:") {
			time.Sleep(2 * time.Second)
			same(0, len(got.all()), "messages of a refused transaction")
		}
		must(err)
		same(primitive.SendOK, result.Status, "status")
	}
	await(60*time.Second, func() bool { return len(got.all()) >= 2 }, func() string { return fmt.Sprint(got.bodies()) })
	same("[commit unknown]", got.bodies(), "delivered messages")
	return "committed at once and after the check; nothing after the rollback"
}
