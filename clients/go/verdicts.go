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
