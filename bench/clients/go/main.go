// SPDX-License-Identifier: PostgreSQL

// One endpoint three times: as it is and with pgonce on net/http; and with Fiber's idempotency middleware on Redis, which is Fiber's, so on another port.
package main

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/idempotency"
	storage "github.com/gofiber/storage/redis/v3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
)

const insert = "INSERT INTO orders (item, amount) VALUES ($1, $2) RETURNING id"

type wanted struct {
	Order  string `json:"order"`
	Amount int    `json:"amount"`
}

type placed struct {
	Order int    `json:"order"`
	Item  string `json:"item"`
}

func order(ctx context.Context, tx pgx.Tx, w wanted) (placed, error) {
	answer := placed{Item: w.Order}
	err := tx.QueryRow(ctx, insert, w.Order, w.Amount).Scan(&answer.Order)
	return answer, err
}

func committed(ctx context.Context, pool *pgxpool.Pool, w wanted) (answer placed, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		answer, err = order(ctx, tx, w)
		return err
	})
	return answer, err
}

func handler(place func(context.Context, wanted) (placed, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body wanted
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer, err := place(r.Context(), body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(answer)
	})
}

func main() {
	config, err := pgxpool.ParseConfig("pool_max_conns=16")
	if err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	db := oncepgx.New(pool)

	http.Handle("/bare", handler(func(ctx context.Context, w wanted) (placed, error) { return committed(ctx, pool, w) }))
	protect := db.Middleware(once.HTTP{Scope: "orders", SingleTenant: true})
	http.Handle("/pgonce", protect(handler(func(ctx context.Context, w wanted) (placed, error) { return order(ctx, db.Tx(ctx), w) })))

	peer := fiber.New(fiber.Config{DisableStartupMessage: true})
	peer.Use(idempotency.New(idempotency.Config{
		KeyHeader: "Idempotency-Key", KeyHeaderValidate: func(string) error { return nil },
		Storage: storage.NewFromConnection(redis.NewClient(&redis.Options{Network: "unix", Addr: os.Getenv("REDIS_SOCKET"), PoolSize: 16})),
	}))
	peer.Post("/redis", func(c *fiber.Ctx) error {
		var body wanted
		if err := c.BodyParser(&body); err != nil {
			return err
		}
		answer, err := committed(c.Context(), pool, body)
		if err != nil {
			return err
		}
		return c.Status(fiber.StatusCreated).JSON(answer)
	})
	go func() { log.Fatal(peer.Listen("127.0.0.1:" + os.Getenv("PEER_PORT"))) }()
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}
