package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// watchAgain is the pause before a watch that has ended is begun anew.
const watchAgain = 200 * time.Millisecond

// sightings are what was to be seen of the Tasks while they ran. The end of a Task does not tell: its status then has the last
// stage alone, and 100 percent.
type sightings struct {
	mu    sync.Mutex
	tasks map[types.UID]*sighting
}

type sighting struct {
	stages   []string // in the order in which they were seen first
	percents []int32  // each once; those between 0 and 100, which neither a start nor an end gives
}

func newSightings() *sightings { return &sightings{tasks: map[types.UID]*sighting{}} }

// watch looks until ctx is done. Polling would miss what is soon replaced.
func (s *sightings) watch(ctx context.Context, api client.WithWatch) {
	for ctx.Err() == nil {
		if w, err := api.Watch(ctx, &v1alpha1.TaskList{}, client.InNamespace(demoNamespace)); err == nil {
			s.noteAll(ctx, w)
		} else if ctx.Err() == nil {
			say("watching for progress: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// noteAll notes what a watch shows, until it or ctx ends.
func (s *sightings) noteAll(ctx context.Context, w watch.Interface) {
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-w.ResultChan():
			if !open {
				return
			}
			if t, ok := event.Object.(*v1alpha1.Task); ok {
				s.note(t)
			}
		}
	}
}

func (s *sightings) note(t *v1alpha1.Task) {
	p := t.Status.Progress
	if p == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.tasks[t.UID]
	if seen == nil {
		seen = &sighting{}
		s.tasks[t.UID] = seen
	}
	if p.Stage != "" && !slices.Contains(seen.stages, p.Stage) {
		seen.stages = append(seen.stages, p.Stage)
	}
	if p.Percent != nil && *p.Percent > 0 && *p.Percent < 100 && !slices.Contains(seen.percents, *p.Percent) {
		seen.percents = append(seen.percents, *p.Percent)
	}
}

// check compares what was seen of a Task with what the sample says that there is to see.
func (s *sightings) check(sample, ended *v1alpha1.Task) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.tasks[ended.UID]
	if seen == nil {
		seen = &sighting{}
	}
	if want := sample.Annotations[expectStages]; want != "" && !slices.Equal(strings.Split(want, ","), seen.stages) {
		return fmt.Errorf("stages %s were seen, want %s", strings.Join(seen.stages, ","), want)
	}
	text := sample.Annotations[expectPercents]
	if text == "" {
		return nil
	}
	want, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("annotation %s: %w", expectPercents, err)
	}
	if len(seen.percents) < want {
		return fmt.Errorf("progress was seen at %v percent, want %d different ones", seen.percents, want)
	}
	if p := ended.Status.Progress; p == nil || p.Percent == nil || *p.Percent != 100 {
		return fmt.Errorf("at the end the progress is %+v, want 100 percent", p)
	}
	return nil
}
