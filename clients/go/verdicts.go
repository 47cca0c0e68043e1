// SPDX-License-Identifier: PostgreSQL

package once

// decision is what a caller does with a verdict of the contract. err: what is returned where nothing runs.
type decision struct {
	then next
	err  *Error
}

type next int

const (
	toRun next = iota + 1
	toReplay
	toFail
	toWait
	toRefuse
)

const (
	// spec: lost-claim
	// The verdict of a claim whose reply was lost, if a look shows that this caller holds it. first: the intent has had one attempt, so no work
	// began before; a released attempt is not counted. without_takeover: the claim takes over from no silent attempt, so the earlier ones had no
	// effect. otherwise: it may have taken over from one.
	lostFirst           = "new_claim"
	lostWithoutTakeover = "retryable_failure"
	lostOtherwise       = "processing_stale"
	// end of spec
)

// verdictOfLost is of a claim whose reply was lost. attempts: of the intent, as a look shows them.
func verdictOfLost(attempts int32, noTakeover bool) string {
	switch {
	case attempts == 1:
		return lostFirst
	case noTakeover:
		return lostWithoutTakeover
	default:
		return lostOtherwise
	}
}

var verdicts = map[string]decision{
	// spec: verdicts
	"proceed":           {toRun, nil},
	"new_claim":         {toRun, nil},
	"replay_success":    {toReplay, nil},
	"processing_active": {toWait, ErrActive},
	"processing_stale":  {toRun, nil},
	"retryable_failure": {toRun, nil},
	"final_failure":     {toFail, ErrFinal},
	"in_doubt":          {toRefuse, ErrInDoubt},
	"expired":           {toRefuse, ErrExpired},
	"mismatch":          {toRefuse, ErrMismatch},
	// end of spec
}
