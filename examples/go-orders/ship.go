// SPDX-License-Identifier: PostgreSQL

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
)

func ship(ctx context.Context, pool *pgxpool.Pool, db *oncepgx.Client) error {
	brokers, group := os.Getenv("KAFKA_BROKERS"), os.Getenv("KAFKA_GROUP")
	if brokers == "" {
		brokers = "127.0.0.1:9092"
	}
	if group == "" {
		group = "shipping"
	}
	kafka, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.ConsumerGroup(group), kgo.ConsumeTopics("order.placed"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.DisableAutoCommit())
	if err != nil {
		return err
	}
	defer kafka.Close()
	for {
		fetched := kafka.PollRecords(ctx, 100)
		if ctx.Err() != nil {
			return nil
		}
		fetched.EachError(func(topic string, partition int32, err error) {
			log.Printf("topic=%s partition=%d error=%q", topic, partition, err)
		})
		for records := fetched.RecordIter(); !records.Done(); {
			err := shipOnce(ctx, pool, db, records.Next())
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
		}
		// Only now: what is redelivered after a crash is known, and done once all the same.
		if err := kafka.CommitUncommittedOffsets(ctx); err != nil && ctx.Err() == nil {
			log.Printf("offsets error=%q", err)
		}
	}
}

// Until it is in the database, in order. Also after a lost COMMIT it is simply tried again: the inbox knows.
func shipOnce(ctx context.Context, pool *pgxpool.Pool, db *oncepgx.Client, record *kgo.Record) error {
	for {
		err := apply(ctx, pool, db, record)
		if err == nil || ctx.Err() != nil {
			return err
		}
		var bad *json.SyntaxError
		if errors.Is(err, once.ErrMessageMismatch) || errors.As(err, &bad) {
			return fmt.Errorf("partition %d, offset %d can never be applied: %w", record.Partition, record.Offset, err)
		}
		log.Printf("partition=%d offset=%d error=%q", record.Partition, record.Offset, err)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// The message's memory and its effect are one transaction.
func apply(ctx context.Context, pool *pgxpool.Pool, db *oncepgx.Client, record *kgo.Record) error {
	var order Order
	if err := json.Unmarshal(record.Value, &order); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		fresh, err := db.Receive(ctx, tx, "shipping", header(record, "Pgonce-Event-Id"), record.Value)
		if err != nil || !fresh {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO shipment (order_id, item, quantity) VALUES ($1, $2, $3)", order.ID, order.Item, order.Quantity)
		return err
	})
}

func header(record *kgo.Record, name string) string {
	for _, each := range record.Headers {
		if each.Key == name {
			return string(each.Value)
		}
	}
	return ""
}
