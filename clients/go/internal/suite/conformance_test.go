// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pgonce.internal/once"
)

type content struct {
	Text   *string
	JSON   json.RawMessage
	Base64 *string
	Repeat *string
	Count  int
}

func (c content) bytes() ([]byte, bool) {
	switch {
	case c.Text != nil:
		return []byte(*c.Text), true
	case c.Base64 != nil:
		decoded, _ := base64.StdEncoding.DecodeString(*c.Base64)
		return decoded, true
	case c.Repeat != nil:
		return bytes.Repeat([]byte(*c.Repeat), c.Count), true
	}
	return nil, false
}

type answer struct {
	content
	Status     int
	Headers    map[string]string
	ResultType string `json:"result_type"`
	ResultID   string `json:"result_id"`
	Code       string
	Message    string
}

func (a answer) made() once.Answer {
	made := once.Answer{}
	switch {
	case a.JSON != nil:
		made = once.JSON(a.Status, a.JSON)
	case a.Text != nil:
		made = once.Text(a.Status, *a.Text)
	default:
		body, _ := a.bytes()
		made = once.Bytes(a.Status, body)
	}
	made.ResultType, made.ResultID = a.ResultType, a.ResultID
	if a.Headers != nil {
		made.Header = http.Header{}
		for name, value := range a.Headers {
			made.Header.Set(name, value)
		}
	}
	return made
}

type emission struct {
	Topic         string
	Payload       json.RawMessage
	Base64        []byte
	ContentType   string `json:"content_type"`
	AggregateType string `json:"aggregate_type"`
	AggregateID   string `json:"aggregate_id"`

	Scope, Key, Tenant string
}

func (e emission) event() once.Event {
	event := once.Event{Topic: e.Topic, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Scope: e.Scope, Key: e.Key, Tenant: e.Tenant}
	if e.Payload != nil {
		event.Payload = e.Payload
	}
	return event
}

type todo struct {
	SQL       string
	Swallow   string
	Emit      *emission
	EmitBytes *emission `json:"emit_bytes"`
	Lock      *struct {
		Resource string
		WaitMs   int `json:"wait_ms"`
	}
	Is *bool
}

type effect struct {
	Do     []todo
	Answer *answer
	Fail   *answer
	Throw  string
}

type step struct {
	Door, Call, Scope, As, Of, Consumer, Message, SQL, Code, Lock string
	Key                                                           json.RawMessage
	Tenant                                                        string
	Request                                                       json.RawMessage
	Effect                                                        *effect
	Answer                                                        *answer
	LeaseMs                                                       int `json:"lease_ms"`
	RetentionMs                                                   int `json:"retention_ms"`
	Takeover                                                      *bool
	Retryable                                                     *bool
	Expect                                                        json.RawMessage

	Method, Target, Host, Background, Join string
	Headers                                [][]*string
	Body, Result                           *content
	Release                                bool
}

type service struct {
	content
	Status  int
	Headers [][2]string
	Effect  *bool
	Pieces  int
	Hold    bool
	Throw   string
}

type location struct {
	Once, Scope, Tenant, Database, Mode string
	KeySyntax                           string `json:"key_syntax"`
	WaitMs                              int    `json:"wait_ms"`
	ResponseMax                         int    `json:"response_max"`
	BodyMax                             int    `json:"body_max"`
	KeyLength                           int    `json:"key_length"`
	Methods, Headers                    []string
	CanonicalJSON                       bool `json:"canonical_json"`
}

type testCase struct {
	Name     string
	Doors    []string
	Arrange  []string
	Steps    []step
	Location location
	Service  []service
	Runs     *int
	Effects  *int
	Rows     []struct {
		SQL string
		Is  json.RawMessage
	}
}

func load(t *testing.T, name string) []testCase {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "clients/conformance", name))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []testCase }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) == 0 {
		t.Fatal("no cases")
	}
	return file.Cases
}

type problemRow struct {
	Status     int
	Title      string
	Detail     string
	RetryAfter *int `json:"retry_after"`
}

var problems = func() map[string]problemRow {
	text, err := os.ReadFile(filepath.Join(root, "spec/problems.json"))
	if err != nil {
		panic(err)
	}
	var file struct{ Problems map[string]problemRow }
	if err := json.Unmarshal(text, &file); err != nil {
		panic(err)
	}
	return file.Problems
}()

// runner runs one case through one door.
type runner[T any] struct {
	t      *testing.T
	it     testCase
	client *once.Client[T]
	away   *once.Client[T]
	exec   execer[T]
	at     place
	owner  *pgxpool.Pool
	leases map[string]*once.Lease
	held   map[string]pgx.Tx

	runs     int
	counting sync.Mutex
	begun    chan struct{}
	let      chan struct{}
	released bool
	web      *httptest.Server
	waiting  map[string]chan *response
}

type response struct {
	status int
	header http.Header
	body   []byte
}

func (r *runner[T]) fatalf(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf(format, args...)
}

func text(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

func (r *runner[T]) key(s step) string {
	if s.Key == nil {
		return r.it.Name
	}
	var key string
	_ = json.Unmarshal(s.Key, &key)
	return key
}

// A scope that is given and empty stays so.
func scopeOf(s step, raw json.RawMessage) string {
	var given struct{ Scope *string }
	_ = json.Unmarshal(raw, &given)
	if given.Scope != nil {
		return *given.Scope
	}
	return "conformance"
}

func (s *step) UnmarshalJSON(raw []byte) error {
	type plain step
	if err := json.Unmarshal(raw, (*plain)(s)); err != nil {
		return err
	}
	s.Scope = scopeOf(*s, raw)
	return nil
}

func (r *runner[T]) request(s step) any {
	if s.Request == nil {
		return map[string]string{"case": r.it.Name}
	}
	var given struct {
		content
		HTTP *struct {
			Method, Target, Text string
			ContentType          string `json:"content_type"`
		}
	}
	if err := json.Unmarshal(s.Request, &given); err != nil {
		r.fatalf("request: %v", err)
	}
	switch {
	case given.HTTP != nil:
		return once.HTTPRequest{Method: given.HTTP.Method, Target: given.HTTP.Target, ContentType: given.HTTP.ContentType, Body: []byte(given.HTTP.Text)}
	case given.Text != nil:
		return *given.Text
	case given.Base64 != nil:
		body, _ := given.bytes()
		return body
	default:
		return given.JSON
	}
}

func (r *runner[T]) do(ctx context.Context, tx T, s step) (once.Answer, error) {
	if s.Effect == nil {
		done := "done"
		return answer{Status: 201, content: content{Text: &done}}.made(), r.exec(ctx, tx, "INSERT INTO effect (key) VALUES ($1)", r.it.Name)
	}
	for _, each := range s.Effect.Do {
		var err error
		switch {
		case each.SQL != "":
			err = r.exec(ctx, tx, each.SQL)
		case each.Swallow != "":
			_ = r.exec(ctx, tx, each.Swallow)
		case each.Emit != nil:
			_, err = r.client.Emit(ctx, tx, each.Emit.event())
		case each.EmitBytes != nil:
			_, err = r.client.EmitBytes(ctx, tx, each.EmitBytes.event(), each.EmitBytes.Base64, each.EmitBytes.ContentType)
		case each.Lock != nil:
			var taken bool
			taken, err = r.client.Lock(ctx, tx, each.Lock.Resource, time.Duration(each.Lock.WaitMs)*time.Millisecond)
			if err == nil && taken != *each.Is {
				err = fmt.Errorf("lock: %v", taken)
			}
		default:
			r.fatalf("an effect that this runner does not know")
		}
		if err != nil {
			return once.Answer{}, err
		}
	}
	switch {
	case s.Effect.Throw != "":
		return once.Answer{}, errApplication
	case s.Effect.Fail != nil:
		return once.Answer{}, once.Fail(s.Effect.Fail.Code, s.Effect.Fail.Message, s.Effect.Fail.made())
	case s.Effect.Answer != nil:
		return s.Effect.Answer.made(), nil
	}
	return once.Answer{}, nil
}

type outcome struct {
	verdict string
	answer  *once.Answer
	is      *bool
	fence   int
	err     error
}

func (r *runner[T]) call(s step) outcome {
	ctx := context.Background()
	opts := []once.Option{once.Tenant(s.Tenant)}
	switch s.Call {
	case "run":
		got, err := r.client.Run(ctx, s.Scope, r.key(s), r.request(s), func(ctx context.Context, tx T) (once.Answer, error) { return r.do(ctx, tx, s) }, opts...)
		return outcome{answer: &got, err: err}
	case "effect":
		got, err := r.client.Effect(ctx, s.Scope, r.key(s), r.request(s), func(context.Context) (once.Answer, error) {
			result, _ := s.Result.bytes()
			return once.JSON(0, string(result)), nil
		}, opts...)
		return outcome{answer: &got, err: err}
	case "claim":
		if s.LeaseMs > 0 {
			opts = append(opts, once.LeaseFor(time.Duration(s.LeaseMs)*time.Millisecond))
		}
		if s.RetentionMs > 0 {
			opts = append(opts, once.Retention(time.Duration(s.RetentionMs)*time.Millisecond))
		}
		if s.Takeover != nil {
			opts = append(opts, once.Takeover(*s.Takeover))
		}
		lease, got, err := r.client.Claim(ctx, s.Scope, r.key(s), r.request(s), opts...)
		if lease == nil {
			return outcome{answer: got, err: err}
		}
		r.leases[s.As] = lease
		return outcome{verdict: lease.Verdict, fence: lease.Fence}
	case "complete", "fail", "release", "renew":
		lease := r.leases[s.Of]
		var is bool
		var err error
		switch {
		case s.Call == "complete":
			is, err = lease.Complete(ctx, s.Answer.made())
		case s.Call == "release":
			is, err = lease.Release(ctx)
		case s.Call == "renew":
			is, err = lease.Renew(ctx)
		case s.Retryable == nil:
			is, err = lease.Doubt(ctx, s.Code, s.Message)
		case *s.Retryable:
			is, err = lease.FailRetryable(ctx, s.Code, s.Message)
		default:
			is, err = lease.Fail(ctx, once.Fail(s.Code, s.Message, s.Answer.made()))
		}
		return outcome{is: &is, err: err}
	case "receive":
		applied, err := r.client.Consume(ctx, s.Consumer, s.Message, r.request(s), func(ctx context.Context, tx T) error {
			_, err := r.do(ctx, tx, s)
			return err
		}, opts...)
		if err != nil {
			return outcome{err: err}
		}
		// The same in a transaction of the caller's own.
		again := true
		err = r.transaction(func(tx T) (err error) {
			again, err = r.client.Receive(ctx, tx, s.Consumer, s.Message, r.request(s), opts...)
			return err
		})
		if again {
			r.fatalf("it is to be applied again")
		}
		return outcome{verdict: map[bool]string{true: "process", false: "duplicate"}[applied], err: err}
	}
	r.fatalf("a call that this runner does not know: %q", s.Call)
	return outcome{}
}

// A transaction of the caller's own.
func (r *runner[T]) transaction(work func(tx T) error) error {
	switch work := any(work).(type) {
	case func(pgx.Tx) error:
		return pgx.BeginFunc(context.Background(), r.owner, work)
	default:
		return inSQL(r.at, any(work))
	}
}

var codes = []*once.Error{once.ErrScopeRequired, once.ErrKeyMalformed, once.ErrMismatch, once.ErrRefused, once.ErrCompletionRefused, once.ErrFailureRefused,
	once.ErrActive, once.ErrInDoubt, once.ErrExpired, once.ErrMessageMismatch, once.ErrEventMismatch, once.ErrTooLarge, once.ErrSwallowed}

func (r *runner[T]) compareError(err error, raw json.RawMessage) {
	r.t.Helper()
	var want struct {
		Code, SQLState string
		Status         *int
		Retryable      *bool
		Answer         *answer
	}
	if e := json.Unmarshal(raw, &want); e != nil {
		r.fatalf("%v", e)
	}
	if err == nil {
		r.fatalf("no error: want %s", raw)
	}
	if want.Code == "application" {
		if err != errApplication {
			r.fatalf("%v is not the application's own error", err)
		}
		return
	}
	var code, state string
	var status int
	var retryable bool
	var final *once.FinalError
	var known *once.Error
	switch {
	case errors.As(err, &final):
		code, state, status, retryable = "final_failure", final.SQLState, final.Status, final.Retryable
		if want.Answer != nil {
			r.compareAnswer(final.Answer, *want.Answer)
		}
	case errors.As(err, &known):
		code, state, status, retryable = known.Code, known.SQLState, known.Status, known.Retryable
		found := false
		for _, each := range codes {
			found = found || (errors.Is(err, each) && each.Code == code)
		}
		if !found {
			r.fatalf("%v is none of the Err values", err)
		}
	default:
		r.fatalf("an untyped error: %v", err)
	}
	if want.Code != "" && code != want.Code || want.SQLState != "" && state != want.SQLState || want.Status != nil && status != *want.Status ||
		want.Retryable != nil && retryable != *want.Retryable {
		r.fatalf("error %s %s %d %v (%v), want %s", code, state, status, retryable, err, raw)
	}
}

func (r *runner[T]) compareAnswer(got once.Answer, want answer) {
	r.t.Helper()
	if want.Status != 0 && got.Status != want.Status {
		r.fatalf("status %d, want %d", got.Status, want.Status)
	}
	for name, value := range want.Headers {
		if all := got.Header.Values(name); len(all) != 1 || all[0] != value {
			r.fatalf("header %s is %q, want %q", name, all, value)
		}
	}
	r.compareBody(got.Body, want.content)
	if want.ResultType != "" && got.ResultType != want.ResultType || want.ResultID != "" && got.ResultID != want.ResultID {
		r.fatalf("result %s %s, want %s %s", got.ResultType, got.ResultID, want.ResultType, want.ResultID)
	}
}

func (r *runner[T]) compareBody(got []byte, want content) {
	r.t.Helper()
	if body, any := want.bytes(); any && !bytes.Equal(got, body) {
		r.fatalf("body %q, want %q", got, body)
	}
	if want.JSON != nil && !sameJSON(got, want.JSON) {
		r.fatalf("body %s, want %s", got, want.JSON)
	}
}

func sameJSON(a, b []byte) bool {
	var left, right any
	return json.Unmarshal(a, &left) == nil && json.Unmarshal(b, &right) == nil && reflect.DeepEqual(left, right)
}

func (r *runner[T]) compare(got outcome, raw json.RawMessage) {
	r.t.Helper()
	if raw == nil {
		return
	}
	var want struct {
		Error, Result json.RawMessage
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		r.fatalf("%v", err)
	}
	if want.Error != nil {
		r.compareError(got.err, want.Error)
		return
	}
	if got.err != nil {
		r.fatalf("error %v, want %s", got.err, raw)
	}
	var result struct {
		answer
		Replayed   *bool
		Verdict    string
		FenceAbove string `json:"fence_above"`
		Is         *bool
	}
	if err := json.Unmarshal(want.Result, &result); err != nil {
		r.fatalf("%v", err)
	}
	if result.Verdict != got.verdict {
		r.fatalf("verdict %q, want %q", got.verdict, result.Verdict)
	}
	if result.FenceAbove != "" && got.fence <= r.leases[result.FenceAbove].Fence {
		r.fatalf("fence %d is not above that of %s", got.fence, result.FenceAbove)
	}
	if result.Is != nil && *got.is != *result.Is {
		r.fatalf("is %v, want %v", *got.is, *result.Is)
	}
	if result.Replayed != nil {
		if got.answer.Replayed != *result.Replayed {
			r.fatalf("replayed %v", got.answer.Replayed)
		}
	}
	if got.answer != nil {
		r.compareAnswer(*got.answer, result.answer)
	}
}

func (r *runner[T]) sqlStep(s step) {
	ctx := context.Background()
	switch s.Call {
	case "sql":
		if _, err := r.owner.Exec(ctx, s.SQL); err != nil {
			r.fatalf("%s: %v", s.SQL, err)
		}
	case "hold":
		tx, err := r.owner.Begin(ctx)
		if err != nil {
			r.fatalf("%v", err)
		}
		r.held[s.As] = tx
		_, err = tx.Exec(ctx, "SELECT once.start($1, $2, once.fingerprint($3::jsonb, $4), $4)", s.Scope, r.key(s), fmt.Sprintf(`{"case": %q}`, r.it.Name), s.Tenant)
		if err == nil && s.Lock != "" {
			_, err = tx.Exec(ctx, "SELECT once.lock($1, interval '1 s')", s.Lock)
		}
		if err != nil {
			r.fatalf("hold: %v", err)
		}
	case "unhold":
		if err := r.held[s.Of].Rollback(ctx); err != nil {
			r.fatalf("%v", err)
		}
		delete(r.held, s.Of)
	default:
		r.compare(r.call(s), s.Expect)
	}
}

// ---- the middleware ----

func (r *runner[T]) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.counting.Lock()
	r.runs++
	execution := r.runs
	spec := service{}
	if len(r.it.Service) > 0 {
		spec = r.it.Service[min(execution, len(r.it.Service))-1]
	}
	r.counting.Unlock()
	if _, err := io.ReadAll(req.Body); err != nil {
		panic(err)
	}
	if spec.Hold {
		r.begun <- struct{}{}
		<-r.let
	}
	if tx, ok := r.client.TxIn(req.Context()); ok && (spec.Effect == nil || *spec.Effect) {
		if err := r.exec(req.Context(), tx, "INSERT INTO effect (key, attempt) VALUES ($1, $2)", r.it.Name, execution); err != nil {
			panic(err)
		}
	}
	if spec.Throw != "" {
		panic(errApplication)
	}
	if spec.Headers == nil {
		spec.Headers = [][2]string{{"Content-Type", "application/json"}}
	}
	for _, pair := range spec.Headers {
		w.Header().Add(pair[0], pair[1])
	}
	body, given := spec.bytes()
	if !given {
		body = []byte(fmt.Sprintf(`{"execution": %d}`, execution))
	}
	if spec.Status == 0 {
		spec.Status = 201
	}
	w.WriteHeader(spec.Status)
	for pieces := max(spec.Pieces, 1); pieces > 0 && len(body) > 0; pieces-- {
		n := max(len(body)/pieces, 1)
		if pieces == 1 {
			n = len(body)
		}
		if _, err := w.Write(body[:n]); err != nil {
			return
		}
		body = body[n:]
	}
}

// As a framework answers what a handler throws.
func recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				http.Error(w, "Internal Server Error", 500)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

func (r *runner[T]) serve() {
	l := r.it.Location
	settings := once.HTTP{Scope: "conformance", Optional: l.Once == "on", Methods: l.Methods, StrictKeys: l.KeySyntax == "strict", KeyLengthMax: l.KeyLength,
		Wait: time.Duration(l.WaitMs) * time.Millisecond, BodyMax: l.BodyMax, AnswerMax: l.ResponseMax, Headers: l.Headers, CanonicalJSON: l.CanonicalJSON,
		Logger: (&logged{}).logger()}
	if l.Scope != "" {
		settings.Scope = l.Scope
	}
	if l.Mode == "lease" {
		settings.Mode = once.LeaseMode
	}
	if l.Tenant == "none" {
		settings.SingleTenant = true
	} else {
		settings.Tenant = func(req *http.Request) string { return req.Header.Get("X-Tenant") }
	}
	client := r.client
	if l.Database == "away" {
		client = r.away
	}
	r.web = httptest.NewServer(recovering(client.Middleware(settings)(r)))
	r.t.Cleanup(r.web.Close)
}

// Byte by byte as the case says, over a real connection.
func (r *runner[T]) send(s step, address string) *response {
	type header struct{ name, value string }
	headers := []header{{"X-Tenant", "acme"}, {"Content-Type", "application/json"}}
	for _, pair := range s.Headers {
		kept := headers[:0:0]
		for _, each := range headers {
			if !strings.EqualFold(each.name, *pair[0]) {
				kept = append(kept, each)
			}
		}
		headers = kept
		if pair[1] != nil {
			headers = append(headers, header{*pair[0], *pair[1]})
		}
	}
	var keys []string
	switch {
	case s.Key == nil:
		keys = []string{`"` + r.it.Name + `"`}
	case s.Key[0] == '[':
		_ = json.Unmarshal(s.Key, &keys)
	case string(s.Key) != "null":
		keys = []string{r.key(s)}
	}
	for _, key := range keys {
		headers = append(headers, header{"Idempotency-Key", key})
	}
	body := []byte(`{"amount": 100}`)
	if s.Body != nil {
		body, _ = s.Body.bytes()
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s /%s%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", text(s.Method, "POST"), r.it.Name, s.Target, text(s.Host, "shop.test"))
	for _, each := range headers {
		fmt.Fprintf(&out, "%s: %s\r\n", each.name, each.value)
	}
	fmt.Fprintf(&out, "Content-Length: %d\r\n\r\n%s", len(body), body)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		r.t.Error(err)
		return &response{}
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := conn.Write(out.Bytes()); err != nil {
		r.t.Error(err)
		return &response{}
	}
	read, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: text(s.Method, "POST")})
	if err != nil {
		r.t.Error(err)
		return &response{}
	}
	content, err := io.ReadAll(read.Body)
	if err != nil {
		r.t.Error(err)
	}
	return &response{read.StatusCode, read.Header, content}
}

func (r *runner[T]) compareResponse(got *response, raw json.RawMessage) {
	r.t.Helper()
	if raw == nil {
		return
	}
	var want struct {
		content
		Status        int
		Headers       map[string]string
		Absent        []string
		Replayed      *bool
		Problem, More string
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		r.fatalf("%v", err)
	}
	if want.Problem != "" {
		p := problems[want.Problem]
		detail := p.Detail
		if want.More != "" {
			detail += " " + want.More
		}
		var document struct {
			Type, Title, Detail, Instance string
			Status                        int
			Retryable                     bool
		}
		if err := json.Unmarshal(got.body, &document); err != nil {
			r.fatalf("status %d, %q is no problem, want %s", got.status, got.body, want.Problem)
		}
		title, _ := json.Marshal(p.Title)
		quoted := bytes.Buffer{}
		encoder := json.NewEncoder(&quoted)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(detail)
		expected := fmt.Sprintf(`{"type":"urn:pgonce:problem:%s","title":%s,"status":%d,"detail":%s,"instance":"%s","retryable":%v}`,
			want.Problem, title, p.Status, strings.TrimSpace(quoted.String()), document.Instance, p.RetryAfter != nil)
		if string(got.body) != expected || got.status != p.Status || !regexp.MustCompile("^urn:pgonce:request:[0-9a-f]{32}$").MatchString(document.Instance) {
			r.fatalf("status %d, document\n%s\nwant\n%s", got.status, got.body, expected)
		}
		after := ""
		if p.RetryAfter != nil {
			after = strconv.Itoa(*p.RetryAfter)
		}
		if got.header.Get("Content-Type") != "application/problem+json" || got.header.Get("Cache-Control") != "no-store" || got.header.Get("Retry-After") != after || got.header.Get("Idempotency-Replayed") != "" {
			r.fatalf("headers of the problem: %v", got.header)
		}
	}
	if want.Status != 0 && got.status != want.Status {
		r.fatalf("status %d, want %d: %s", got.status, want.Status, got.body)
	}
	for name, value := range want.Headers {
		if all := got.header.Values(name); len(all) != 1 || all[0] != value {
			r.fatalf("header %s is %q, want %q", name, all, value)
		}
	}
	for _, name := range want.Absent {
		if all, there := got.header[http.CanonicalHeaderKey(name)]; there {
			r.fatalf("header %s is there: %q", name, all)
		}
	}
	if want.Replayed != nil && (got.header.Get("Idempotency-Replayed") == "true") != *want.Replayed {
		r.fatalf("replayed is not %v: %v", *want.Replayed, got.header)
	}
	r.compareBody(got.body, want.content)
}

func (r *runner[T]) httpStep(s step, address string) {
	switch {
	case s.Call == "sql" || (s.SQL != "" && s.Call == ""):
		if _, err := r.owner.Exec(context.Background(), s.SQL); err != nil {
			r.fatalf("%v", err)
		}
	case s.Release:
		r.released = true
		close(r.let)
	case s.Join != "":
		r.compareResponse(<-r.waiting[s.Join], s.Expect)
	case s.Background != "":
		done := make(chan *response, 1)
		r.waiting[s.Background] = done
		go func() { done <- r.send(s, address) }()
		if len(r.waiting) == 1 { // only the first one runs
			<-r.begun
		}
	default:
		r.compareResponse(r.send(s, address), s.Expect)
	}
}

func (r *runner[T]) finish() {
	ctx := context.Background()
	for _, rows := range r.it.Rows {
		var got []byte
		err := r.owner.QueryRow(ctx, "SELECT coalesce(json_agg(to_jsonb(array_to_json(ARRAY[v]))), '[]')::text FROM (SELECT 1) AS v").Scan(&got)
		if err != nil {
			r.fatalf("%v", err)
		}
		found := [][]any{}
		queried, err := r.owner.Query(ctx, rows.SQL)
		if err != nil {
			r.fatalf("%v", err)
		}
		for queried.Next() {
			values, err := queried.Values()
			if err != nil {
				r.fatalf("%v", err)
			}
			found = append(found, values)
		}
		if queried.Err() != nil {
			r.fatalf("%v", queried.Err())
		}
		said, _ := json.Marshal(found)
		if !sameJSON(said, rows.Is) {
			r.fatalf("%s: %s, want %s", rows.SQL, said, rows.Is)
		}
	}
	if r.it.Runs != nil && r.runs != *r.it.Runs {
		r.fatalf("the service ran %d times, want %d", r.runs, *r.it.Runs)
	}
	if r.it.Effects != nil {
		var effects int
		if err := r.owner.QueryRow(ctx, "SELECT count(*) FROM effect WHERE key = $1", r.it.Name).Scan(&effects); err != nil || effects != *r.it.Effects {
			r.fatalf("%d effects (%v), want %d", effects, err, *r.it.Effects)
		}
	}
}

func mine(it testCase) bool {
	for _, door := range it.Doors {
		if door == "client" || door == "go" {
			return true
		}
	}
	return len(it.Doors) == 0
}

func conform[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) map[string]string {
	results := map[string]string{}
	away := connect(t, "postgresql://nobody@127.0.0.1:1/nothing")
	for _, file := range []string{"sql", "http", "cross"} {
		at := newDatabase(t)
		if file == "cross" {
			at = main // that the gateway is for
			if _, err := owner(t, at).Exec(context.Background(), "TRUNCATE effect"); err != nil {
				t.Fatal(err)
			}
		}
		client, pool := connect(t, at.URL), owner(t, at)
		for _, it := range load(t, file+".json") {
			if !mine(it) {
				continue
			}
			name := file + "/" + it.Name
			passed := t.Run(name, func(t *testing.T) {
				r := &runner[T]{t: t, it: it, client: client, away: away, exec: exec, at: at, owner: pool, leases: map[string]*once.Lease{}, held: map[string]pgx.Tx{},
					begun: make(chan struct{}, 10), let: make(chan struct{}), waiting: map[string]chan *response{}}
				defer func() {
					for _, tx := range r.held {
						_ = tx.Rollback(context.Background())
					}
					if !r.released {
						close(r.let)
					}
				}()
				for _, sql := range it.Arrange {
					if _, err := pool.Exec(context.Background(), sql); err != nil {
						t.Fatal(err)
					}
				}
				if file != "sql" {
					r.serve()
				}
				if file == "cross" {
					// Each door's run has keys of its own.
					wipe(t, pool, it.Name)
				}
				for i, s := range it.Steps {
					t.Logf("step %d", i)
					switch {
					case file == "sql", s.Door == "run":
						r.sqlStep(s)
					case s.Door == "sql":
						r.plain(s)
					case s.Door == "gateway":
						if at.Gateway == nil {
							t.Skip("the gateway is not built")
						}
						r.httpStep(s, fmt.Sprintf("%s:%d", at.Gateway.Host, at.Gateway.Port))
					default:
						r.httpStep(s, r.web.Listener.Addr().String())
					}
				}
				r.finish()
			})
			results[name] = "pass"
			if !passed {
				results[name] = "fail"
			}
		}
	}
	return results
}

func wipe(t *testing.T, pool *pgxpool.Pool, key string) {
	if _, err := pool.Exec(context.Background(), "DELETE FROM once.intent WHERE key = $1", key); err != nil {
		t.Fatal(err)
	}
}

// plain is the door "sql": the contract by hand.
func (r *runner[T]) plain(s step) {
	ctx := context.Background()
	request := r.request(s).(once.HTTPRequest)
	tx, err := r.owner.Begin(ctx)
	if err != nil {
		r.fatalf("%v", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	var fingerprint, body []byte
	var verdict string
	var status *int32
	err = tx.QueryRow(ctx, `SELECT f, s.verdict, s.response_status, s.response_body FROM once.request_fingerprint($1, $2, $3, $4::bytea, $5) AS f,
		once.try_start($6, $7, f, $5) AS s`, request.Method, request.Target, request.ContentType, request.Body, s.Tenant, s.Scope, r.key(s)).
		Scan(&fingerprint, &verdict, &status, &body)
	if err != nil {
		r.fatalf("%v", err)
	}
	var got outcome
	switch {
	case verdict == "replay_success":
		got.answer = &once.Answer{Replayed: true, Status: int(*status), Body: body}
	case verdict == "proceed" && s.Effect != nil && s.Effect.Fail != nil:
		fail := s.Effect.Fail
		headers, _ := json.Marshal(fail.Headers)
		_, err = tx.Exec(ctx, `SELECT once.finish($1, $2, $3::bytea, $4, response_text => $5, response_headers => $6::text::jsonb, state => 'failed_final',
			error_code => $7, error_message => $8, tenant => $9)`, s.Scope, r.key(s), fingerprint, fail.Status, *fail.Text, string(headers), fail.Code, fail.Message, s.Tenant)
		if err == nil {
			err = tx.Commit(ctx)
		}
		if err != nil {
			r.fatalf("%v", err)
		}
		got.err = once.Fail(fail.Code, fail.Message, fail.made())
	case verdict == "mismatch":
		got.err = once.ErrMismatch
	default:
		r.fatalf("plain SQL: %s", verdict)
	}
	r.compare(got, s.Expect)
}

func TestConformance(t *testing.T) {
	results := map[string]string{}
	t.Run("pgx", func(t *testing.T) {
		for name, result := range conform(t, newPgx, execPgx) {
			results[name] = result
		}
	})
	t.Run("sql", func(t *testing.T) {
		for name, result := range conform(t, newSQL, execSQL) {
			if results[name] == "pass" {
				results[name] = result
			}
		}
	})
	directory := os.Getenv("PGONCE_CONFORMANCE_RESULTS")
	if directory == "" {
		return
	}
	out, _ := json.MarshalIndent(map[string]any{"door": "go", "results": results}, "", " ")
	if err := os.WriteFile(filepath.Join(directory, "go.json"), append(out, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
