// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"errors"
)

// Effect wraps one function whose effect is elsewhere (a payment, a tool call of an agent), so that
// it runs at most once for each key, and every call gets its result.
//
// The function runs under a lease that renews itself, with a context that ends when the lease is
// lost. Its result is stored as JSON. A *FinalError is stored for good; NotDone(err) says that
// nothing happened, and the next call runs; after any other error, and after a panic or a crash,
// nobody knows, and the next call gets ErrInDoubt until it is decided (once.resolve, or the scope's
// verify function).
func Effect[T, In, Out any](client *Client[T], scope string, key func(In) string, call func(ctx context.Context, in In) (Out, error), opts ...Option) func(ctx context.Context, in In) (Out, error) {
	opts = append([]Option{Takeover(false)}, opts...)
	return func(ctx context.Context, in In) (out Out, err error) {
		lease, answer, err := client.Claim(ctx, scope, key(in), in, opts...)
		if err != nil {
			return out, err
		}
		if answer != nil {
			return out, answer.Decode(&out)
		}
		reported := false
		defer func() {
			if !reported { // a panic
				_, _ = lease.Doubt(ctx, "panic", "the function did not return")
			}
		}()
		if lease.Verdict == "processing_stale" && !lease.options.noTakeover {
			// The caller has said that a double run is harmless: Takeover(true).
			lease.Verdict = "retryable_failure"
		}
		if lease.Verdict == "processing_stale" {
			reported = true
			_, err := lease.Doubt(ctx, "stale", "an earlier attempt fell silent")
			return out, errors.Join(ErrInDoubt, err)
		}
		out, err = call(lease.Context(), in)
		reported = true
		return out, report(ctx, lease, out, err)
	}
}

func report(ctx context.Context, lease *Lease, out any, failed error) error {
	var final *FinalError
	var none notDone
	var err error
	switch {
	case failed == nil:
		_, err = lease.Complete(ctx, JSON(0, out))
	case errors.As(failed, &final):
		_, err = lease.Fail(ctx, final)
	case errors.As(failed, &none):
		_, err = lease.FailRetryable(ctx, "not_done", "the function had no effect")
		failed = none.error
	default:
		_, err = lease.Doubt(ctx, "error", "the function returned an error")
	}
	if failed == nil {
		return err
	}
	if err != nil {
		return errors.Join(failed, err)
	}
	return failed
}
