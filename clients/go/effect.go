// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Effect is Run for an effect that is elsewhere (a payment, a tool call of an agent): it runs at most
// once for (tenant, scope, key), and every call gets its answer.
//
// The work runs under a lease that renews itself, with a context that ends when the lease is lost. Its
// answer is stored. A *FinalError (see Fail) is stored for good; NotDone(err) says that nothing
// happened, and the next call runs. After any other error, and after a panic or a crash, nobody knows:
// this call and the next ones get ErrInDoubt, until it is decided (once.resolve, or the scope's verify
// function). The error that left the doubt is stored as its reason; errors.Is and errors.As find it.
func (c *Client[T]) Effect(ctx context.Context, scope, key string, request any, work func(ctx context.Context) (Answer, error), opts ...Option) (Answer, error) {
	return c.effect(ctx, scope, key, request, work, c.options.with(append([]Option{Takeover(false)}, opts...)))
}

func (c *Client[T]) effect(ctx context.Context, scope, key string, request any, work func(ctx context.Context) (Answer, error), o options) (Answer, error) {
	lease, stored, err := c.claimed(ctx, scope, key, request, o)
	if err != nil {
		return Answer{}, err
	}
	if stored != nil {
		return *stored, nil
	}
	returned := false
	defer func() {
		if !returned { // a panic
			what := recover()
			_, _ = lease.Doubt(ctx, "panic", told(fmt.Sprint(what)))
			if what != nil {
				panic(what)
			}
		}
	}()
	if ctx.Err() != nil {
		returned = true
		_, err := lease.Release(ctx)
		return Answer{}, errors.Join(context.Cause(ctx), err)
	}
	answer, err := work(lease.Context())
	returned = true
	if err != nil {
		return Answer{}, lease.failed(ctx, err)
	}
	answer.Replayed, answer.Traceparent, answer.Fence = false, lease.Traceparent, lease.Fence
	return answer, lease.done(ctx, answer)
}

// The work is done, even if its answer cannot be stored.
func (l *Lease) done(ctx context.Context, answer Answer) error {
	limit := l.options.responseMax
	large := Answer{Status: answer.Status, ResultType: resultTooLarge}
	if limit > 0 && len(answer.Body) > limit {
		answer = large
	}
	var err error
	if answer.kind == asInvalid {
		err = answer.invalid()
	} else {
		_, err = l.Complete(ctx, answer)
	}
	if limit > 0 && errors.Is(err, ErrTooLarge) {
		_, err = l.Complete(ctx, large)
	}
	if answer.kind == asInvalid || errors.Is(err, ErrTooLarge) {
		_, unreported := l.Doubt(ctx, reasonNotKept.code, told(err.Error()))
		return errors.Join(inDoubt(err), unreported)
	}
	return err
}

// A failure for good whose answer is too large to keep is one all the same. Over HTTP, whose answers have
// a limit, it is remembered as done: once.fail has no result_type.
func (l *Lease) final(ctx context.Context, failure *FinalError) error {
	err := error(ErrTooLarge)
	limit := l.options.responseMax
	if limit <= 0 || len(failure.Answer.Body) <= limit {
		_, err = l.Fail(ctx, failure)
	}
	switch {
	case !errors.Is(err, ErrTooLarge):
	case limit > 0:
		_, err = l.Complete(ctx, Answer{Status: failure.Answer.Status, ResultType: resultTooLarge})
	default:
		smaller := *failure
		smaller.Answer = Answer{Status: failure.Answer.Status}
		_, err = l.Fail(ctx, &smaller)
	}
	return err
}

// What is stored of an error, and what the caller gets: the same as the next one will.
func (l *Lease) failed(ctx context.Context, failure error) error {
	var final *FinalError
	var none notDone
	var err error
	switch {
	case errors.As(failure, &final):
		stored := *final
		stored.Answer.Replayed, stored.Answer.Traceparent, stored.Answer.Fence = false, l.Traceparent, l.Fence
		failure = &stored
		err = l.final(ctx, final)
	case errors.As(failure, &none):
		_, err = l.FailRetryable(ctx, reasonNotDone.code, told(failure.Error()))
	default:
		_, err = l.Doubt(ctx, "error", told(failure.Error()))
		failure = inDoubt(failure)
	}
	if err != nil {
		return fmt.Errorf("%w: %v", err, failure) // the caller gets no error for it
	}
	return failure
}

func inDoubt(cause error) error {
	left := ErrInDoubt.because(cause)
	left.Message += ": " + cause.Error()
	return left
}

const toldBytesMax = 1000

// An error's text as one that PostgreSQL takes, and of no more than a screen.
func told(text string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
	if len(text) > toldBytesMax {
		text = strings.ToValidUTF8(text[:toldBytesMax], "") + "..."
	}
	return text
}

// Effect wraps one function whose effect is elsewhere, as the Client's Effect runs it. Its result is
// stored as JSON, and each call gets it.
func Effect[T, In, Out any](client *Client[T], scope string, key func(In) string, call func(ctx context.Context, in In) (Out, error), opts ...Option) func(ctx context.Context, in In) (Out, error) {
	return func(ctx context.Context, in In) (out Out, err error) {
		answer, err := client.Effect(ctx, scope, key(in), in, func(ctx context.Context) (Answer, error) {
			made, err := call(ctx, in)
			if err != nil {
				return Answer{}, err
			}
			return JSON(0, made), nil
		}, opts...)
		if err != nil {
			return out, err
		}
		return out, answer.Decode(&out)
	}
}
