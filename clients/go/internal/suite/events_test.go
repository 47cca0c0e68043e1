// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgonce.internal/once"
)

// As the README shows it: nobody says whose event it is.
func TestAnEventIsOfTheIntentInWhoseAttemptItIsEmitted(t *testing.T) {
	both(t, func(t *testing.T) { caused(t, newPgx) }, func(t *testing.T) { caused(t, newSQL) })
}

func caused[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T]) {
	at := newDatabase(t)
	pool := owner(t, at)
	db := connect(t, at.URL)
	ctx := context.Background()
	emit := func(ctx context.Context, tx T, event once.Event) {
		t.Helper()
		event.Payload = 1
		if _, err := db.Emit(ctx, tx, event); err != nil {
			t.Error(err)
		}
	}
	done := func(_ once.Answer, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	done(db.Run(ctx, "orders", "run", 1, func(ctx context.Context, tx T) (once.Answer, error) {
		emit(ctx, tx, once.Event{Topic: "run"})
		emit(ctx, tx, once.Event{Topic: "explicit", Scope: "carts", Key: "7"})
		emit(ctx, tx, once.Event{Topic: "another tenant's", Tenant: "beta"})
		emit(ctx, tx, once.Event{Topic: "none", OfNoIntent: true})
		// The intent of the inner attempt is that one's.
		_, err := db.Run(ctx, "parts", "inner", 1, func(ctx context.Context, tx T) (once.Answer, error) {
			emit(ctx, tx, once.Event{Topic: "inner"})
			return once.Text(201, ""), nil
		})
		return once.Text(201, ""), err
	}, once.Tenant("acme")))
	request := httptest.NewRequest("POST", "/orders", strings.NewReader("{}"))
	request.Header.Set("Idempotency-Key", "http")
	answered := httptest.NewRecorder()
	db.Middleware(once.HTTP{Scope: "orders", Tenant: func(*http.Request) string { return "acme" }})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		emit(r.Context(), db.Tx(r.Context()), once.Event{Topic: "http"})
		w.WriteHeader(201)
	})).ServeHTTP(answered, request)
	if answered.Code != 201 {
		t.Fatal(answered.Code, answered.Body)
	}
	own := func(ctx context.Context, topic string) error {
		return transaction(pool, at, func(tx T) error {
			emit(ctx, tx, once.Event{Topic: topic})
			return nil
		})
	}
	done(db.Effect(ctx, "orders", "effect", 1, func(ctx context.Context) (once.Answer, error) { return once.Text(201, ""), own(ctx, "effect") }, once.Tenant("acme")))
	lease, _, err := db.Claim(ctx, "orders", "claim", 1, once.Tenant("acme"))
	if err == nil {
		err = own(lease.Context(), "claim")
		lease.Close()
	}
	if err == nil {
		err = own(ctx, "outside")
	}
	if err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(ctx, "SELECT topic || ': ' || concat_ws(' ', nullif(tenant, ''), scope, key) FROM once.outbox ORDER BY topic")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	want := []string{"another tenant's: beta", "claim: acme orders claim", "effect: acme orders effect", "explicit: acme carts 7", "http: acme orders http",
		"inner: parts inner", "none: acme", "outside: ", "run: acme orders run"}
	if err != nil || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("%v\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAMessageWhoseEffectFailsIsNotApplied(t *testing.T) {
	both(t, func(t *testing.T) { consumed(t, newPgx, execPgx) }, func(t *testing.T) { consumed(t, newSQL, execSQL) })
}

func consumed[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	pool := owner(t, at)
	db := connect(t, at.URL)
	ctx := context.Background()
	failing := func(fails error, sql string) error {
		_, err := db.Consume(ctx, "stock", "failing", 1, func(ctx context.Context, tx T) error {
			_ = exec(ctx, tx, sql)
			return fails
		})
		return err
	}
	if err := failing(errApplication, "INSERT INTO effect (key) VALUES ('failing')"); err != errApplication {
		t.Fatal(err)
	}
	if err := failing(nil, "SELECT 1/0"); !errors.Is(err, once.ErrSwallowed) || effects(t, pool, "failing") != 0 {
		t.Fatal(err)
	}
	if err := failing(nil, "SELECT 1"); err != nil {
		t.Fatal(err)
	}
}

func TestADelayedEventIsHeldUntilThen(t *testing.T) {
	both(t, func(t *testing.T) { delayed(t, newPgx) }, func(t *testing.T) { delayed(t, newSQL) })
}

func delayed[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T]) {
	at := newDatabase(t)
	pool := owner(t, at)
	db := connect(t, at.URL)
	ctx := context.Background()
	when := time.Date(2090, 10, 29, 2, 30, 0, 123456000, time.FixedZone("", 3600))
	_, err := db.Run(ctx, "orders", "run", 1, func(ctx context.Context, tx T) (once.Answer, error) {
		_, err := db.Emit(ctx, tx, once.Event{Topic: "later", Payload: 7, NotBefore: when})
		return once.Text(201, ""), err
	}, once.Tenant("acme"))
	if err != nil {
		t.Fatal(err)
	}
	var held time.Time
	var published bool
	err = pool.QueryRow(ctx, `SELECT d.not_before, EXISTS (SELECT FROM once.outbox) FROM once.delayed_event AS d
		WHERE d.topic = 'later' AND d.payload = '7' AND d.tenant = 'acme' AND d.scope = 'orders' AND d.key = 'run'`).Scan(&held, &published)
	if err != nil || !held.Equal(when) || published {
		t.Error(err, held, published)
	}
}

func TestAnEventOfBytesIsOfItsIntentAndHasEachByte(t *testing.T) {
	both(t, func(t *testing.T) { encoded(t, newPgx) }, func(t *testing.T) { encoded(t, newSQL) })
}

func encoded[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T]) {
	at := newDatabase(t)
	pool := owner(t, at)
	db := connect(t, at.URL)
	all := make([]byte, 256)
	for n := range all {
		all[n] = byte(n)
	}
	_, err := db.Run(context.Background(), "orders", "run", 1, func(ctx context.Context, tx T) (once.Answer, error) {
		for topic, payload := range map[string][]byte{"all": all, "empty": nil} {
			if _, err := db.EmitBytes(ctx, tx, once.Event{Topic: topic, Headers: map[string]string{"region": "eu"}}, payload, "application/avro"); err != nil {
				return once.Answer{}, err
			}
		}
		for _, wrong := range []once.Event{{Topic: "wrong", Payload: 7}, {Topic: "wrong", NotBefore: time.Now()}} {
			if _, err := db.EmitBytes(ctx, tx, wrong, all, "application/avro"); err == nil || !strings.Contains(err.Error(), "must not be set") {
				t.Error(err)
			}
		}
		return once.Text(201, ""), nil
	}, once.Tenant("acme"))
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string][]byte{"all": all, "empty": {}} {
		var stored []byte
		err = pool.QueryRow(context.Background(), `SELECT payload_bytes FROM once.outbox WHERE topic = $1 AND content_type = 'application/avro'
			AND headers = '{"region": "eu"}' AND tenant = 'acme' AND scope = 'orders' AND key = 'run'`, topic).Scan(&stored)
		if err != nil || !bytes.Equal(stored, want) {
			t.Error(topic, err, stored)
		}
	}
	var count int
	if err := pool.QueryRow(context.Background(), `SELECT count(*) FROM once.outbox`).Scan(&count); err != nil || count != 2 {
		t.Error(err, count)
	}
}
