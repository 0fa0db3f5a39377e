package main

import (
	"fmt"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// The harness creates the topics of these scenarios, since the client's admin does not sign its requests.

func signed(lab *lab) string {
	topic := lab.name("topic")
	sender := lab.producer()
	sendTexts(sender, topic, texts(10, "before"))
	_, got := lab.push(lab.name("group"), topic, "*", nil)
	got.awaitBodies(texts(10, "before"))
	sendTexts(sender, topic, texts(10, "after"))
	got.awaitBodies(append(texts(10, "before"), texts(10, "after")...))
	return "10 sent before and 10 after the consumer started, each received once"
}

// The client returns that it has no route; why the server refused to tell it is only in its log.
func wrongKey(lab *lab) string {
	reasons := &listener{}
	rlog.SetLogger(reasons)
	topic := lab.name("topic")
	_, err := lab.producer().SendSync(background, primitive.NewMessage(topic, []byte("refused")))
	check(err != nil, "a message was sent with a wrong key")
	return fmt.Sprintf("%v, because of %v", err, reasons.first())
}

// A logger that keeps the errors behind what the client reports.
type listener struct {
	lock   sync.Mutex
	errors []string
}

func (l *listener) note(fields map[string]interface{}) {
	if reason, known := fields[rlog.LogKeyUnderlayError]; known {
		l.lock.Lock()
		defer l.lock.Unlock()
		l.errors = append(l.errors, fmt.Sprint(reason))
	}
}

func (l *listener) first() string {
	l.lock.Lock()
	defer l.lock.Unlock()
	check(len(l.errors) > 0, "the client logged no reason")
	return l.errors[0]
}

func (l *listener) Debug(string, map[string]interface{})            {}
func (l *listener) Info(string, map[string]interface{})             {}
func (l *listener) Warning(_ string, fields map[string]interface{}) { l.note(fields) }
func (l *listener) Error(_ string, fields map[string]interface{})   { l.note(fields) }
func (l *listener) Fatal(_ string, fields map[string]interface{})   { l.note(fields) }
func (l *listener) Level(string)                                    {}
func (l *listener) OutputPath(string) error                         { return nil }
