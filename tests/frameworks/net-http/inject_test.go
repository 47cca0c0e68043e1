// SPDX-License-Identifier: PostgreSQL

// In front of every handler of net/http's own tests: the middleware, and a fresh key on each POST. The
// handler does not see the key (overlay.py).
package http_test

import (
	"crypto/rand"
	"database/sql"
	"net/http"
	"os"
	"sync"

	_ "github.com/lib/pq"
	"pgonce.internal/once"
	"pgonce.internal/once/oncesql"
)

// At the first POST: some tests count the goroutines that are left of them.
var protect = sync.OnceValue(func() func(http.Handler) http.Handler {
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	db.SetMaxOpenConns(20)
	return oncesql.New(db).Middleware(once.HTTP{Scope: "frameworks", SingleTenant: true})
})

func init() {
	http.Inject = func(next http.Handler) http.Handler {
		inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Idempotency-Key")
			next.ServeHTTP(w, r)
		})
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != "POST" || r.Header.Get("Idempotency-Key") != "" {
				next.ServeHTTP(w, r)
				return
			}
			r.Header.Set("Idempotency-Key", rand.Text())
			protect()(inner).ServeHTTP(w, r)
		})
	}
}
