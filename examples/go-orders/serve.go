// SPDX-License-Identifier: PostgreSQL

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
)

// Order is what is asked for, what is answered, and what is announced.
type Order struct {
	ID       int64  `json:"order"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
}

func serve(ctx context.Context, _ *pgxpool.Pool, db *oncepgx.Client) error {
	protect := db.Middleware(once.HTTP{Scope: "orders", SingleTenant: true, Wait: 5 * time.Second})
	mux := http.NewServeMux()
	mux.Handle("/orders", protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { placeOrder(w, r, db) })))

	port := os.Getenv("PORT")
	if port == "" {
		port = "3001"
	}
	server := &http.Server{Addr: "127.0.0.1:" + port, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error)
	go func() {
		<-ctx.Done()
		ended <- server.Shutdown(context.WithoutCancel(ctx)) // when the requests that run are answered
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// What it does in the request's transaction, the event among it, is committed together with its answer.
func placeOrder(w http.ResponseWriter, r *http.Request, db *oncepgx.Client) {
	var order Order
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Item == "" || order.Quantity < 1 {
		http.Error(w, "what is ordered?", http.StatusBadRequest)
		return
	}
	ctx, tx := r.Context(), db.Tx(r.Context())
	err := tx.QueryRow(ctx, "INSERT INTO shop_order (item, quantity) VALUES ($1, $2) RETURNING id", order.Item, order.Quantity).Scan(&order.ID)
	if err == nil {
		_, err = db.Emit(ctx, tx, once.Event{Topic: "order.placed", Payload: order, AggregateType: "order", AggregateID: strconv.FormatInt(order.ID, 10)})
	}
	if err != nil {
		http.Error(w, "not ordered", http.StatusInternalServerError) // nothing was done: a retry runs
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(order)
}
