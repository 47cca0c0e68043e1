// SPDX-License-Identifier: PostgreSQL

// The handlers of cases.json on net/http and pgx, and the neighbours of both: ../README.md.
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/gorilla/csrf"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/gzhttp"
	"github.com/rs/cors"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
)

// querier is what handlers work in: their transaction, or without pgonce the pool.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Begin(ctx context.Context) (pgx.Tx, error)
}

type service struct {
	pool    *pgxpool.Pool
	db      *oncepgx.Client
	on      bool
	files   string
	session *scs.SessionManager
}

func (s *service) tx(r *http.Request) querier {
	if s.on {
		return s.db.Tx(r.Context())
	}
	return s.pool
}

// effect leaves the row of the request; an error is the handler's.
func (s *service) effect(r *http.Request, name string) error {
	_, err := s.tx(r).Exec(r.Context(), "INSERT INTO effect (name) VALUES ($1)", name)
	return err
}

// elsewhere leaves a row on another connection.
func (s *service) elsewhere(name string) {
	if _, err := s.pool.Exec(context.Background(), "INSERT INTO effect (name) VALUES ($1)", name); err != nil {
		log.Print(err)
	}
}

type layer = func(http.Handler) http.Handler

// For paths that begin so, a neighbour outside of pgonce.
func (s *service) outside(next http.Handler) http.Handler {
	token := csrf.Protect([]byte("0123456789abcdef0123456789abcdef"), csrf.Secure(false), csrf.FieldName("csrf_token"), csrf.Path("/"))
	plaintext := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(w, csrf.PlaintextHTTPRequest(r)) })
	}
	layers := map[string][]layer{
		"/compressed": {func(next http.Handler) http.Handler { return gzhttp.GzipHandler(next) }},
		"/cors": {cors.New(cors.Options{AllowedOrigins: []string{"https://shop.example"}, AllowCredentials: true, AllowedMethods: []string{"GET", "POST"},
			AllowedHeaders: []string{"Idempotency-Key", "Content-Type"}, ExposedHeaders: []string{"Idempotency-Replayed"}}).Handler},
		"/outer":        {outer},
		"/auth":         {authenticated},
		"/session":      {s.session.LoadAndSave},
		"/csrf":         {once.KeepBody(1 << 20), plaintext, token},
		"/read-outside": {parsing},
		"/recovers":     {recovering},
		"/deadline": {func(next http.Handler) http.Handler {
			return http.TimeoutHandler(next, time.Minute, "too late")
		}},
		"/limited": {func(next http.Handler) http.Handler { return http.MaxBytesHandler(next, 8) }},
	}
	wrapped := map[string]http.Handler{}
	for prefix, around := range layers {
		handler := next
		for i := len(around) - 1; i >= 0; i-- {
			handler = around[i](handler)
		}
		wrapped[prefix] = handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for prefix, handler := range wrapped {
			if strings.HasPrefix(r.URL.Path, prefix) {
				handler.ServeHTTP(w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func outer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", "one")
		w.Header().Set("Link", "</outer>; rel=help")
		w.Header().Set("Content-Language", "de")
		next.ServeHTTP(w, r)
	})
}

func inner(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/inner" {
			w.Header().Set("X-Inner", "one")
		}
		next.ServeHTTP(w, r)
	})
}

func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "u" || password != "p" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "who is it?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// parsing reads the body that the middleware is to hash. KeepBody would keep it.
func parsing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if what := recover(); what != nil && what != http.ErrAbortHandler {
				http.Error(w, "recovered", http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

func main() {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	handlerMs, _ := strconv.Atoi(os.Getenv("HANDLER_MS"))
	s := &service{pool: pool, db: oncepgx.New(pool), on: os.Getenv("PGONCE") == "on", files: os.Getenv("FILES"), session: scs.New()}
	handler := inner(s.routes())
	if s.on {
		handler = s.db.Middleware(once.HTTP{Scope: "transparency", SingleTenant: true, HandlerTimeout: time.Duration(handlerMs) * time.Millisecond})(handler)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /-/pool", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]int32{"in_use": pool.Stat().AcquiredConns()})
	})
	mux.Handle("/", s.outside(handler))

	two := &http.Server{Addr: "127.0.0.1:" + os.Getenv("PORT_HTTP2"), Handler: mux, Protocols: new(http.Protocols)}
	two.Protocols.SetUnencryptedHTTP2(true)
	go func() { log.Fatal(two.ListenAndServe()) }()
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), mux))
}
