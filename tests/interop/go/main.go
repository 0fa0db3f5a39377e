// Runs scenarios with Apache's Go client and prints one JSON line for each.
//
// Usage: scenarios NAMESRV BROKER SUFFIX PARALLEL SCENARIO...; SUFFIX makes topics and groups unique to the run.
// With --list alone it prints the known names; with --member NAMESRV SUFFIX it accepts commands (see member.go).
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const limit = 120 * time.Second

type scenario func(*lab) string

type notApplicable string

type outcome struct {
	Scenario string `json:"scenario"`
	Status   string `json:"status"`
	Evidence string `json:"evidence"`
	Ms       int64  `json:"ms"`
}

// One name per line, so that a test can compare them with the list of the harness.
var all = map[string]scenario{
	"go_send_sync":                     sendSync,
	"go_send_async":                    sendAsync,
	"go_send_oneway":                   sendOneway,
	"go_send_batch":                    sendBatch,
	"go_send_big":                      sendBig,
	"go_send_too_big":                  sendTooBig,
	"go_send_to_queue":                 sendToQueue,
	"go_send_auto_create":              sendAutoCreate,
	"go_send_traced":                   sendTraced,
	"go_push_concurrent":               pushConcurrent,
	"go_push_tags":                     pushTags,
	"go_push_sql92":                    pushSql92,
	"go_push_orderly":                  pushOrderly,
	"go_push_broadcast":                pushBroadcast,
	"go_push_rebalance":                pushRebalance,
	"go_push_restart":                  pushRestart,
	"go_push_start_positions":          pushStartPositions,
	"go_retry_to_success":              retryToSuccess,
	"go_retry_to_dead_letters":         retryToDeadLetters,
	"go_retry_orderly_to_dead_letters": retryOrderlyToDeadLetters,
	"go_delay_levels":                  delayLevels,
	"go_pull_from":                     pullFrom,
	"go_pull_poll":                     pullPoll,
	"go_request_reply":                 requestReply,
	"go_admin":                         adminTopics,
	"go_namespace":                     namespace,
	"go_transaction":                   transaction,
	"go_signed":                        signed,
	"go_wrong_key":                     wrongKey,
}

func main() {
	rlog.SetLogLevel("warn") // to standard error, which the harness saves
	if len(os.Args) == 2 && os.Args[1] == "--list" {
		for name := range all {
			fmt.Println(name)
		}
		return
	}
	if len(os.Args) == 4 && os.Args[1] == "--member" {
		runMember(os.Args[2], os.Args[3])
		return
	}
	namesrv, broker, suffix := os.Args[1], os.Args[2], os.Args[3]
	parallel, err := strconv.Atoi(os.Args[4])
	must(err)
	var printing, running sync.WaitGroup
	places := make(chan struct{}, parallel)
	outcomes := make(chan outcome)
	printing.Add(1)
	go func() {
		defer printing.Done()
		for one := range outcomes {
			line, _ := json.Marshal(one)
			fmt.Println(string(line))
		}
	}()
	for _, name := range os.Args[5:] {
		places <- struct{}{}
		running.Add(1)
		go func(name string) {
			defer running.Done()
			outcomes <- run(name, newLab(namesrv, broker, name+"-"+suffix))
			<-places
		}(name)
	}
	running.Wait()
	close(outcomes)
	printing.Wait()
}

func run(name string, lab *lab) outcome {
	began := time.Now()
	ended := make(chan outcome, 1)
	go func() {
		defer lab.close()
		ended <- attempt(name, lab)
	}()
	var found outcome
	select {
	case found = <-ended:
	case <-time.After(limit):
		found = outcome{Status: "fail", Evidence: fmt.Sprintf("not finished after %v", limit)}
	}
	found.Scenario = name
	found.Ms = time.Since(began).Milliseconds()
	return found
}

func attempt(name string, lab *lab) (found outcome) {
	defer func() {
		switch report := recover().(type) {
		case nil:
		case notApplicable:
			found = outcome{Status: "n/a", Evidence: string(report)}
		default:
			found = outcome{Status: "fail", Evidence: fmt.Sprint(report)}
		}
	}()
	scenario, known := all[name]
	check(known, "no scenario named %s", name)
	return outcome{Status: "pass", Evidence: scenario(lab)}
}
