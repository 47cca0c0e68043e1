// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"pgonce.internal/once"
)

// What the recipe needs.
var bank string

func userOf(r *http.Request) string { return r.Header.Get("X-User") }

func authenticated(next http.Handler) http.Handler { return recovering(next) }

func TestTheRecipeIsTheReadmes(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "clients/go/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(root, "clients/go/internal/suite/recipe_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, recipe, _ := strings.Cut(string(source), "func charge")
	recipe = "func charge" + recipe
	handle := `mux.Handle("/charges", authenticated(db.EffectHandler(once.HTTP{Scope: "charges", Tenant: userOf}, charge)))`
	if !strings.Contains(string(readme), recipe) || !strings.Contains(string(readme), handle) || !strings.Contains(string(source), handle) {
		t.Fatal("README.md shows another recipe than recipe_test.go, which is run")
	}
}

// state, error_code and error_message of an intent.
func reason(t *testing.T, at place, key string) string {
	t.Helper()
	var said string
	if err := owner(t, at).QueryRow(context.Background(), "SELECT concat_ws(' ', state, error_code, error_message) FROM once.intent WHERE key = $1", key).Scan(&said); err != nil {
		t.Fatal(err)
	}
	return said
}

func TestAnEndpointWhoseEffectIsAtAProviderAnswersAsTheGatewayDoes(t *testing.T) {
	at := newDatabase(t)
	var calls atomic.Int32
	var status atomic.Int32
	var later, holding atomic.Bool
	begun, let := make(chan bool), make(chan bool)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if holding.Load() {
			begun <- true
			<-let
		}
		sent, _ := io.ReadAll(r.Body)
		if status.Load() == 0 {
			panic(http.ErrAbortHandler) // no answer
		}
		if later.Load() {
			w.Header().Set("Retry-After", "1")
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Load()))
		fmt.Fprintf(w, `{ "by": %q, "of": %q,  "n": %d}`, r.Header.Get("Idempotency-Key"), sent, calls.Load())
	}))
	defer provider.Close()
	bank = provider.URL
	mux := http.NewServeMux()
	routes(mux, newPgx(t, at.URL))
	service := httptest.NewServer(mux)
	defer service.Close()

	send := func(key, body string) *response {
		t.Helper()
		request, err := http.NewRequest("POST", service.URL+"/charges", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-User", "ann")
		if key != "" {
			request.Header.Set("Idempotency-Key", key)
		}
		got, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		read, err := io.ReadAll(got.Body)
		if err != nil {
			t.Fatal(err)
		}
		return &response{got.StatusCode, got.Header, read}
	}
	replayed := func(r *response) bool { return r.header.Get("Idempotency-Replayed") == "true" }
	isProblem := func(got *response, slug string) {
		t.Helper()
		want := problems[slug]
		var document struct{ Type, Detail, Instance string }
		if err := json.Unmarshal(got.body, &document); err != nil || got.status != want.Status || document.Type != "urn:pgonce:problem:"+slug || document.Detail != want.Detail ||
			len(document.Instance) != len("urn:pgonce:request:")+32 {
			t.Fatalf("%d %s, want %s", got.status, got.body, slug)
		}
		after := ""
		if want.RetryAfter != nil {
			after = fmt.Sprint(*want.RetryAfter)
		}
		if got.header.Get("Retry-After") != after {
			t.Fatalf("%s: Retry-After %q, want %q", slug, got.header.Get("Retry-After"), after)
		}
	}
	ran := func(want int32) {
		t.Helper()
		if got := calls.Swap(0); got != want {
			t.Fatalf("the provider was called %d times, want %d", got, want)
		}
	}

	status.Store(201)
	first, again := send("done", "1"), send("done", "1")
	if first.status != 201 || replayed(first) || !replayed(again) || again.status != 201 || !bytes.Equal(first.body, again.body) ||
		again.header.Get("Content-Type") != "application/json" || !strings.Contains(string(first.body), `"ann/done"`) {
		t.Fatalf("%d %s, %d %s", first.status, first.body, again.status, again.body)
	}
	isProblem(send("done", "2"), "mismatch")
	isProblem(send("", "1"), "key-missing")
	isProblem(send("0193b3c8-7000-7000-8000-000000000000", "1"), "expired")
	ran(1)

	status.Store(402)
	first, again = send("declined", "1"), send("declined", "1")
	if first.status != 402 || replayed(first) || !replayed(again) || again.status != 402 || !bytes.Equal(first.body, again.body) {
		t.Fatalf("%d %s, %d %s", first.status, first.body, again.status, again.body)
	}
	ran(1)

	for _, asks := range []int32{503, 429} {
		key := fmt.Sprint("later-", asks)
		status.Store(asks)
		later.Store(true)
		isProblem(send(key, "1"), "unreached")
		later.Store(false)
		status.Store(201)
		if got := send(key, "1"); got.status != 201 || replayed(got) {
			t.Fatalf("%d %s", got.status, got.body)
		}
		ran(2)
	}

	for _, unclear := range []int32{503, 500, 408, 0} {
		key := fmt.Sprint("unclear-", unclear)
		status.Store(unclear)
		isProblem(send(key, "1"), "in-doubt")
		status.Store(201)
		isProblem(send(key, "1"), "in-doubt")
		ran(1)
		if said := reason(t, at, key); !strings.HasPrefix(said, "in_doubt error ") || (unclear != 0 && !strings.Contains(said, fmt.Sprint(unclear))) {
			t.Fatal(said)
		}
	}

	holding.Store(true)
	running := make(chan *response)
	go func() { running <- send("running", "1") }()
	<-begun
	isProblem(send("running", "1"), "active")
	close(let)
	if got := <-running; got.status != 201 {
		t.Fatal(got.status)
	}
	holding.Store(false)
	ran(1)

	provider.Close()
	isProblem(send("away", "1"), "unreached")
	isProblem(send("away", "1"), "unreached") // it runs again
	if said := reason(t, at, "away"); !strings.HasPrefix(said, "failed_retryable not_done ") {
		t.Fatal(said)
	}
}

func TestAnEndpointOfAnEffectKeepsWhatItsSettingsSay(t *testing.T) {
	at := newDatabase(t)
	db := newPgx(t, at.URL)
	calls := 0
	handler := recovering(db.EffectHandler(once.HTTP{Scope: "large", SingleTenant: true, AnswerMax: 100, Optional: true}, func(r *http.Request) (once.Answer, error) {
		calls++
		if _, there := db.TxIn(r.Context()); there {
			t.Error("a transaction is open")
		}
		answer := once.Text(0, strings.Repeat("x", calls*100))
		answer.Header = http.Header{"Set-Cookie": {"secret"}, "Location": {"/1"}}
		return answer, nil
	}))
	send := func(key string) *httptest.ResponseRecorder {
		request := httptest.NewRequest("POST", "/", strings.NewReader("1"))
		if key != "" {
			request.Header.Set("Idempotency-Key", key)
		}
		answered := httptest.NewRecorder()
		handler.ServeHTTP(answered, request)
		return answered
	}
	small, again := send("small"), send("small")
	if small.Code != 200 || small.Header().Get("Set-Cookie") != "secret" || again.Code != 200 || again.Header().Get("Set-Cookie") != "" ||
		again.Header().Get("Location") != "/1" || again.Body.Len() != 100 || again.Header().Get("Idempotency-Replayed") != "true" {
		t.Fatal(small, again)
	}
	large, again := send("large"), send("large")
	if large.Code != 200 || large.Body.Len() != 200 || again.Code != 409 || !strings.Contains(again.Body.String(), "urn:pgonce:problem:too-large") || calls != 2 {
		t.Fatal(large.Code, again.Code, again.Body)
	}
	if unprotected := send(""); unprotected.Code != 200 || calls != 3 {
		t.Fatal(unprotected.Code)
	}
}

// The first call and its retry differ in nothing but Replayed.
func TestAnOutcomeIsOneErrorTheFirstTimeAndAtTheRetry(t *testing.T) {
	at := newDatabase(t)
	client := newPgx(t, at.URL)
	var calls atomic.Int32
	var fails error
	charge := once.Effect(client, "charges", func(order string) string { return order }, func(ctx context.Context, order string) (map[string]int, error) {
		calls.Add(1)
		return map[string]int{"charge": 17}, fails
	})
	ctx := context.Background()
	for i := 0; i < 3; i++ {
		got, err := charge(ctx, "one")
		if err != nil || got["charge"] != 17 || calls.Load() != 1 {
			t.Fatalf("%v %v, %d calls", got, err, calls.Load())
		}
	}
	fails = once.NotDone(errApplication)
	if _, err := charge(ctx, "two"); !errors.Is(err, errApplication) || errors.Is(err, once.ErrInDoubt) {
		t.Fatalf("%v", err)
	}
	if said := reason(t, at, "two"); said != "failed_retryable not_done out of order" {
		t.Fatal(said)
	}
	fails = nil
	if _, err := charge(ctx, "two"); err != nil {
		t.Fatalf("%v", err)
	}
	long := errors.New("broken off\x00 \xff" + strings.Repeat("é", 5000))
	for _, fails = range []error{errApplication, long} {
		if _, err := charge(ctx, "three"); !errors.Is(err, once.ErrInDoubt) || !errors.Is(err, fails) {
			t.Fatalf("%v", err)
		}
		if said := reason(t, at, "three"); !strings.HasPrefix(said, "in_doubt error "+fails.Error()[:10]) || len(said) > 1100 {
			t.Fatal(said)
		}
		if _, err := charge(ctx, "three"); !errors.Is(err, once.ErrInDoubt) {
			t.Fatalf("%v", err)
		}
		if _, err := owner(t, at).Exec(ctx, "DELETE FROM once.intent WHERE key = 'three'"); err != nil {
			t.Fatal(err)
		}
	}
	fails = fmt.Errorf("charging: %w", once.Fail("declined", "card declined", once.Text(402, "declined")))
	var seen []once.FinalError
	for i := 0; i < 2; i++ {
		_, err := charge(ctx, "four")
		final, is := err.(*once.FinalError)
		if !is || !errors.Is(err, once.ErrFinal) || final.Answer.Replayed != (i == 1) || final.Answer.Fence == 0 {
			t.Fatalf("%#v", err)
		}
		final.Answer.Replayed = false
		final.Answer = once.Answer{Status: final.Answer.Status, Header: final.Answer.Header, Body: final.Answer.Body, Fence: final.Answer.Fence}
		seen = append(seen, *final)
	}
	if fmt.Sprintf("%#v", seen[0]) != fmt.Sprintf("%#v", seen[1]) || seen[0].Code != "declined" || seen[0].Status != 402 {
		t.Fatalf("%#v\n%#v", seen[0], seen[1])
	}
	func() {
		defer func() {
			if recover() != "at once" {
				t.Error("the panic is gone")
			}
		}()
		_, _ = client.Effect(ctx, "charges", "five", 1, func(context.Context) (once.Answer, error) { panic("at once") })
	}()
	if said := reason(t, at, "five"); said != "in_doubt panic at once" {
		t.Fatal(said)
	}
	if _, err := client.Effect(ctx, "charges", "six", 1, func(context.Context) (once.Answer, error) { return once.JSON(200, func() {}), nil }); !errors.Is(err, once.ErrInDoubt) {
		t.Fatal(err)
	}
	if said := reason(t, at, "six"); !strings.HasPrefix(said, "in_doubt answer_not_stored ") {
		t.Fatal(said)
	}
}

func TestWhatIsUnavailableIsLoggedWithItsReasonAndInstance(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	away := newPgx(t, "postgresql://nobody@127.0.0.1:1/nothing")
	settings := once.HTTP{Scope: "orders", SingleTenant: true}
	for _, handler := range []http.Handler{
		away.Middleware(settings)(http.NotFoundHandler()),
		away.EffectHandler(settings, func(*http.Request) (once.Answer, error) { return once.Text(201, ""), nil }),
	} {
		logged.Reset()
		request := httptest.NewRequest("POST", "/orders", strings.NewReader("{}"))
		request.Header.Set("Idempotency-Key", "the-key")
		answered := httptest.NewRecorder()
		handler.ServeHTTP(answered, request)
		var document struct{ Type, Instance string }
		if err := json.Unmarshal(answered.Body.Bytes(), &document); err != nil || document.Type != "urn:pgonce:problem:unavailable" {
			t.Fatal(answered.Body)
		}
		line := logged.String()
		if strings.Count(line, "\n") != 1 || !strings.Contains(line, "connection refused") || !strings.Contains(line, "instance="+document.Instance) || strings.Contains(line, "the-key") {
			t.Fatal(line)
		}
	}
}
