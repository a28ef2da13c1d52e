package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/taskwarden/taskwarden/test/testenv"
)

// failure is one way in which a call can fail.
type failure struct {
	name string
	// stored: the API server does what it was asked for, and then answers so.
	stored bool
	err    error
}

var failures = []failure{
	{"409", false, apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "thing", errors.New("injected"))},
	{"429", false, apierrors.NewTooManyRequests("injected", 1)},
	{"500", false, apierrors.NewInternalError(errors.New("injected"))},
	{"503", false, apierrors.NewServiceUnavailable("injected")},
	{"504", false, apierrors.NewTimeoutError("injected", 1)},
	{"reset", false, testenv.ErrConnection},
	{"answer lost", true, testenv.ErrConnection},
	{"stored and answered with 500", true, apierrors.NewInternalError(errors.New("injected"))},
}

// TestEachCallFails has each call that the operator makes in a Task's life fail once, when it is first made, for each shape of life,
// reads and watches too. In eight lives each call meets each way to fail; the short form has as many of them as it has time for.
func TestEachCallFails(t *testing.T) {
	t.Parallel()
	for i, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			_, want := undisturbed(t, s)
			lives := len(failures)
			if !long {
				lives = shortLives
			}
			for shift := range lives {
				shift = (i + shift*len(failures)/lives) % len(failures)
				t.Run(fmt.Sprintf("beginning with %s", failures[shift].name), func(t *testing.T) {
					t.Parallel()
					l := begin(t, s)
					f := &firstFails{shift: shift, met: map[string]string{}, lost: map[string]error{}}
					l.Faults.On("* *", testenv.Fault{Before: f.before, After: f.after})
					l.live()
					l.wantOutcome(want)
					if n := f.count(); n < 7 { // five watches, a Job and a status
						t.Errorf("only %d calls were made to fail", n)
					}
				})
			}
		})
	}
}

// shortLives is how many lives of each shape the short form has.
const shortLives = 2

// firstFails has each call fail when it is made for the first time. Calls are the same where verb, resource and name are.
type firstFails struct {
	shift int

	mu   sync.Mutex
	met  map[string]string // the failures, by call
	lost map[string]error  // answers to come
}

func (f *firstFails) before(_ context.Context, c testenv.Call) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.met[c.String()] != "" {
		return nil
	}
	one := failures[(len(f.met)+f.shift)%len(failures)]
	if apierrors.IsConflict(one.err) && !c.Writes() {
		one = failures[(len(f.met)+f.shift+1)%len(failures)] // a read meets no conflict
	}
	f.met[c.String()] = one.name
	if one.stored {
		f.lost[c.String()] = one.err
		return nil
	}
	return one.err
}

func (f *firstFails) after(_ context.Context, c testenv.Call, _ int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.lost[c.String()]
	delete(f.lost, c.String())
	return err
}

func (f *firstFails) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.met)
}
