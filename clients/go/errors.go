// SPDX-License-Identifier: PostgreSQL

package once

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
)

// Error is a decision of the contract, or of this client, that no effect follows from. Compare it
// with errors.Is and one of the Err values; branch on Code or SQLState, never on the text. Its text
// names neither the key nor the tenant.
type Error struct {
	Code      string // the name in once.errors(): "mismatch", "active", ...
	SQLState  string // "P4002"; empty where it is the client's own
	Status    int    // what the gateway answers for it
	Retryable bool   // the same call may be made again as it is
	Message   string
	// Traceparent of the attempt that this is about, where the contract told.
	Traceparent string
	// Slot of the tenant, and its Epoch at the node that has refused, of ErrSlotClosed. Slot is -1 where the
	// driver does not tell.
	Slot  int
	Epoch int64
	cause error
}

func (e *Error) Error() string { return "pgonce: " + e.Message }

// Unwrap gives the driver's error.
func (e *Error) Unwrap() error { return e.cause }

// Is says whether the target is the same decision.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Code == e.Code
}

func (e *Error) because(cause error) *Error {
	made := *e
	made.cause = cause
	return &made
}

// The contract's own, by SQLSTATE: once.errors().
var bySQLState = map[string]*Error{}

const (
	mayRetry = true
	isFinal  = false
)

func ofContract(code, state string, status int, retryable bool, message string) *Error {
	made := &Error{Code: code, SQLState: state, Status: status, Retryable: retryable, Message: message}
	bySQLState[state] = made
	return made
}

// What Run, Claim and the rest return; errors.Is compares with them.
var (
	// spec: errors
	ErrScopeRequired      = ofContract("scope_required", "P4000", 403, isFinal, "a scope of 1 to 255 characters is required")
	ErrKeyMalformed       = ofContract("key_malformed", "P4001", 400, isFinal, "the key is missing or malformed")
	ErrMismatch           = ofContract("mismatch", "P4002", 422, isFinal, "the key was first used with another request")
	ErrRefused            = ofContract("refused", "P4003", 403, isFinal, "the fingerprint or the tenant is refused")
	ErrCompletionRefused  = ofContract("completion_refused", "P4010", 409, isFinal, "the attempt no longer holds the intent: discard its result")
	ErrFailureRefused     = ofContract("failure_refused", "P4011", 409, isFinal, "the attempt no longer holds the intent: discard its result")
	ErrNotStarted         = ofContract("not_started", "P4012", 500, isFinal, "the transaction has not started the intent: did the effect end it?")
	ErrUnfinished         = ofContract("unfinished", "P4013", 500, isFinal, "the transaction has started an intent and not finished it: nothing was committed")
	ErrAlreadyStarted     = ofContract("already_started", "P4014", 500, isFinal, "this transaction has started this intent already")
	ErrAnotherFingerprint = ofContract("another_fingerprint", "P4015", 500, isFinal, "this transaction has started the intent with another fingerprint")
	ErrAlreadyFinished    = ofContract("already_finished", "P4020", 409, isFinal, "the intent is finished and has an outcome")
	ErrActive             = ofContract("active", "P4029", 409, mayRetry, "another attempt of this intent is running")
	ErrFinal              = ofContract("final_failure", "P4030", 409, isFinal, "the intent failed for good")
	ErrInDoubt            = ofContract("in_doubt", "P4031", 409, isFinal, "the outcome of this intent is unknown")
	ErrExpired            = ofContract("expired", "P4041", 409, isFinal, "the key is older than what is remembered")
	ErrMessageMismatch    = ofContract("message_mismatch", "P4050", 422, isFinal, "the message id was first used with another payload")
	ErrEventMismatch      = ofContract("event_mismatch", "P4051", 422, isFinal, "this intent has already emitted this event with another payload")
	ErrTooLarge           = ofContract("too_large", "P4060", 500, isFinal, "the outcome or the event is too large")
	ErrResolutionRefused  = ofContract("resolution_refused", "P4070", 409, isFinal, "the decision is refused")
	ErrSlotClosed         = ofContract("slot_closed", "P4097", 503, mayRetry, "this node does not serve the tenant now")
	ErrPartitionMissing   = ofContract("partition_missing", "P4098", 503, mayRetry, "the partition for this day is missing")
	ErrUnknownState       = ofContract("unknown_state", "P4099", 503, isFinal, "the intent is in a state that this function does not know")
	// end of spec

	// ErrSwallowed: a statement of the effect failed and the effect went on as if it had not.
	// COMMIT would have rolled back in silence. Nothing was committed.
	ErrSwallowed = &Error{Code: "swallowed", Status: 500, Message: "a statement of the effect failed, and the effect returned no error: nothing was committed"}
	// ErrTransactionControl: the effect has called Commit or Rollback, or sent COMMIT, BEGIN or the like.
	// It was refused before it was sent, and nothing was committed.
	ErrTransactionControl = &Error{Code: "transaction_control", Status: 500, Message: "the transaction is committed with its answer, so the effect cannot begin, commit or roll back one: return instead, with an error to roll back; tx.Begin of pgx is a savepoint; work that needs transactions of its own runs in LeaseMode"}
	// ErrTransactionEnded: the effect has ended the transaction all the same, beneath this client: by
	// tx.Conn(). Perhaps it was committed. Run puts the intent in doubt, and this is the cause.
	ErrTransactionEnded = &Error{Code: "transaction_ended", Status: 409, Message: "the effect ended the transaction by itself, so what it did may be committed"}
	// ErrOutcomeUnknown: COMMIT's acknowledgement was lost, and the database could not be asked in
	// time. Call again with the same key.
	ErrOutcomeUnknown = &Error{Code: "outcome_unknown", Status: 503, Retryable: true, Message: "the connection was lost during COMMIT, and what became of it cannot be learnt now"}
	// ErrUnavailable: the database could not be asked. Nothing was done.
	ErrUnavailable = &Error{Code: "unavailable", Status: 503, Retryable: true, Message: "the database cannot be asked; nothing was done"}
	// ErrContract: the database has no contract, or one of another version. Nothing was done.
	ErrContract = &Error{Code: "contract", Status: 503, Message: "the database has no contract, or one that this client does not know: run pgonce init, or pgonce.sql"}
	// ErrNotDivided: one of several nodes is not divided, and would run what another has run before.
	ErrNotDivided = &Error{Code: "not_divided", Status: 500, Message: "a node is not divided, so it cannot share the tenants with others"}
	// ErrConflict: rolled back by 40001 or 40P01 until the deadline passed.
	ErrConflict = &Error{Code: "serialization", SQLState: "40001", Status: 503, Retryable: true, Message: "rolled back by a conflict with other transactions until the deadline passed"}
	// ErrLeaseLost is the cause of a lease's context, once another attempt may hold the intent.
	ErrLeaseLost = &Error{Code: "lease_lost", Status: 409, Message: "the lease is lost: another attempt may hold the intent"}
)

// SQLStateOf gives the SQLSTATE of a driver's error, as pgx's and lib/pq's say it; "" for any other.
func SQLStateOf(err error) string {
	var said interface{ SQLState() string }
	if errors.As(err, &said) {
		return said.SQLState()
	}
	return ""
}

// The contract's own errors become an *Error; all others stay as they are.
func named(err error) error {
	var already *Error
	var final *FinalError
	if own, is := err.(unrouted); is {
		return own.error
	}
	if err == nil || errors.As(err, &already) || errors.As(err, &final) {
		return err
	}
	if known := bySQLState[SQLStateOf(err)]; known != nil {
		told := known.because(err)
		if known == ErrSlotClosed {
			told.Slot, told.Epoch = slotOfError(err)
		}
		return told
	}
	return err
}

// Of a statement of this client's, before anything of the application ran: a missing schema or function
// can only be the contract's.
func ofContractItself(err error) error {
	if _, own := err.(unrouted); own {
		return err
	}
	if state := SQLStateOf(err); state != "3F000" && state != "42883" {
		return err
	}
	return ErrContract.because(err)
}

// What the contract's DETAIL ends with; a key, which may hold anything, stands before it.
var slotDetail = regexp.MustCompile(`slot=([0-9]{1,2}) epoch=([0-9]{1,19})$`)

// pgx's error and lib/pq's have a field for DETAIL.
func slotOfError(err error) (slot int, epoch int64) {
	var said interface{ SQLState() string }
	if !errors.As(err, &said) {
		return -1, 0
	}
	at := reflect.Indirect(reflect.ValueOf(said))
	if at.Kind() != reflect.Struct || !at.FieldByName("Detail").IsValid() {
		return -1, 0
	}
	found := slotDetail.FindStringSubmatch(at.FieldByName("Detail").String())
	if found == nil {
		return -1, 0
	}
	slot, _ = strconv.Atoi(found[1])
	epoch, _ = strconv.ParseInt(found[2], 10, 64)
	return slot, epoch
}

func isConflict(err error) bool {
	state := SQLStateOf(err)
	return state == "40001" || state == "40P01"
}

// FinalError is a failure for good: stored as the outcome, so every later attempt gets it. Make one
// with Fail and return it from an effect; Run returns one for a failure that is stored.
type FinalError struct {
	Answer    Answer // what is stored
	Code      string // error_code
	Message   string // error_message
	Retryable bool   // false: a new intent needs a new key
	SQLState  string // P4030
	Status    int    // the answer's, else 409
}

// Fail makes the error with which an effect fails for good: what it did is taken back, and the
// answer is stored in the same transaction.
func Fail(code, message string, answer Answer) *FinalError {
	return newFinal(code, message, answer)
}

func newFinal(code, message string, answer Answer) *FinalError {
	status := answer.Status
	if status == 0 {
		status = ErrFinal.Status
	}
	return &FinalError{Answer: answer, Code: code, Message: message, SQLState: ErrFinal.SQLState, Status: status}
}

func (e *FinalError) Error() string {
	if e.Code == "" && e.Message == "" {
		return "pgonce: " + ErrFinal.Message
	}
	return fmt.Sprintf("pgonce: the intent failed for good: %s: %s", e.Code, e.Message)
}

// Is says that it is ErrFinal.
func (e *FinalError) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Code == ErrFinal.Code
}

// notDone marks an error after which there was certainly no effect.
type notDone struct{ error }

func (e notDone) Unwrap() error { return e.error }

// NotDone says of an error that there was certainly no effect: Effect then lets the next attempt
// run. Any other error of its work leaves the intent in doubt.
func NotDone(err error) error { return notDone{err} }
