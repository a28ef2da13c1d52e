package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/taskwarden/taskwarden/test/audit"
	"github.com/taskwarden/taskwarden/test/benchkit"
)

// ledger is what the log tells of one run. Names are joined only at the end: requests that end together may be logged in any
// order.
type ledger struct {
	tasks map[string]*entry
	jobs  map[string]*entry
	pods  map[string]*entry
	// writes of the operator; it asks for nothing else in the log but reads of Tasks and Jobs.
	writes    []write
	reads     int
	conflicts int
	// requests of everybody, by user agent: writes, and reads of Tasks and Jobs.
	requests map[string]int
}

// entry is one object.
type entry struct {
	owner   string    // of a Job its Task, of a pod its Job
	created time.Time // stored
	ended   time.Time // of a Task its terminal state, of a Job its Complete, of a pod the end of its worker: stored
	state   string    // of a Task: the terminal one
}

type write struct {
	resource, name string
	at             time.Time
}

func newLedger() *ledger {
	return &ledger{tasks: map[string]*entry{}, jobs: map[string]*entry{}, pods: map[string]*entry{}, requests: map[string]int{}}
}

// object is what a ledger reads of a Task, a Job or a pod.
type object struct {
	Metadata struct {
		Name            string `json:"name"`
		OwnerReferences []struct {
			Name       string `json:"name"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Status struct {
		State      string `json:"state"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
		ContainerStatuses []struct {
			Name  string `json:"name"`
			State struct {
				Terminated *struct{} `json:"terminated"`
			} `json:"state"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

// add enters one request.
func (l *ledger) add(e *audit.Event) error {
	agent, _, _ := strings.Cut(e.UserAgent, "/")
	l.requests[agent]++
	if strings.HasPrefix(e.UserAgent, benchkit.Controller) {
		l.addOperator(e)
	}
	var entries map[string]*entry
	switch e.Object.Resource {
	case "tasks":
		entries = l.tasks
	case "jobs":
		entries = l.jobs
	case "pods":
		entries = l.pods
	}
	// A binding answers with a Status; a deletion tells nothing that is wanted here.
	if entries == nil || !e.Stored() || e.Object.Subresource == "binding" || strings.HasPrefix(e.Verb, "delete") {
		return nil
	}
	var o object
	if err := json.Unmarshal(e.Response, &o); err != nil {
		return fmt.Errorf("answer to %s %s: %w", e.Verb, e.RequestURI, err)
	}
	enter(entries, e, &o)
	return nil
}

func (l *ledger) addOperator(e *audit.Event) {
	if e.Status.Code == 409 {
		l.conflicts++
	}
	switch {
	case e.Verb == "get" || e.Verb == "list":
		l.reads++
	case e.Write() && e.Object.Resource != "events" && e.Object.Resource != "leases":
		l.writes = append(l.writes, write{resource: e.Object.Resource, name: e.Object.Name, at: e.Done})
	}
}

// enter updates the entry of an object; the first moment counts where it is stored again and again.
func enter(entries map[string]*entry, e *audit.Event, o *object) {
	one := entries[o.Metadata.Name]
	if one == nil {
		one = &entry{}
		entries[o.Metadata.Name] = one
	}
	if e.Verb == "create" && e.Object.Subresource == "" {
		one.created = e.Done
	}
	for _, owner := range o.Metadata.OwnerReferences {
		if owner.Controller {
			one.owner = owner.Name
		}
	}
	if over, state := o.over(e.Object.Resource); over && (one.ended.IsZero() || e.Done.Before(one.ended)) {
		one.ended, one.state = e.Done, state
	}
}

// over tells whether this version of an object says that it is at its end.
func (o *object) over(resource string) (over bool, state string) {
	switch resource {
	case "tasks":
		switch o.Status.State {
		case "Succeeded", "Failed", "Cancelled":
			return true, o.Status.State
		}
	case "jobs":
		for _, c := range o.Status.Conditions {
			if c.Type == "Complete" && c.Status == "True" {
				return true, ""
			}
		}
	case "pods":
		for _, c := range o.Status.ContainerStatuses {
			if c.Name == workerName && c.State.Terminated != nil {
				return true, ""
			}
		}
	}
	return false, ""
}

// unit is one Task or one plain Job, from its creation to its end. Moments that did not come are zero.
type unit struct {
	created, podEnded, jobComplete, ended time.Time
}

// plainJobs are the units of a run of Jobs.
func (l *ledger) plainJobs() []unit {
	podOf := l.podByJob()
	units := make([]unit, 0, len(l.jobs))
	for name, job := range l.jobs {
		u := unit{created: job.created, jobComplete: job.ended, ended: job.ended}
		if pod := podOf[name]; pod != nil {
			u.podEnded = pod.ended
		}
		units = append(units, u)
	}
	return units
}

// taskUnits are the units of a run of Tasks, and an error where one has not succeeded at its first attempt: then the run
// says nothing.
func (l *ledger) taskUnits() ([]unit, error) {
	podOf := l.podByJob()
	jobOf := map[string]string{}
	for name, job := range l.jobs {
		if other, ok := jobOf[job.owner]; ok {
			return nil, fmt.Errorf("two Jobs of Task %s: %s and %s", job.owner, other, name)
		}
		jobOf[job.owner] = name
	}
	units := make([]unit, 0, len(l.tasks))
	for name, task := range l.tasks {
		if task.state != "Succeeded" {
			return nil, fmt.Errorf("the end of Task %s is %q", name, task.state)
		}
		job, pod := l.jobs[jobOf[name]], podOf[jobOf[name]]
		if job == nil || pod == nil {
			return nil, fmt.Errorf("no Job or no pod of Task %s, which succeeded", name)
		}
		units = append(units, unit{created: task.created, podEnded: pod.ended, jobComplete: job.ended, ended: task.ended})
	}
	return units, nil
}

func (l *ledger) podByJob() map[string]*entry {
	podOf := map[string]*entry{}
	for _, pod := range l.pods {
		podOf[pod.owner] = pod
	}
	return podOf
}

// writesUntilEnd counts the operator's writes up to the terminal state of their Task, that write included. What belongs to no
// known Task counts, too.
func (l *ledger) writesUntilEnd() int {
	n := 0
	for _, w := range l.writes {
		name := w.name
		if w.resource == "pods" && l.pods[name] != nil {
			w.resource, name = "jobs", l.pods[name].owner
		}
		if w.resource == "jobs" && l.jobs[name] != nil {
			name = l.jobs[name].owner
		}
		if task := l.tasks[name]; task == nil || !w.at.After(task.ended) {
			n++
		}
	}
	return n
}
