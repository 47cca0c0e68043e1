// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
)

// tripping counts round trips: how often something is sent after something was received.
type tripping struct {
	net.Conn
	received *atomic.Bool
	trips    *atomic.Int64
}

func (c tripping) Write(b []byte) (int, error) {
	if c.received.Swap(false) {
		c.trips.Add(1)
	}
	return c.Conn.Write(b)
}

func (c tripping) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.received.Store(true)
	}
	return n, err
}

func TestBeginTravelsWithStartAndCommitWithFinish(t *testing.T) {
	at := newDatabase(t)
	var received atomic.Bool
	var trips atomic.Int64
	config, err := pgxpool.ParseConfig(at.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return tripping{conn, &received, &trips}, err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db := oncepgx.New(pool)
	run := func(key string) int64 {
		before := trips.Load()
		_, err := db.Run(context.Background(), "orders", key, map[string]int{"cart": 7}, func(ctx context.Context, tx pgx.Tx) (once.Answer, error) {
			_, err := tx.Exec(ctx, "INSERT INTO effect (key) VALUES ($1)", key)
			return once.JSON(201, "done"), err
		})
		if err != nil {
			t.Fatal(err)
		}
		return trips.Load() - before
	}
	run("prepares") // the driver learns the statements with the first
	for i := 0; i < 3; i++ {
		if made := run(fmt.Sprint("key ", i)); made != 3 {
			t.Fatalf("%d round trips, and not 3: one of them is the effect's own", made)
		}
	}
}
