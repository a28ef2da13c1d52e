package testenv

import (
	"context"
	"testing"
	"time"
)

// Patience is how long a test waits for what must come. It is generous, since it costs nothing where all is well and a
// slow machine must not fail a test.
const Patience = 90 * time.Second

const pollEvery = 25 * time.Millisecond

// Eventually polls until check gives no error, and fails the test with its last error when patience is over.
func Eventually(t testing.TB, check func(ctx context.Context) error) {
	t.Helper()
	EventuallyWithin(t, Patience, check)
}

// EventuallyWithin is Eventually with a bound of its own, for what must come soon.
func EventuallyWithin(t testing.TB, limit time.Duration, check func(ctx context.Context) error) {
	t.Helper()
	if err := poll(t.Context(), limit, check); err != nil {
		t.Fatalf("waited %s in vain: %v", limit, err)
	}
}

// Consistently fails the test as soon as check gives an error within a time. A test that can wait for something positive
// instead (Env.Quiet, say) should.
func Consistently(t testing.TB, during time.Duration, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), during)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := check(t.Context())
		if err != nil {
			t.Fatalf("did not stay so for %s: %v", during, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func poll(ctx context.Context, limit time.Duration, check func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // what the end of the wait itself causes says nothing
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}
