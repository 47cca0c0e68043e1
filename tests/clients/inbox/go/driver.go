// SPDX-License-Identifier: PostgreSQL

// Gives the Go programs of docs/how their messages: see run.py.
package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/aws/aws-lambda-go/events"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

type acknowledger struct{ said []string }

func (a *acknowledger) Ack(uint64, bool) error { a.said = append(a.said, "ack"); return nil }
func (a *acknowledger) Nack(tag uint64, multiple, requeue bool) error {
	if requeue && !multiple {
		a.said = append(a.said, "nack")
	} else {
		a.said = append(a.said, "dropped")
	}
	return nil
}
func (a *acknowledger) Reject(uint64, bool) error { a.said = append(a.said, "rejected"); return nil }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func post(handler http.HandlerFunc, body string, headers map[string]string) int {
	request := httptest.NewRequest("POST", "/", strings.NewReader(body))
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	answer := httptest.NewRecorder()
	handler(answer, request)
	return answer.Code
}

func main() {
	ctx := context.Background()
	var cases struct {
		Secret        string
		Kafka, Rabbit [][2]string
		SQS           []events.SQSEvent
		Stripe        []struct{ Signature, Body string }
		GitHub        []struct{ Delivery, Signature, Body string }
	}
	text, err := os.ReadFile(os.Getenv("CASES"))
	must(err)
	must(json.Unmarshal(text, &cases))
	pool, err = pgxpool.New(ctx, os.Getenv("DATABASE"))
	must(err)
	said := map[string][]any{}
	for _, each := range cases.Kafka {
		record := &kgo.Record{Headers: []kgo.RecordHeader{{Key: "Pgonce-Event-Id", Value: []byte(each[0])}}, Value: []byte(each[1])}
		outcome := "done"
		if onRecord(ctx, record) != nil {
			outcome = "error"
		}
		said["kafka"] = append(said["kafka"], outcome)
	}
	for _, each := range cases.SQS {
		response, err := handler(ctx, each)
		must(err)
		failed := []string{}
		for _, failure := range response.BatchItemFailures {
			failed = append(failed, failure.ItemIdentifier)
		}
		said["sqs"] = append(said["sqs"], failed)
	}
	for _, each := range cases.Rabbit {
		told := &acknowledger{}
		must(onDelivery(ctx, amqp.Delivery{Acknowledger: told, MessageId: each[0], Body: []byte(each[1])}))
		said["rabbit"] = append(said["rabbit"], strings.Join(told.said, " "))
	}
	for _, each := range cases.Stripe {
		said["stripe"] = append(said["stripe"], post(stripe([]byte(cases.Secret)), each.Body, map[string]string{"Stripe-Signature": each.Signature}))
	}
	for _, each := range cases.GitHub {
		headers := map[string]string{"X-Hub-Signature-256": each.Signature, "X-GitHub-Delivery": each.Delivery}
		said["github"] = append(said["github"], post(github([]byte(cases.Secret)), each.Body, headers))
	}
	must(json.NewEncoder(os.Stdout).Encode(said))
}
