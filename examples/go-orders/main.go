// SPDX-License-Identifier: PostgreSQL

// Command orders is an order service, and what follows an order.
//
//	orders serve    POST /orders: each Idempotency-Key places one order, announces it once, and gets one answer
//	orders ship     takes the announcements from Kafka, and ships each order once
//
// Between the two stands pgonce relay (pgonce.conf).
package main

import (
	"context"
	_ "embed"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pgonce.internal/once/oncepgx"
)

//go:embed schema.sql
var schema string

func main() {
	jobs := map[string]func(context.Context, *pgxpool.Pool, *oncepgx.Client) error{"serve": serve, "ship": ship}
	if len(os.Args) != 2 || jobs[os.Args[1]] == nil {
		log.Fatal("usage: orders serve|ship")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// DATABASE_URL, or PGHOST, PGDATABASE, ... say where.
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	// The database may be on its way up, or end this very connection.
	for tries := 1; ; tries++ {
		if err = prepare(ctx, pool); err == nil {
			break
		} else if tries == 20 || ctx.Err() != nil {
			log.Fatal(err)
		}
		time.Sleep(250 * time.Millisecond)
	}
	if err := jobs[os.Args[1]](ctx, pool, oncepgx.New(pool)); err != nil {
		log.Fatal(err)
	}
}

// Both jobs may begin at the same time.
func prepare(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('orders: schema'))"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, schema)
		return err
	})
}
