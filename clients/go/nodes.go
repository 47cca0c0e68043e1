// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Several nodes that share the tenants (docs/how/scale.md).

// Route gives the pool of the node that serves a tenant. A client calls it for each transaction and each
// call. closed is nil, or the ErrSlotClosed with which the pool's node has refused the call just now, with
// the tenant's slot and the slot's epoch there. The client returns an error of the Route unchanged.
type Route[P any] func(ctx context.Context, tenant string, closed *Error) (P, error)

// NewRouted makes a client of a Route of doors; applications call the driver's package instead. in runs
// statements in a transaction that the caller has.
func NewRouted[T any](in func(tx T) Querier, route Route[Door[T]], defaults ...Option) *Client[T] {
	return &Client[T]{inside: in, route: route, options: options{}.with(defaults)}
}

// Doors makes a Route of doors from one of pools.
func Doors[T any, P comparable](route Route[P], door func(pool P) Door[T]) Route[Door[T]] {
	return func(ctx context.Context, tenant string, closed *Error) (Door[T], error) {
		pool, err := route(ctx, tenant, closed)
		if err != nil {
			return nil, err
		}
		var none P
		if pool == none {
			return nil, errors.New("pgonce: the function has given no pool for the tenant")
		}
		return door(pool), nil
	}
}

func (c *Client[T]) in(tx T) Querier {
	if c.route == nil {
		return c.door.In(tx)
	}
	return c.inside(tx)
}

// unrouted marks an error of a Route, which no node has seen.
type unrouted struct{ error }

func (u unrouted) Unwrap() error { return u.error }

func (c *Client[T]) doorOf(ctx context.Context, tenant string, closed *Error) (Door[T], error) {
	if c.route == nil {
		return c.door, nil
	}
	door, err := c.route(ctx, tenant, closed)
	if err != nil {
		return nil, unrouted{err}
	}
	return door, nil
}

// refusal is not nil where a node has said that it does not serve the tenant, and another can be asked for.
func (c *Client[T]) refusal(err error) *Error {
	if c.route == nil || SQLStateOf(err) != ErrSlotClosed.SQLState {
		return nil
	}
	var closed *Error
	errors.As(named(err), &closed)
	return closed
}

// of runs a tenant's statements, each in a separate transaction. One that a node has refused is sent once
// more, to the node that serves the tenant now.
func (c *Client[T]) of(tenant string) Querier {
	if c.route == nil {
		return c.door
	}
	return atNode[T]{c, tenant}
}

type atNode[T any] struct {
	client *Client[T]
	tenant string
}

func (n atNode[T]) QueryRow(ctx context.Context, query Query, dest ...any) error {
	var closed *Error
	for {
		door, err := n.client.doorOf(ctx, n.tenant, closed)
		if err != nil {
			return err
		}
		err = door.QueryRow(ctx, query, dest...)
		if err == nil || closed != nil {
			return err
		}
		if closed = n.client.refusal(err); closed == nil {
			return err
		}
	}
}

const (
	slotsOfNode    = 64
	askWithin      = 2 * time.Second        // of a node
	askPause       = 100 * time.Millisecond // at least, between two inquiries
	askAgain       = time.Second            // after one that has not found a slot
	tenantSlotsMax = 10000

	sqlSlots  = "SELECT coalesce(json_agg(s), '[]')::text FROM once.slots() AS s"
	sqlSlotOf = "SELECT once.slot_of($1::text)"
)

// Node is one that NewNodes asks.
type Node[P any] struct {
	Pool  P
	Query Querier // through the pool
	Name  string  // where it is, for people: host and database, never a password; or ""
}

// NewNodes makes a Route that asks the nodes; applications call Nodes of the driver's package instead. It
// asks each node which slots are open there (once.slots), at first use and after each refusal, and any
// node for a tenant's slot (once.slot_of). Calls at the same time share an inquiry.
func NewNodes[P any](each ...Node[P]) Route[P] {
	if len(each) == 0 {
		panic("pgonce: there is no node")
	}
	n := &nodes[P]{each: each, told: make([]slotsTold, len(each)), tenants: map[string]int{}, asking: map[string]*slotAsked{}}
	return n.route
}

// slotsTold is what a node has said of its slots.
type slotsTold struct {
	err     error // of the last inquiry, which leaves what was told before
	known   bool
	divided bool
	slots   [slotsOfNode]slotState
}

type slotState struct {
	Slot  int
	Epoch int64
	Open  bool
}

type inquiry struct{ done chan struct{} }

type slotAsked struct {
	done chan struct{}
	slot int
	err  error
}

type nodes[P any] struct {
	each []Node[P]

	mu      sync.Mutex
	told    []slotsTold
	tenants map[string]int // their slots
	asking  map[string]*slotAsked
	began   time.Time // the last inquiry
	ended   time.Time
	running *inquiry
	next    *inquiry // begins after the one that runs
}

func (n *nodes[P]) route(ctx context.Context, tenant string, closed *Error) (pool P, err error) {
	n.mu.Lock()
	isFirst, isRecent := n.ended.IsZero(), time.Since(n.ended) < askAgain
	n.mu.Unlock()
	if !isFirst {
		pool, err = n.known(ctx, tenant, closed, false)
		if err == nil || closed == nil && isRecent {
			return pool, err
		}
	}
	if err := n.inquire(ctx, !isFirst); err != nil {
		return pool, err
	}
	return n.known(ctx, tenant, closed, true)
}

// By what was told. isFresh: all nodes were asked for this call.
func (n *nodes[P]) known(ctx context.Context, tenant string, closed *Error, isFresh bool) (pool P, err error) {
	pool, isFound, err := n.only()
	if isFound && (closed == nil || isFresh) || err != nil {
		return pool, err
	}
	slot, err := n.slotOf(ctx, tenant, closed)
	if err != nil {
		return pool, err
	}
	at, err := n.serving(slot, closed, isFresh)
	if err != nil {
		return pool, err
	}
	return n.each[at].Pool, nil
}

// A single node that is not divided serves every tenant. Of several each must be.
func (n *nodes[P]) only() (pool P, isFound bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, told := range n.told {
		switch {
		case !told.known || told.divided:
		case len(n.each) == 1:
			return n.each[i].Pool, true, nil
		default:
			undivided := ErrNotDivided.because(nil)
			undivided.Message = fmt.Sprintf("%s is not divided, so it cannot share the tenants with others: see once.divide, and pgonce init --join", n.name(i))
			return pool, false, undivided
		}
	}
	return pool, false, nil
}

func (n *nodes[P]) name(i int) string {
	if n.each[i].Name == "" {
		return fmt.Sprintf("node %d", i+1)
	}
	return fmt.Sprintf("node %d (%s)", i+1, n.each[i].Name)
}

// The node with the slot's highest epoch; of two, the one that has it open. If it is closed there, it may be moving, or
// a node that has it open may be an outdated copy: then that node is asked, and refuses. isFresh: all nodes were asked for this call.
func (n *nodes[P]) serving(slot int, closed *Error, isFresh bool) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	best := -1
	var unheard []int
	for i := range n.told {
		told := &n.told[i]
		if told.err != nil {
			unheard = append(unheard, i)
		}
		if !told.known || isFresh && told.err != nil {
			continue
		}
		if this := told.slots[slot]; best < 0 || isBefore(n.told[best].slots[slot], this) {
			best = i
		}
	}
	isOpen := best >= 0 && n.told[best].slots[slot].Open
	switch {
	case closed != nil && !isFresh && !(isOpen && closed.Slot == slot && n.told[best].slots[slot].Epoch > closed.Epoch):
		return 0, closed // what is known is no newer than the refusal
	case isOpen || best >= 0 && len(unheard) == 0:
		return best, nil
	}
	return 0, n.unknown(fmt.Sprintf("slot %d", slot), unheard)
}

func isBefore(one, other slotState) bool {
	if one.Epoch == other.Epoch {
		return other.Open && !one.Open
	}
	return one.Epoch < other.Epoch
}

// The caller holds the lock.
func (n *nodes[P]) unknown(what string, unheard []int) error {
	names := make([]string, len(unheard))
	causes := make([]error, len(unheard))
	for i, at := range unheard {
		names[i], causes[i] = n.name(at), n.told[at].err
	}
	unknown := ErrUnavailable.because(errors.Join(causes...))
	unknown.Message = fmt.Sprintf("it is unknown which node serves %s: %s did not answer; nothing was done", what, strings.Join(names, " and "))
	return unknown
}

// inquire waits until every node has told its slots, or failed to. isNews: an inquiry that runs already
// may have heard what was true before.
func (n *nodes[P]) inquire(ctx context.Context, isNews bool) error {
	n.mu.Lock()
	wanted := n.running
	if wanted == nil || isNews {
		if n.next == nil {
			n.next = &inquiry{done: make(chan struct{})}
			go n.ask(n.next, n.running, time.Until(n.began.Add(askPause)))
		}
		wanted = n.next
	}
	n.mu.Unlock()
	select {
	case <-wanted.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Not with a caller's context: others wait for it as well.
func (n *nodes[P]) ask(this, before *inquiry, pause time.Duration) {
	if before != nil {
		<-before.done
	}
	time.Sleep(pause)
	n.mu.Lock()
	n.next, n.running, n.began = nil, this, time.Now()
	n.mu.Unlock()
	var all sync.WaitGroup
	for i := range n.each {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			told := slotsOf(n.each[i].Query)
			n.mu.Lock()
			defer n.mu.Unlock()
			if told.err != nil {
				n.told[i].err = told.err
			} else {
				n.told[i] = told
			}
		}(i)
	}
	all.Wait()
	n.mu.Lock()
	n.running, n.ended = nil, time.Now()
	n.mu.Unlock()
	close(this.done)
}

func slotsOf(node Querier) (told slotsTold) {
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	var text string
	var slots []slotState
	if told.err = node.QueryRow(ctx, Query{SQL: sqlSlots}, &text); told.err == nil {
		told.err = json.Unmarshal([]byte(text), &slots)
	}
	for _, each := range slots {
		if each.Slot < 0 || each.Slot >= slotsOfNode {
			told.err = fmt.Errorf("pgonce: once.slots has told of a slot %d", each.Slot)
			break
		}
		told.slots[each.Slot] = each
	}
	told.known, told.divided = told.err == nil, len(slots) > 0
	return told
}

// Never computed here: an installation may have replaced once.slot_of.
func (n *nodes[P]) slotOf(ctx context.Context, tenant string, closed *Error) (int, error) {
	n.mu.Lock()
	slot, isKnown := n.tenants[tenant]
	if !isKnown && closed != nil && closed.Slot >= 0 && closed.Slot < slotsOfNode {
		slot, isKnown = closed.Slot, true
		n.remember(tenant, slot)
	}
	asked := n.asking[tenant]
	if !isKnown && asked == nil {
		asked = &slotAsked{done: make(chan struct{})}
		n.asking[tenant] = asked
		go n.askSlot(tenant, asked)
	}
	n.mu.Unlock()
	if isKnown {
		return slot, nil
	}
	select {
	case <-asked.done:
		return asked.slot, asked.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// The caller holds the lock.
func (n *nodes[P]) remember(tenant string, slot int) {
	if len(n.tenants) >= tenantSlotsMax {
		clear(n.tenants)
	}
	n.tenants[tenant] = slot
}

// Of the first node that answers. One that the last inquiry has not heard is not asked.
func (n *nodes[P]) askSlot(tenant string, asked *slotAsked) {
	defer close(asked.done)
	var heard, unheard []int
	n.mu.Lock()
	for i := range n.told {
		if n.told[i].err == nil {
			heard = append(heard, i)
		} else {
			unheard = append(unheard, i)
		}
	}
	n.mu.Unlock()
	failures := map[int]error{}
	isFound := false
	for _, i := range heard {
		ctx, cancel := context.WithTimeout(context.Background(), askWithin)
		err := n.each[i].Query.QueryRow(ctx, Query{SQL: sqlSlotOf, Args: []any{tenant}}, &asked.slot)
		cancel()
		if err == nil && (asked.slot < 0 || asked.slot >= slotsOfNode) {
			err = fmt.Errorf("pgonce: once.slot_of has given %d", asked.slot)
		}
		if isFound = err == nil; isFound {
			break
		}
		failures[i] = err
		unheard = append(unheard, i)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.asking, tenant)
	for i, err := range failures {
		n.told[i].err = err
	}
	if isFound {
		n.remember(tenant, asked.slot)
	} else {
		asked.err = n.unknown("the tenant", unheard)
	}
}
