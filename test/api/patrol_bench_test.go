package api

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/controllers/patrol"
	"github.com/taskwarden/taskwarden/controllers/task"
	"github.com/taskwarden/taskwarden/internal/lifecycle"
	"github.com/taskwarden/taskwarden/test/builders"
	"github.com/taskwarden/taskwarden/test/testenv"
)

const (
	benchTasks      = 20000
	benchUnfinished = 200
	// benchEvidence is how many of the finished Tasks have a Job that has not succeeded.
	benchEvidence = 1000
)

// BenchmarkPatrol is the cost of one pass over many Tasks of which few have not ended: its time, its requests, the heap that it needs
// beyond what there was, and how long another's reads take meanwhile.
func BenchmarkPatrol(b *testing.B) {
	env := testenv.New(b)
	fill(b, env)
	live := &counting{Reader: env.Client}
	r := &task.Reconciler{Client: env.Client, Live: env.Client, Recorder: events.NewFakeRecorder(1000), Clock: env.Clock}
	p := &patrol.Patrol{
		Live: live, Client: env.Client, Recorder: r.Recorder, Clock: env.Clock, Repairer: r.Repairer(live),
		Options: patrol.Options{Period: patrol.DefaultPeriod, Threshold: patrol.DefaultThreshold, Namespaces: []string{env.Namespace}},
	}
	idle := readUntil(b, env, func() { <-time.After(3 * time.Second) })
	var during []time.Duration
	var peak uint64
	var longest time.Duration
	live.calls.Store(0)
	for b.Loop() {
		base := heap()
		top := make(chan uint64)
		over := make(chan struct{})
		go func() { top <- highest(over) }()
		during = append(during, readUntil(b, env, func() {
			began := time.Now()
			if found, err := p.Pass(b.Context()); err != nil || len(found) > 0 {
				b.Errorf("found %v, error %v", found, err)
			}
			longest = max(longest, time.Since(began))
		})...)
		close(over)
		peak = max(peak, <-top-base)
	}
	b.ReportMetric(float64(live.calls.Load())/float64(b.N), "requests/op")
	b.ReportMetric(longest.Seconds(), "s-longest-pass")
	b.ReportMetric(float64(peak)/(1<<20), "MiB-extra")
	b.ReportMetric(p99(idle), "ms-p99-read-idle")
	b.ReportMetric(p99(during), "ms-p99-read-during")
}

// counting counts what is asked.
type counting struct {
	client.Reader
	calls atomic.Int64
}

func (c *counting) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	c.calls.Add(1)
	return c.Reader.Get(ctx, key, obj, opts...)
}

func (c *counting) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.calls.Add(1)
	return c.Reader.List(ctx, list, opts...)
}

func heap() uint64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// highest is the highest heap, garbage included, until it is over.
func highest(over <-chan struct{}) uint64 {
	var top uint64
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		top = max(top, m.HeapAlloc)
		select {
		case <-over:
			return top
		case <-tick.C:
		}
	}
}

// readUntil reads one Task again and again until do comes to its end, and gives how long each read took.
func readUntil(b *testing.B, env *testenv.Env, do func()) []time.Duration {
	over := make(chan struct{})
	go func() { defer close(over); do() }()
	var took []time.Duration
	for {
		began := time.Now()
		if err := env.Client.Get(b.Context(), client.ObjectKey{Namespace: env.Namespace, Name: "bench-0"}, &v1alpha1.Task{}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		select {
		case <-over:
			return took
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func p99(took []time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)*99/100].Microseconds()) / 1000
}

// fill stores the Tasks, and Jobs of some. The Jobs are suspended, so that they cost nobody anything.
func fill(b *testing.B, env *testenv.Env) {
	b.Helper()
	store := func(i int) error {
		one := builders.Task(fmt.Sprint("bench-", i)).Namespace(env.Namespace).Input(map[string]int{"picture": i}).Obj()
		if err := env.Client.Create(b.Context(), one); err != nil {
			return err
		}
		if i < benchUnfinished+benchEvidence {
			if err := env.Client.Create(b.Context(), suspendedJob(one)); err != nil {
				return err
			}
		}
		lifecycle.Accept(one, one.CreationTimestamp.Time)
		lifecycle.Begin(one, task.JobName(one.Name, 1), one.CreationTimestamp.Time)
		if i >= benchUnfinished {
			start := v1alpha1.WorkerStatus{PodName: one.Name + "-1-pod", NodeName: "node", StartTime: ptr.To(metav1.NewMicroTime(one.CreationTimestamp.Time))}
			if err := lifecycle.Started(one, start, one.CreationTimestamp.Time); err != nil {
				return err
			}
			if _, err := lifecycle.End(one, lifecycle.Ending{Event: lifecycle.Succeed, Reason: v1alpha1.ReasonCompleted}, lifecycle.Facts{WorkerStopped: true},
				one.CreationTimestamp.Time); err != nil {
				return err
			}
		}
		return env.Client.Status().Update(b.Context(), one)
	}
	workqueue.ParallelizeUntil(b.Context(), 16, benchTasks, func(i int) {
		if err := store(i); err != nil {
			b.Error(err)
		}
	})
	if b.Failed() {
		b.FailNow()
	}
}

func suspendedJob(one *v1alpha1.Task) *batchv1.Job {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: one.Namespace, Name: task.JobName(one.Name, 1),
		Labels:          map[string]string{v1alpha1.LabelAttempt: "1", v1alpha1.LabelTaskUID: string(one.UID)},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(one, v1alpha1.GroupVersion.WithKind("Task"))},
	}}
	job.Spec.Template = builders.Pod().Obj()
	job.Spec.Template.Labels = job.Labels
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	job.Spec.Suspend = ptr.To(true)
	return job
}
