// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fake is a node without a database. gate: an inquiry waits until it is closed.
type fake struct {
	slots  atomic.Value // the JSON of once.slots()
	away   atomic.Bool
	gate   chan struct{}
	begun  chan struct{}
	asked  atomic.Int32
	slotOf atomic.Int32
}

func newFake(open ...int) *fake {
	f := &fake{begun: make(chan struct{}, 1000)}
	f.tell(1, open...)
	return f
}

func (f *fake) tell(epoch int, open ...int) {
	each := make([]string, slotsOfNode)
	for slot := range each {
		is := false
		for _, other := range open {
			is = is || other == slot
		}
		each[slot] = fmt.Sprintf(`{"slot": %d, "epoch": %d, "open": %v}`, slot, epoch, is)
	}
	f.slots.Store("[" + strings.Join(each, ",") + "]")
}

func (f *fake) QueryRow(ctx context.Context, query Query, dest ...any) error {
	if query.SQL == sqlSlotOf {
		f.slotOf.Add(1)
		*dest[0].(*int) = len(query.Args[0].(string)) % slotsOfNode
		return nil
	}
	f.asked.Add(1)
	f.begun <- struct{}{}
	if f.gate != nil {
		select {
		case <-f.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if f.away.Load() {
		return errors.New("connection refused")
	}
	*dest[0].(*string) = f.slots.Load().(string)
	return nil
}

func nodesOf(each ...*fake) *nodes[int] {
	n := &nodes[int]{told: make([]slotsTold, len(each)), tenants: map[string]int{}, asking: map[string]*slotAsked{}}
	for i, one := range each {
		n.each = append(n.each, Node[int]{Pool: i + 1, Query: one, Name: fmt.Sprintf("db%d/app", i+1)})
	}
	return n
}

// As of a standby that was promoted without the close of a move: its memory is older.
func TestASlotThatIsClosedWithAHigherEpochIsServedNowhere(t *testing.T) {
	first, second := newFake(3), newFake()
	second.tell(2)
	n := nodesOf(first, second)
	if at, err := n.route(context.Background(), "abc", nil); err != nil || at != 2 {
		t.Fatal(at, err) // which refuses
	}
	refused := ErrSlotClosed.because(nil)
	refused.Slot, refused.Epoch = 3, 2
	if at, err := n.route(context.Background(), "abc", refused); err != nil || at != 2 {
		t.Fatal(at, err)
	}
	away := errors.New("away")
	n.told[1].err = away
	if _, err := n.known(context.Background(), "abc", nil, false); !errors.Is(err, away) {
		t.Fatal(err)
	}
}

func TestACancelledContextEndsTheWaitForAnInquiryAndNotTheInquiry(t *testing.T) {
	slow := newFake(3)
	slow.gate = make(chan struct{})
	n := nodesOf(slow, newFake())
	ctx, cancel := context.WithCancelCause(context.Background())
	left := make(chan error)
	go func() {
		_, err := n.route(ctx, "abc", nil)
		left <- err
	}()
	<-slow.begun
	stays := make(chan error)
	go func() {
		pool, err := n.route(context.Background(), "abc", nil)
		if pool != 1 {
			err = errors.Join(err, fmt.Errorf("%d", pool))
		}
		stays <- err
	}()
	why := errors.New("the client has left")
	cancel(why)
	if err := <-left; err != why {
		t.Fatal(err)
	}
	close(slow.gate)
	if err := <-stays; err != nil || slow.asked.Load() != 1 {
		t.Fatal(err, slow.asked.Load())
	}
}

func TestNoMoreThan10000TenantsAreRemembered(t *testing.T) {
	n := nodesOf(newFake(0, 1, 2, 3, 4, 5, 6), newFake())
	for i := 0; i < tenantSlotsMax+10; i++ {
		if _, err := n.route(context.Background(), fmt.Sprint("t", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(n.tenants) > tenantSlotsMax || len(n.tenants) < 1 {
		t.Fatal(len(n.tenants))
	}
}

func TestARefusalThatIsOlderThanWhatIsKnownAsksNobody(t *testing.T) {
	one, two := newFake(3), newFake()
	n := nodesOf(one, two)
	route := func(closed *Error) (pool int) {
		t.Helper()
		pool, err := n.route(context.Background(), "abc", closed)
		if err != nil {
			t.Fatal(err)
		}
		return pool
	}
	if pool := route(nil); pool != 1 {
		t.Fatal(pool)
	}
	one.tell(1)
	two.tell(2, 3)
	closed := ErrSlotClosed.because(nil)
	closed.Slot, closed.Epoch = 3, 1
	if pool := route(closed); pool != 2 || one.asked.Load() != 2 || two.asked.Load() != 2 {
		t.Fatal(pool, one.asked.Load(), two.asked.Load())
	}
	// Another call was refused at the same time.
	if pool := route(closed); pool != 2 || one.asked.Load() != 2 {
		t.Fatal(pool, one.asked.Load())
	}
	// The slot is known by then, of a tenant that was refused before it was asked for.
	if _, err := n.route(context.Background(), "another", closed); err != nil || one.slotOf.Load()+two.slotOf.Load() != 1 {
		t.Fatal(err)
	}
}

func TestTheSlotsOfANodeThatIsAwayAreUnknownAndItIsAskedAgain(t *testing.T) {
	one, two := newFake(3), newFake(4)
	two.away.Store(true)
	n := nodesOf(one, two)
	ctx := context.Background()
	if pool, err := n.route(ctx, "abc", nil); err != nil || pool != 1 {
		t.Fatal(pool, err)
	}
	var unknown *Error
	_, err := n.route(ctx, "abcd", nil)
	if !errors.Is(err, ErrUnavailable) || !errors.As(err, &unknown) || !unknown.Retryable || !strings.Contains(err.Error(), "slot 4: node 2 (db2/app) did not answer") {
		t.Fatal(err)
	}
	// Within a second that is still so.
	before := two.asked.Load()
	if _, err := n.route(ctx, "abcd", nil); !errors.Is(err, ErrUnavailable) || two.asked.Load() != before {
		t.Fatal(err, two.asked.Load())
	}
	n.ended = n.ended.Add(-askAgain)
	// Many callers at once share one inquiry.
	var all sync.WaitGroup
	for i := 0; i < 200; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if _, err := n.route(ctx, "abcd", nil); !errors.Is(err, ErrUnavailable) {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	if asked := two.asked.Load() - before; asked != 1 {
		t.Fatal(asked)
	}
	two.away.Store(false)
	n.ended = n.ended.Add(-askAgain)
	if pool, err := n.route(ctx, "abcd", nil); err != nil || pool != 2 {
		t.Fatal(pool, err)
	}
	// What it has told stays true while it is away for a moment.
	two.away.Store(true)
	closed := ErrSlotClosed.because(nil)
	closed.Slot, closed.Epoch = 3, 1
	if pool, err := n.route(ctx, "abc", closed); err != nil || pool != 1 {
		t.Fatal(pool, err)
	}
	if pool, err := n.route(ctx, "abcd", nil); err != nil || pool != 2 {
		t.Fatal(pool, err)
	}
}

func TestANodeThatIsDividedLateIsAskedAgain(t *testing.T) {
	one, two := newFake(3), newFake(4)
	two.slots.Store("[]")
	n := nodesOf(one, two)
	if _, err := n.route(context.Background(), "abc", nil); !errors.Is(err, ErrNotDivided) || !strings.Contains(err.Error(), "node 2 (db2/app)") {
		t.Fatal(err)
	}
	two.tell(1, 4)
	n.ended = n.ended.Add(-askAgain)
	if pool, err := n.route(context.Background(), "abc", nil); err != nil || pool != 1 {
		t.Fatal(pool, err)
	}
}

type refusedState string

func (s refusedState) Error() string    { return "slot 3 is closed" }
func (s refusedState) SQLState() string { return string(s) }

// lateNode answers what begins before the deadline after it.
type lateNode struct{ deadline time.Time }

func (n lateNode) QueryRow(ctx context.Context, _ Query, _ ...any) error {
	select {
	case <-time.After(time.Until(n.deadline.Add(50 * time.Millisecond))):
		return refusedState(ErrSlotClosed.SQLState)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestARefusalThatArrivesAfterTheDeadlineOfAReportIsKnown(t *testing.T) {
	within := 50 * time.Millisecond
	_, err := insist(context.Background(), within, lateNode{time.Now().Add(within)}, Query{})
	if !errors.Is(err, ErrSlotClosed) {
		t.Fatal(err)
	}
}
