// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
)

// What README.md shows under "An endpoint whose effect is at a provider", word for word: a test compares them.

func routes(mux *http.ServeMux, db *oncepgx.Client) {
	mux.Handle("/charges", authenticated(db.EffectHandler(once.HTTP{Scope: "charges", Tenant: userOf}, charge)))
}

// charge runs at most once for each Idempotency-Key of a user.
func charge(r *http.Request) (once.Answer, error) {
	order, err := http.NewRequestWithContext(r.Context(), "POST", bank, r.Body)
	if err != nil {
		return once.Answer{}, once.NotDone(err)
	}
	// The bank knows the key as well, apart from that of another user, and however it was quoted.
	key, _ := once.KeyOfHeader(r.Header.Get("Idempotency-Key"), false, 0)
	order.Header.Set("Idempotency-Key", userOf(r)+"/"+key)
	reply, err := http.DefaultClient.Do(order)
	var unsent *net.OpError
	switch {
	case errors.As(err, &unsent) && unsent.Op == "dial":
		return once.Answer{}, once.NotDone(err) // nothing was sent
	case err != nil:
		return once.Answer{}, err // sent, and no answer: nobody knows
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		return once.Answer{}, err
	}
	answer := once.Bytes(reply.StatusCode, body)
	answer.Header = http.Header{"Content-Type": reply.Header["Content-Type"]}
	status, later := reply.StatusCode, reply.Header.Get("Retry-After") != ""
	switch {
	case status < 400:
		return answer, nil // charged
	case later && (status < 500 || status == 503):
		return once.Answer{}, once.NotDone(fmt.Errorf("the bank asks for another attempt: %s", reply.Status))
	case status < 500 && status != 408:
		return once.Answer{}, once.Fail("refused", reply.Status, answer) // not charged, for good
	default:
		return once.Answer{}, fmt.Errorf("the bank does not say whether it has charged: %s", reply.Status)
	}
}
