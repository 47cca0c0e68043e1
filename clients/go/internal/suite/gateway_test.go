// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pgonce.internal/once"
)

// A gateway in front with the same scope: its claim is finished in the transaction of the effect
// (docs/reference/gateway.md, "In front of a client's middleware").

func tenantOf(r *http.Request) string {
	tenant, _ := url.PathUnescape(r.Header.Get("X-Tenant"))
	return tenant
}

// inFront puts a gateway before a service, whose requests go through it from then on.
func inFront(t *testing.T, web *httptest.Server, scope string) {
	t.Helper()
	var made struct {
		Gateway *struct {
			Host string
			Port int
		}
	}
	_, port, _ := strings.Cut(web.Listener.Addr().String(), ":")
	if err := server.ask(&made, "gateway %s %s", scope, port); err != nil {
		t.Fatal(err)
	}
	if made.Gateway == nil {
		t.Skip("the gateway is not built")
	}
	web.URL = fmt.Sprintf("http://%s:%d", made.Gateway.Host, made.Gateway.Port)
}

func (s *site[T]) ask(key, body string) *response {
	s.t.Helper()
	return s.post(key, body, "X-Tenant", "acme", "Content-Type", "application/json")
}

func (s *site[T]) isStored(key, state string, effects int) {
	s.t.Helper()
	var got string
	if err := s.pool.QueryRow(context.Background(), "SELECT state FROM once.intent WHERE key = $1", key).Scan(&got); err != nil || got != state {
		s.t.Fatalf("%s: %s %v, want %s", key, got, err, state)
	}
	s.effects(key, effects)
}

// claimed is what a gateway that has claimed a key would send.
func (s *site[T]) claimed(scope, tenant, key string) []string {
	s.t.Helper()
	var fence int
	err := s.pool.QueryRow(context.Background(), "SELECT fence FROM once.claim($1, $2, once.fingerprint('x'::text, $3), tenant => $3)", scope, key, tenant).Scan(&fence)
	if err != nil {
		s.t.Fatal(err)
	}
	return claimHeaders(scope, tenant, key, strconv.Itoa(fence))
}

func claimHeaders(scope, tenant, key, fence string) []string {
	return []string{"X-Tenant", url.PathEscape(tenant), "Once-Tenant", url.PathEscape(tenant), "Once-Scope", scope, "Once-Key", url.PathEscape(key), "Once-Fence", fence}
}

func TestAGatewaysClaimIsFinishedWithTheEffect(t *testing.T) {
	both(t, func(t *testing.T) { handedOver(t, newPgx, execPgx) }, func(t *testing.T) { handedOver(t, newSQL, execSQL) })
}

func handedOver[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	name := strings.ReplaceAll(t.Name(), "/", "-")
	settings := once.HTTP{Scope: name, Gateway: true, Tenant: tenantOf, AnswerMax: 2000}
	s := newSite(t, main, connect(t, main.URL), exec, settings, func(s *site[T], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		key := strings.TrimPrefix(r.Header.Get("Idempotency-Key"), name)
		var state string
		if err := s.pool.QueryRow(r.Context(), "SELECT state FROM once.peek($1, $2, 'acme')", name, name+key).Scan(&state); err != nil || state != "processing" {
			t.Error(key, state, err)
		}
		if s.runs.Load() > 1 {
			key = "done"
		}
		w.Header().Set("Content-Type", "application/json")
		switch key {
		case "done":
			w.WriteHeader(201)
			_, _ = io.WriteString(w, `{"order":7}`)
		case "taken-back":
			http.Error(w, "out of order", 500)
		case "unknown":
			w.Header().Set("Once-Effect", "unknown")
			w.WriteHeader(502)
		case "refused":
			http.Error(w, "no", 422)
		case "large":
			_, _ = w.Write(bytes.Repeat([]byte("x"), 3000))
		case "large-and-refused":
			http.Error(w, strings.Repeat("x", 3000), 422)
		case "at-commit":
			if err := exec(r.Context(), s.client.Tx(r.Context()), "INSERT INTO gateway_owed VALUES (1)"); err != nil {
				t.Error(err)
			}
		case "caught":
			panic(errApplication)
		case "events":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
			s.effects(name+key, 1)
		}
	}, func(next http.Handler) http.Handler {
		return recovering(next)
	})
	// Its deferred constraint fails by a division, which is what says of a report that it stored nothing.
	for _, sql := range []string{"CREATE TABLE IF NOT EXISTS gateway_owed (n integer)",
		"CREATE OR REPLACE FUNCTION gateway_owed() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW.n / 0; END'", "DROP TRIGGER IF EXISTS owed ON gateway_owed",
		"CREATE CONSTRAINT TRIGGER owed AFTER INSERT ON gateway_owed DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION gateway_owed()"} {
		if _, err := s.pool.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	inFront(t, s.web, name)
	for _, each := range []struct {
		key    string
		status int
		state  string
		again  string // replay, run, or the problem of a retry
	}{
		{"done", 201, "succeeded", "replay"}, {"taken-back", 500, "failed_retryable", "run"}, {"unknown", 502, "in_doubt", "in-doubt"}, {"refused", 422, "failed_final", "replay"},
		{"large", 200, "succeeded", "too-large"}, {"large-and-refused", 422, "succeeded", "too-large"}, {"at-commit", 500, "failed_retryable", "run"},
		{"caught", 500, "failed_retryable", "run"}, {"events", 200, "succeeded", "too-large"},
	} {
		key := name + each.key
		effects := map[bool]int{true: 1, false: 0}[each.status < 300]
		first := s.ask(key, "{}")
		if first.status != each.status || first.header.Get("Idempotency-Replayed") != "" || first.header.Get("Once-Effect") != "" {
			t.Fatalf("%s: %d %v %s", each.key, first.status, first.header, first.body)
		}
		s.isStored(key, each.state, effects)
		again := s.ask(key, "{}")
		switch each.again {
		case "replay":
			s.is(again, each.status, string(first.body), true)
			s.isProblem(s.ask(key, `{"other":1}`), "mismatch")
			s.ran(1)
		case "run":
			s.is(again, 201, `{"order":7}`, false)
			s.effects(key, 1)
			s.ran(2)
		default:
			s.isProblem(again, each.again)
			s.ran(1)
		}
		s.effects(key, max(effects, map[bool]int{true: 1, false: 0}[each.again == "run"]))
	}
}

func TestWithoutTheOptionARequestThatAGatewayHasClaimedIsToldWhatIsWrong(t *testing.T) {
	for _, mode := range []once.Mode{once.TransactionMode, once.LeaseMode} {
		scope := fmt.Sprint("without-", mode)
		s := newSite(t, main, newPgx(t, main.URL), execPgx, once.HTTP{Scope: scope, Tenant: tenantOf, Mode: mode}, func(*site[pgx.Tx], http.ResponseWriter, *http.Request) { t.Error("it ran") })
		inFront(t, s.web, scope)
		for i := 0; i < 2; i++ {
			got := s.ask(scope, "{}")
			var document struct{ Detail string }
			if err := json.Unmarshal(got.body, &document); err != nil || (got.status != 409 && got.status != 422) ||
				!strings.Contains(document.Detail, "A pgonce gateway in front of this service has claimed this key in the same scope: set the option Gateway") {
				t.Fatal(err, got.status, string(got.body))
			}
		}
		if !s.log.has("ERROR", "A pgonce gateway in front") {
			t.Fatal(s.log.out.String())
		}
	}
}

func TestUnderALeaseTheGatewayAloneClaimsAndReports(t *testing.T) {
	s := newSite(t, main, newPgx(t, main.URL), execPgx, once.HTTP{Scope: "leased-in-front", Tenant: tenantOf, Gateway: true, Mode: once.LeaseMode}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
		if _, within := s.client.TxIn(r.Context()); within {
			t.Error("a transaction")
		}
		if s.runs.Load() == 1 {
			w.Header().Set("Once-Effect", "none")
			w.WriteHeader(500)
			return
		}
		fmt.Fprint(w, "charged")
	})
	inFront(t, s.web, "leased-in-front")
	key := "leased-in-front"
	s.is(s.ask(key, "{}"), 500, "", false)
	s.isStored(key, "failed_retryable", 0)
	s.is(s.ask(key, "{}"), 200, "charged", false)
	s.is(s.ask(key, "{}"), 200, "charged", true)
	s.ran(2)
}

func TestTheGatewayReportsWhatAnEffectHandlerReturns(t *testing.T) {
	client := newPgx(t, main.URL)
	runs := 0
	s := newSite(t, main, client, execPgx, once.HTTP{Tenant: tenantOf}, nil) // for its tools
	scope := "effects-in-front"
	settings := once.HTTP{Scope: scope, Tenant: tenantOf, Gateway: true, Logger: s.log.logger()}
	s.web.Config.Handler = recovering(client.EffectHandler(settings, func(r *http.Request) (once.Answer, error) {
		if body, err := io.ReadAll(r.Body); err != nil || string(body) != "{}" {
			t.Error(string(body), err)
		}
		if _, has := r.Context().Deadline(); has {
			t.Error("a deadline")
		}
		if runs++; runs > 1 {
			return once.Text(201, "done"), nil
		}
		switch strings.TrimPrefix(r.Header.Get("Idempotency-Key"), scope) {
		case "done":
			return once.Text(500, "done with 500"), nil
		case "failed":
			return once.Answer{}, once.Fail("declined", "no", once.Text(402, "no"))
		case "failed-with-500":
			return once.Answer{}, once.Fail("declined", "no", once.Text(500, "no"))
		case "not-done":
			return once.Answer{}, once.NotDone(errApplication)
		case "panic":
			panic(errApplication)
		}
		return once.Answer{}, errors.New("who knows")
	}))
	inFront(t, s.web, scope)
	for _, each := range []struct {
		key    string
		status int
		state  string
		again  string
	}{{"done", 500, "succeeded", "replay"}, {"failed", 402, "failed_final", "replay"}, {"failed-with-500", 500, "succeeded", "replay"}, {"not-done", 502, "failed_retryable", "run"}, {"error", 409, "in_doubt", "in-doubt"}, {"panic", 500, "in_doubt", "in-doubt"}} {
		runs = 0
		key := scope + each.key
		first := s.ask(key, "{}")
		if first.status != each.status {
			t.Fatalf("%s: %d %s", each.key, first.status, first.body)
		}
		s.isStored(key, each.state, 0)
		again := s.ask(key, "{}")
		switch {
		case each.again == "replay":
			s.is(again, each.status, string(first.body), true)
		case each.again == "run":
			s.is(again, 201, "done", false)
		default:
			s.isProblem(again, each.again)
		}
		if want := map[bool]int{true: 2, false: 1}[each.again == "run"]; runs != want {
			t.Fatalf("%s ran %d times", each.key, runs)
		}
	}
}

func TestTwoRunsUnderOneFenceHaveOneEffect(t *testing.T) {
	both(t, func(t *testing.T) { oneFence(t, newPgx, execPgx) }, func(t *testing.T) { oneFence(t, newSQL, execSQL) })
}

func oneFence[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	s := newSite(t, at, connect(t, at.URL), exec, once.HTTP{Tenant: tenantOf, Gateway: true}, func(s *site[T], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		w.WriteHeader(map[bool]int{true: 201, false: 422}[r.Header.Get("Idempotency-Key") != "refused"])
		fmt.Fprint(w, "the same")
	})
	for key, status := range map[string]int{"done": 201, "refused": 422} {
		claim := s.claimed("web", "acme", key)
		done := make(chan *response, 3)
		for i := 0; i < cap(done); i++ {
			go func() {
				got, err := s.try(key, "", claim...)
				if err != nil {
					t.Error(err)
				}
				done <- got
			}()
		}
		var all []int
		for i := 0; i < cap(done); i++ {
			all = append(all, (<-done).status)
		}
		if slices.Sort(all); !slices.Equal(all, []int{min(status, 409), 409, max(status, 409)}) {
			t.Fatal(all)
		}
		effects := map[bool]int{true: 1, false: 0}[status == 201]
		s.effects(key, effects)
		// Nor has one whose fence is lost.
		s.isProblem(s.post(key, "", claimHeaders("web", "acme", key, "77")...), "active")
		s.effects(key, effects)
	}
	// Names are read as the gateway writes them.
	key := "100% +&=;, s "
	s.is(s.post(`"`+key+`"`, "", s.claimed("web", "söder & cie ", key)...), 201, "the same", false)
	s.isStored(key, "succeeded", 0)
	s.effects(`"`+key+`"`, 1)
}

func TestHeadersThatDoNotNameThisVeryIntentCountForNothing(t *testing.T) {
	at := newDatabase(t)
	s := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{Tenant: tenantOf, Gateway: true}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
		s.write(r)
	})
	for i, wrong := range [][2]string{{"Once-Key", "other"}, {"Once-Tenant", "zeta"}, {"Once-Scope", "others"}, {"Once-Key", "%"}, {"Once-Fence", "0"}, {"Once-Fence", "1x"}, {"Once-Fence", "+1"},
		{"Once-Fence", "01"}, {"Once-Fence", "-1"}, {"Once-Fence", ""}, {"Once-Fence", strconv.Itoa(math.MaxInt32 + 1)}} {
		key := fmt.Sprint("wrong-", i)
		s.is(s.post(key, "", append(claimHeaders("web", "acme", key, "1"), wrong[0], wrong[1])...), 200, "", false)
		s.isStored(key, "succeeded", 1) // protected by itself
	}
	twice := s.open("POST / HTTP/1.1\r\nHost: x\r\nX-Tenant: acme\r\nIdempotency-Key: twice\r\nOnce-Tenant: acme\r\nOnce-Scope: web\r\nOnce-Key: twice\r\nOnce-Key: twice\r\nOnce-Fence: 1\r\nContent-Length: 0\r\n\r\n")
	if got, err := answerOf(twice); err != nil || got.status != 200 {
		t.Fatal(got, err)
	}
	s.isStored("twice", "succeeded", 1)
	alone := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{Scope: "alone", Gateway: true}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) { s.write(r) })
	alone.is(alone.post("no-tenant", "", "Once-Scope", "alone", "Once-Key", "no-tenant", "Once-Fence", "1"), 200, "", false)
	alone.isProblem(alone.post("an-empty-one", "", "Once-Tenant", "", "Once-Scope", "alone", "Once-Key", "an-empty-one", "Once-Fence", "1"), "active")
	// A forger's own key: nothing is done.
	s.isProblem(s.post("invented", "", claimHeaders("web", "acme", "invented", "1")...), "active")
	s.effects("invented", 0)
}

func TestATenantThatTheDatabaseCannotTakeIsRefused(t *testing.T) {
	at := newDatabase(t)
	s := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{Tenant: tenantOf}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {})
	for _, tenant := range []string{"a\xff", "a\x00", "a\x7f", strings.Repeat("ö", 256)} {
		s.isProblem(s.post("tenant", "", "X-Tenant", url.PathEscape(tenant)), "tenant-missing")
	}
	s.ran(0)
	s.is(s.post("tenant", "", "X-Tenant", url.PathEscape(strings.Repeat("ö", 255))), 200, "", false)
}

// lostCommits are those of spec/cases/faults.json, which every client runs.
func lostCommits(t *testing.T) []struct {
	Name, Commit, Reports, Problem, State string
	Effects                               int
} {
	t.Helper()
	var found struct {
		Commits []struct {
			Name, Commit, Reports, Problem, State string
			Effects                               int
		} `json:"commits_under_a_claim"`
	}
	text, err := os.ReadFile(filepath.Join(root, "spec/cases/faults.json"))
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil || len(found.Commits) == 0 {
		t.Fatal(err)
	}
	return found.Commits
}

func TestACommitUnderAGatewaysClaimThatIsLostFreesTheKeyWhereNothingWasDone(t *testing.T) {
	both(t, func(t *testing.T) { lostHandoff(t, "1 / r.stored", newPgx, execPgx) }, func(t *testing.T) { lostHandoff(t, "commit", newSQL, execSQL) })
}

func lostHandoff[T any](t *testing.T, commit string, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	lossy, address := forwarder(t, at)
	s := newSite(t, at, connect(t, address+asText), exec, once.HTTP{Tenant: tenantOf, Gateway: true}, func(s *site[T], w http.ResponseWriter, r *http.Request) {
		s.write(r)
	})
	for _, each := range lostCommits(t) {
		claim := s.claimed("web", "acme", each.Name)
		fault := lossy.rule(t, "%s %s", each.Commit, commit)
		for i := 0; each.Reports != "" && i < 100; i++ {
			lossy.rule(t, "%s once.fail", each.Reports) // each time that it is tried
		}
		s.isProblem(s.post(each.Name, "", claim...), each.Problem)
		lossy.fired(t, fault)
		var said struct{ Done string }
		if err := lossy.ask(&said, "forget"); err != nil {
			t.Fatal(err)
		}
		s.ran(1)
		s.isStored(each.Name, each.State, each.Effects)
		if each.State == "processing" {
			continue // the gateway's, which notes a doubt
		}
		// Another run under the same fence has no effect: the next claim's is higher.
		s.isProblem(s.post(each.Name, "", claim...), "active")
		s.effects(each.Name, each.Effects)
		if each.State == "failed_retryable" {
			s.is(s.post(each.Name, "", s.claimed("web", "acme", each.Name)...), 200, "", false)
			s.effects(each.Name, 1)
		}
		s.runs.Store(0)
	}
}

func TestATransactionUnderAGatewaysClaimThatTheHandlerEndsIsADoubtOfTheGateways(t *testing.T) {
	scope := "ended-in-front"
	s := newSite(t, main, newPgx(t, main.URL), execPgx, once.HTTP{Scope: scope, Tenant: tenantOf, Gateway: true}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		if _, err := s.client.Tx(r.Context()).Conn().Exec(r.Context(), "COMMIT"); err != nil {
			t.Error(err)
		}
	})
	inFront(t, s.web, scope)
	s.isProblem(s.ask(scope, "{}"), "in-doubt")
	s.isStored(scope, "in_doubt", 1)
	s.isProblem(s.ask(scope, "{}"), "in-doubt")
	s.ran(1)
}
