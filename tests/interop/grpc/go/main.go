// Scenarios of Apache's Go client of the 5.x series: ENDPOINT SUFFIX NAME...; a JSON line for each.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var endpoint, suffix = os.Args[1], os.Args[2]

func topic(kind string) string { return kind + "_" + suffix }

func config(group string) *rmq.Config {
	found := &rmq.Config{Endpoint: endpoint, Credentials: &credentials.SessionCredentials{
		AccessKey:    os.Getenv("INTEROP_ACCESS_KEY"),
		AccessSecret: os.Getenv("INTEROP_SECRET_KEY"),
	}}
	if group != "" {
		found.ConsumerGroup = group + "_" + suffix
	}
	return found
}

func message(kind, body string) *rmq.Message {
	return &rmq.Message{Topic: topic(kind), Body: []byte(body)}
}

func check(holds bool, found any) {
	if !holds {
		panic(fmt.Sprintf("%+v", found))
	}
}

func must(err error) {
	if err != nil {
		panic(err.Error())
	}
}

func producer(kind string, more ...rmq.ProducerOption) rmq.Producer {
	made, err := rmq.NewProducer(config(""), append(more, rmq.WithTopics(topic(kind)))...)
	must(err)
	must(made.Start())
	return made
}

func send(sender rmq.Producer, one *rmq.Message) *rmq.SendReceipt {
	receipts, err := sender.Send(context.Background(), one)
	must(err)
	return receipts[0]
}

// A delivery.
type delivery struct {
	at      time.Time
	group   string
	body    string
	attempt int32
}

// Notes deliveries; fails as often as asked.
type listener struct {
	lock     sync.Mutex
	noted    []delivery
	failures int32
}

func (l *listener) consume(view *rmq.MessageView) rmq.ConsumerResult {
	l.lock.Lock()
	defer l.lock.Unlock()
	group := ""
	if view.GetMessageGroup() != nil {
		group = *view.GetMessageGroup()
	}
	attempt := view.GetDeliveryAttempt()
	l.noted = append(l.noted, delivery{time.Now(), group, string(view.GetBody()), attempt})
	if attempt <= l.failures {
		return rmq.FAILURE
	}
	return rmq.SUCCESS
}

func (l *listener) got() []delivery {
	l.lock.Lock()
	defer l.lock.Unlock()
	return slices.Clone(l.noted)
}

func (l *listener) bodies() []string {
	var found []string
	for _, one := range l.got() {
		found = append(found, one.body)
	}
	slices.Sort(found)
	return found
}

func (l *listener) waitFor(count int) []delivery {
	deadline := time.Now().Add(90 * time.Second)
	for len(l.got()) < count {
		check(time.Now().Before(deadline), fmt.Sprintf("not in 90 s: %v", l.got()))
		time.Sleep(50 * time.Millisecond)
	}
	return l.got()
}

func pushing(group, kind string, notes *listener) rmq.PushConsumer {
	made, err := rmq.NewPushConsumer(config(group),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic(kind): rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: notes.consume}),
	)
	must(err)
	must(made.Start())
	return made
}

func sendAndSimpleConsumer() string {
	sender := producer("NORMAL")
	defer sender.GracefulStop()
	one := message("NORMAL", "hello")
	one.SetTag("t")
	one.SetKeys("k")
	one.AddProperty("colour", "red")
	sent := send(sender, one).MessageID
	consumer, err := rmq.NewSimpleConsumer(config("simple"),
		rmq.WithSimpleAwaitDuration(20*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{
			topic("NORMAL"): rmq.NewFilterExpression("t"),
		}))
	must(err)
	must(consumer.Start())
	defer consumer.GracefulStop()
	ctx := context.Background()
	got, err := consumer.Receive(ctx, 10, 15*time.Second)
	must(err)
	check(len(got) == 1, got)
	view := got[0]
	check(view.GetMessageId() == sent && string(view.GetBody()) == "hello" && *view.GetTag() == "t" &&
		slices.Equal(view.GetKeys(), []string{"k"}) && view.GetProperties()["colour"] == "red", view)
	must(consumer.ChangeInvisibleDuration(view, 20*time.Second))
	must(consumer.Ack(ctx, view))
	return sent
}

func push() string {
	sender, notes := producer("PUSH"), &listener{}
	defer sender.GracefulStop()
	// A push consumer waits for its open polls when it stops; the other scenarios leave theirs.
	defer pushing("push", "PUSH", notes).GracefulStop()
	for number := 0; number < 50; number++ {
		send(sender, message("PUSH", strconv.Itoa(number)))
	}
	notes.waitFor(50)
	check(len(slices.Compact(notes.bodies())) == 50, notes.bodies())
	return "50 messages"
}

func pushRetries() string {
	sender, notes := producer("RETRY"), &listener{failures: 2}
	defer sender.GracefulStop()
	pushing("retry", "RETRY", notes)
	send(sender, message("RETRY", "bad"))
	got := notes.waitFor(3)
	first, second := got[1].at.Sub(got[0].at).Seconds(), got[2].at.Sub(got[1].at).Seconds()
	check(first > 0.9 && first < 5 && second > 4.5 && second < 12, []float64{first, second})
	check(got[2].attempt == 3, got)
	return fmt.Sprintf("%.1f s, %.1f s", first, second)
}

func fifo() string {
	sender, notes := producer("FIFO"), &listener{}
	defer sender.GracefulStop()
	pushing("fifo", "FIFO", notes)
	pushing("fifo", "FIFO", notes)
	for number := 10; number < 50; number++ {
		one := message("FIFO", strconv.Itoa(number))
		one.SetMessageGroup(fmt.Sprintf("g%d", number%4))
		send(sender, one)
	}
	last := map[string]string{}
	for _, one := range notes.waitFor(40) {
		check(last[one.group] < one.body, notes.got())
		last[one.group] = one.body
	}
	return "4 groups, 2 consumers"
}

func delayAndRecall() string {
	sender, notes := producer("DELAY"), &listener{}
	defer sender.GracefulStop()
	pushing("delay", "DELAY", notes)
	at := time.Now().Add(5 * time.Second)
	recalled, kept := message("DELAY", "recalled"), message("DELAY", "kept")
	recalled.SetDelayTimestamp(at)
	kept.SetDelayTimestamp(at)
	handle := send(sender, recalled).RecallHandle
	send(sender, kept)
	_, err := sender.Recall(context.Background(), topic("DELAY"), handle)
	must(err)
	late := notes.waitFor(1)[0].at.Sub(at)
	time.Sleep(2 * time.Second)
	check(slices.Equal(notes.bodies(), []string{"kept"}), notes.bodies())
	check(late > -time.Second && late < 5*time.Second, late)
	return fmt.Sprintf("%d ms late", late.Milliseconds())
}

func transaction() string {
	asked := make(chan string, 10)
	sender := producer("TRANSACTION", rmq.WithTransactionChecker(&rmq.TransactionChecker{
		Check: func(half *rmq.MessageView) rmq.TransactionResolution {
			asked <- string(half.GetBody())
			return rmq.COMMIT
		},
	}))
	defer sender.GracefulStop()
	notes := &listener{}
	pushing("transaction", "TRANSACTION", notes)
	for _, decision := range []string{"commit", "rollback", "undecided"} {
		open := sender.BeginTransaction()
		_, err := sender.SendWithTransaction(context.Background(), message("TRANSACTION", decision), open)
		must(err)
		switch decision {
		case "commit":
			must(open.Commit())
		case "rollback":
			must(open.RollBack())
		}
	}
	notes.waitFor(2)
	check(slices.Equal(notes.bodies(), []string{"commit", "undecided"}), notes.bodies())
	check(len(asked) == 1 && <-asked == "undecided", "asked about another one")
	return "one committed, one asked about"
}

func restart() string {
	sender, notes := producer("RESTART"), &listener{}
	pushing("restart", "RESTART", notes)
	seconds, err := strconv.Atoi(os.Getenv("INTEROP_SECONDS"))
	must(err)
	times := map[string][]int64{"sent": {}, "got": {}}
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	fmt.Println("running")
	for number := 0; time.Now().Before(end); number++ {
		if _, err := sender.Send(context.Background(), message("RESTART", strconv.Itoa(number))); err == nil {
			times["sent"] = append(times["sent"], time.Now().UnixMilli())
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, one := range notes.got() {
		times["got"] = append(times["got"], one.at.UnixMilli())
	}
	text, err := json.Marshal(times)
	must(err)
	return string(text)
}

var scenarios = map[string]func() string{
	"grpc_send_and_simple_consumer": sendAndSimpleConsumer,
	"grpc_push":                     push,
	"grpc_push_retries":             pushRetries,
	"grpc_fifo":                     fifo,
	"grpc_delay_and_recall":         delayAndRecall,
	"grpc_transaction":              transaction,
	"grpc_restart":                  restart,
}

func run(name string) (status, evidence string) {
	defer func() {
		if failure := recover(); failure != nil {
			status, evidence = "fail", fmt.Sprint(failure)
		}
	}()
	return "pass", scenarios[name]()
}

func main() {
	rmq.EnableSsl = os.Getenv("INTEROP_TLS") == "1"
	rmq.ResetLogger()
	for _, name := range os.Args[3:] {
		begun := time.Now()
		status, evidence := run(name)
		line, err := json.Marshal(map[string]any{
			"scenario": name, "status": status, "evidence": evidence, "ms": time.Since(begun).Milliseconds(),
		})
		must(err)
		fmt.Println(string(line))
	}
}
