// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheVersionIsTheReleases(t *testing.T) {
	found := regexp.MustCompile(`(?m)^\s*version: '([^']+)'`).FindStringSubmatch(read(t, "meson.build"))
	if found == nil || found[1] != Version {
		t.Fatalf("Version is %s, meson.build has %v", Version, found)
	}
}

// Problem documents are those of spec/problems.json, byte for byte.
func TestProblemsOfTheSpec(t *testing.T) {
	var file struct {
		Cases []struct{ Problem, More, Document string }
	}
	if err := json.Unmarshal([]byte(read(t, "spec/problems.json")), &file); err != nil || len(file.Cases) < 5 {
		t.Fatal(err, len(file.Cases))
	}
	named := map[string]problem{problemActive.slug: problemActive, problemKeyMalformed.slug: problemKeyMalformed}
	for _, each := range file.Cases {
		if got := string(named[each.Problem].document("", each.More, "0123456789abcdef0123456789abcdef")); got != each.Document {
			t.Errorf("%s\nwant\n%s", got, each.Document)
		}
	}
}

// A base that would break the document is refused when it is set.
func TestBasesOfTheSpec(t *testing.T) {
	var file struct {
		Bases struct{ Good, Bad []string } `json:"type_bases"`
	}
	if err := json.Unmarshal([]byte(read(t, "spec/problems.json")), &file); err != nil || len(file.Bases.Bad) < 10 {
		t.Fatal(err, len(file.Bases.Bad))
	}
	panics := func(base string) (caught any) {
		defer func() { caught = recover() }()
		(&Client[int]{}).Middleware(HTTP{Scope: "orders", SingleTenant: true, ProblemBase: base})
		return nil
	}
	for _, base := range file.Bases.Good {
		if what := panics(base); what != nil {
			t.Errorf("%q: %v", base, what)
		}
	}
	for _, base := range file.Bases.Bad {
		if base != "" && panics(base) == nil { // "" is the default
			t.Errorf("%q is taken", base)
		}
	}
}

// What an answer says of its effect is what spec/statuses.json says.
func TestStatusesOfTheSpec(t *testing.T) {
	var file struct {
		Cases []struct {
			Statuses               []int
			Headers                []string
			Said                   *string
			Transaction, Elsewhere string
		}
	}
	if err := json.Unmarshal([]byte(read(t, "spec/statuses.json")), &file); err != nil || len(file.Cases) < 20 {
		t.Fatal(err, len(file.Cases))
	}
	named := map[ending]string{endDone: "stored", endFinal: "refused", endRelease: "released", endDoubt: "in_doubt"}
	for _, each := range file.Cases {
		header := http.Header{}
		for _, name := range each.Headers {
			header.Set(name, "1")
		}
		said := ""
		if each.Said != nil {
			said = saidOf([]string{*each.Said})
		}
		for _, status := range each.Statuses {
			if got := named[meaning(status, said, header)]; got != each.Transaction {
				t.Errorf("%d %v in the transaction: %s, want %s", status, each, got, each.Transaction)
			}
			if got := named[elsewhere(status, said, header)]; got != each.Elsewhere {
				t.Errorf("%d %v elsewhere: %s, want %s", status, each, got, each.Elsewhere)
			}
		}
	}
}

func TestKeysAreReadByTheGatewaysGrammar(t *testing.T) {
	var file struct {
		Keys []struct {
			Header       string
			Key, Refused *string
		}
	}
	if err := json.Unmarshal([]byte(read(t, "spec/vectors/keys.json")), &file); err != nil || len(file.Keys) == 0 {
		t.Fatal(err, len(file.Keys))
	}
	for _, each := range file.Keys {
		key, err := KeyOfHeader(each.Header, true, 0)
		switch isString := strings.HasPrefix(strings.TrimLeft(each.Header, " "), `"`); {
		case isString && each.Key != nil && (err != nil || key != *each.Key):
			t.Errorf("%q, strict: %q, %v", each.Header, key, err)
		case !isString && errors.Unwrap(err) != keyNotAString && (each.Refused == nil || errors.Unwrap(err).Error() != *each.Refused):
			t.Errorf("%q, strict: %q, %v", each.Header, key, err)
		}
		key, err = KeyOfHeader(each.Header, false, 0)
		switch {
		case each.Key != nil && (err != nil || key != *each.Key):
			t.Errorf("%q: %q, %v", each.Header, key, err)
		case each.Refused != nil && (!errors.Is(err, ErrKeyMalformed) || errors.Unwrap(err).Error() != *each.Refused):
			t.Errorf("%q: %q, %v; want %s", each.Header, key, errors.Unwrap(err), *each.Refused)
		}
	}
}

func TestFingerprintsThatTheClientComputesAreThoseOfTheVectors(t *testing.T) {
	type vector struct {
		Tenant, Method, Target, Fingerprint string
		ContentType                         *string `json:"content_type"`
		Text, Base64                        *string
		CanonicalJSON                       bool `json:"canonical_json"`
	}
	var file struct {
		Salts           map[string]string
		Requests, Bytes []vector
	}
	if err := json.Unmarshal([]byte(read(t, "spec/vectors/fingerprints.json")), &file); err != nil {
		t.Fatal(err)
	}
	compared := 0
	same := func(each vector, request any) {
		salt, _ := hex.DecodeString(file.Salts[each.Tenant])
		if got := hex.EncodeToString(fingerprintOf(salt, hashedOf(request))); got != each.Fingerprint {
			t.Errorf("%+v: %s", each, got)
		}
		compared++
	}
	bodyOf := func(each vector) []byte {
		body, _ := base64.StdEncoding.DecodeString(value(each.Base64))
		if each.Text != nil {
			body = []byte(*each.Text)
		}
		return body
	}
	for _, each := range file.Requests {
		request := HTTPRequest{Method: each.Method, Target: each.Target, ContentType: value(each.ContentType), Body: bodyOf(each), CanonicalJSON: each.CanonicalJSON}
		if !each.CanonicalJSON {
			same(each, request)
		} else if hashedOf(request) != nil {
			t.Errorf("%+v is the database's", each)
		}
	}
	for _, each := range file.Bytes {
		same(each, bodyOf(each))
		same(each, string(bodyOf(each)))
	}
	if compared < 20 {
		t.Fatal(compared)
	}
}

func TestHeadersComeBackAsTheyWereStored(t *testing.T) {
	given := http.Header{"X-Order": {"1", "2"}, "X-Bytes": {"caf\xe9"}, "Content-Type": {`text/plain; a="<&>"`}, "Bad Name": {"x"}, "X-Split": {"a\r\nSet-Cookie: b"}}
	text, err := encodeHeaders(given)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeHeaders(text.(string))
	want := http.Header{"X-Order": {"1", "2"}, "X-Bytes": {"caf\xe9"}, "Content-Type": {`text/plain; a="<&>"`}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%q, %v", got, err)
	}
	flat, err := decodeHeaders(`{"Link": ["a", "b"], "Retry-After": 5, "H": null}`)
	if err != nil || !reflect.DeepEqual(flat, http.Header{"Link": {"a", "b"}, "Retry-After": {"5"}}) {
		t.Fatalf("%q, %v", flat, err)
	}
	for _, bad := range []string{`[]`, `{"a": {}}`, `{"a": "b\r\nc: d"}`, `{"h": [["a"]]}`, `{"h": [["a", null, "zz"]]}`, `{"h": [[]]}`} {
		if got, err := decodeHeaders(bad); err == nil {
			t.Errorf("%s: %q", bad, got)
		}
	}
}

func TestARowThatIsCutOffOrAnotherIsAnError(t *testing.T) {
	whole := []byte{0, 0, 0, 11}
	value := func(text string) {
		whole = append(append(whole, 0, 0, 0, 25, 0, 0, 0, byte(len(text))), text...)
	}
	value("replay_success")
	for i := 1; i < 11; i++ {
		value(strings.Repeat(fmt.Sprint(i%10), i))
	}
	var found row
	if err := found.read(whole); err != nil || found.verdict != "replay_success" || *found.errorMessage != "88888888" || *found.headers != "444" {
		t.Fatalf("%v, %+v", err, found)
	}
	for length := range whole {
		if err := new(row).read(whole[:length]); err == nil {
			t.Errorf("%d of its %d bytes were taken", length, len(whole))
		}
	}
	whole[3] = 10
	if err := new(row).read(whole); err == nil {
		t.Error("a row of ten values was taken")
	}
}

func TestTheMiddlewareRefusesSettingsThatLeaveItOpenWhoseKeysTheyAre(t *testing.T) {
	client := New[int](nil)
	for _, settings := range []HTTP{{}, {Scope: "orders"}, {SingleTenant: true}, {Scope: "orders", SingleTenant: true, Headers: []string{"Set-Cookie"}}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was taken", settings)
				}
			}()
			client.Middleware(settings)
		}()
	}
}

// panicky is a session of a driver that panics over a connection that the server has closed.
type panicky struct {
	Door[int]
	Session[int]
	released int
}

func (p *panicky) Connect(context.Context) (Session[int], error) { return p, nil }
func (p *panicky) QueryRow(context.Context, Query, ...any) error { return errors.New("none") }
func (p *panicky) Salts() Salts                                  { return nil }
func (p *panicky) Lost(context.Context) bool                     { return false }
func (p *panicky) Rollback(context.Context)                      { panic("close of closed channel") }
func (p *panicky) Release()                                      { p.released++ }
func (p *panicky) Open(context.Context, string, Query, string, ...any) error {
	return errors.New("the server has closed the connection")
}

func TestAConnectionIsGivenBackThoughItsDriverPanics(t *testing.T) {
	session := &panicky{}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _ = New[int](session).Run(context.Background(), "orders", "key", "request", func(context.Context, int) (Answer, error) { return Answer{}, nil })
	}()
	if session.released != 1 {
		t.Fatal(session.released)
	}
}
