// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Event is what Emit appends to the outbox.
type Event struct {
	Topic   string
	Payload any // written as JSON
	// Type is the topic unless set. One event of a type for an intent.
	Type string
	// AggregateType and AggregateID: what it is about. Events of one are published in order.
	AggregateType, AggregateID string
	// Scope, Key and Tenant of the intent that causes it: that of the attempt whose context Emit gets,
	// unless set. Its id is derived from the intent.
	Scope, Key, Tenant string
	// OfNoIntent: it is not that attempt's, so there may be many of its type.
	OfNoIntent  bool
	Headers     map[string]string
	Traceparent string
	// NotBefore: it is published then and not sooner, and has its place in the order of its aggregate
	// then. The zero time: at once.
	NotBefore time.Time
}

// The intent that causes the event, as the caller or the context says; without a scope: no intent.
func (e Event) cause(ctx context.Context, tenant string) intent {
	of, running := intentOf(ctx)
	if running {
		tenant = of.tenant
	}
	if e.Tenant != "" {
		tenant = e.Tenant
	}
	if running && !e.OfNoIntent && e.Scope == "" && e.Key == "" && tenant == of.tenant {
		return of
	}
	return intent{e.Scope, e.Key, tenant}
}

// Emit appends an event in the effect's own transaction: it exists if and only if the effect does.
// It returns the event's id. With the context of an attempt (of Run, Middleware, Effect, or a lease)
// it is the event of that intent: one of a type, and the same one again is the same event.
func (c *Client[T]) Emit(ctx context.Context, tx T, event Event) (id string, err error) {
	payload, err := json.Marshal(event.Payload)
	if err != nil {
		return "", fmt.Errorf("pgonce: the payload cannot be written as JSON: %w", err)
	}
	sql := sqlEmit
	args, err := c.eventArgs(ctx, event, string(payload))
	if err != nil {
		return "", err
	}
	if !event.NotBefore.IsZero() {
		sql, args = sqlEmitLater, append(args, event.NotBefore.UTC().Format(time.RFC3339Nano))
	}
	err = c.in(tx).QueryRow(ctx, Query{SQL: sql, Args: args}, &id)
	return id, named(err)
}

// EmitBytes is Emit for a payload of bytes with a content type of the application's, such as Avro or
// Protobuf: 1 to 255 characters of visible ASCII. Payload and NotBefore of the event must not be set.
func (c *Client[T]) EmitBytes(ctx context.Context, tx T, event Event, payload []byte, contentType string) (id string, err error) {
	if event.Payload != nil || !event.NotBefore.IsZero() {
		return "", errors.New("pgonce: EmitBytes gets its payload beside the event, and publishes at once: Payload and NotBefore must not be set")
	}
	if payload == nil {
		payload = []byte{}
	}
	args, err := c.eventArgs(ctx, event, payload)
	if err != nil {
		return "", err
	}
	err = c.in(tx).QueryRow(ctx, Query{SQL: sqlEmitBytes, Args: append(args, contentType)}, &id)
	return id, named(err)
}

// The parameters that all events have.
func (c *Client[T]) eventArgs(ctx context.Context, event Event, payload any) ([]any, error) {
	var headers any
	if event.Headers != nil {
		text, err := json.Marshal(event.Headers)
		if err != nil {
			return nil, err
		}
		headers = string(text)
	}
	trace := orNull(event.Traceparent)
	if trace == nil {
		trace = c.options.trace(ctx)
	}
	of := event.cause(ctx, c.options.tenant)
	return []any{event.Topic, payload, orNull(event.AggregateType), orNull(event.AggregateID), orNull(event.Type), orNull(of.scope), orNull(of.key),
		headers, of.tenant, trace}, nil
}

// Receive is the inbox, in the consumer's own transaction. true: apply the message, then commit;
// false: it was applied before, so acknowledge it. messageID is the natural business id, never a
// broker's offset. ErrMessageMismatch: the id came with another payload.
func (c *Client[T]) Receive(ctx context.Context, tx T, consumer, messageID string, payload any, opts ...Option) (process bool, err error) {
	o := c.options.with(opts)
	query, err := receiveQuery(consumer, messageID, payload, o, o.trace(ctx))
	if err != nil {
		return false, err
	}
	var verdict string
	err = c.in(tx).QueryRow(ctx, query, &verdict)
	return verdict == toProcess, named(err)
}

func receiveQuery(consumer, messageID string, payload any, o options, traceparent any) (Query, error) {
	kind, args, err := printed(payload, o.tenant)
	if err != nil {
		return Query{}, err
	}
	return Query{SQL: sqlReceive[kind], Args: append(args, consumer, messageID, traceparent)}, nil
}

// What once.receive returns for a message that was not applied before.
const toProcess = "process"

// The kind of a call, for its Observer.
const consuming = "consume"

var uuidV7 = regexp.MustCompile("(?i)^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$")

// The key that once.receive gives the intent of a message: its id is only a name, and has no birthday.
func keyOfMessage(id string) string {
	if uuidV7.MatchString(id) {
		return "pgonce:id:" + id
	}
	return id
}

// Consume is Receive, the effect and COMMIT in a separate transaction: acknowledge the message when
// it returns no error. false: it was applied before. Events that the effect emits with its context are
// the message's. Conflicts, lost connections and a lost COMMIT are as with Run; an error of the effect
// rolls back, and comes out as it is.
func (c *Client[T]) Consume(ctx context.Context, consumer, messageID string, payload any, effect func(ctx context.Context, tx T) error, opts ...Option) (applied bool, err error) {
	o := c.options.with(opts)
	query, err := receiveQuery(consumer, messageID, payload, o, o.trace(ctx))
	if err != nil {
		return false, err
	}
	start := &starter{scope: consumer, key: messageID, tenant: o.tenant, whole: query, message: true}
	answer, err := c.run(ctx, consuming, consumer, messageID, start, o, func(ctx context.Context, held holding[T]) (Answer, ending, error) {
		return Answer{}, endAbort, effect(ctx, held.tx)
	})
	return err == nil && !answer.Replayed, err
}

// Lock takes a lock on a name until the transaction ends: "one settlement per merchant and day". It
// waits so long at most, 0: not at all; false: another transaction has it.
func (c *Client[T]) Lock(ctx context.Context, tx T, resource string, wait time.Duration) (taken bool, err error) {
	err = c.in(tx).QueryRow(ctx, Query{SQL: sqlLock, Args: []any{resource, wait.Truncate(time.Millisecond).Seconds()}}, &taken)
	return taken, named(err)
}
