package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/gateway"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/test/benchkit"
)

// rivalEvery is for every how many-th worker the replicas are asked to disagree.
const rivalEvery = 10

// rival brings to one replica what another one has taken: a final report once more, whose answer might have been lost, and one
// that says something else. The first one must be known, the second one refused.
type rival struct {
	api       client.Client
	http      *http.Client
	addresses []string

	asked, disagreed, refused atomic.Int64
}

func newRival(ctx context.Context, api client.Client, addresses []string) (*rival, error) {
	var ca corev1.ConfigMap
	key := client.ObjectKey{Namespace: benchkit.Namespace, Name: gateway.ConfigMapName}
	if err := api.Get(ctx, key, &ca); err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca.Data[gateway.ConfigMapKey])) {
		return nil, errors.New("the gateway's ConfigMap has no certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	return &rival{api: api, addresses: addresses, http: &http.Client{Transport: transport, Timeout: time.Minute}}, nil
}

// check asks the replica that the worker's sidecar does not report to.
func (r *rival) check(ctx context.Context, w *worker, home int) error {
	var t v1alpha1.Task
	if err := r.api.Get(ctx, client.ObjectKey{Namespace: w.object.Namespace, Name: w.task}, &t); err != nil {
		return err
	}
	if t.Status.Report == nil {
		return errors.New("the gateway has acknowledged a final report that is not in the status")
	}
	again := &report.Report{
		TaskID: w.uid, Attempt: w.attempt, Sequence: t.Status.Report.Sequence, Kind: report.Succeeded,
		Result: &report.ResultPayload{URL: w.word.url, Data: json.RawMessage(w.word.data), Message: w.task},
	}
	address := r.addresses[(home+1)%len(r.addresses)]
	return errors.Join(
		r.ask(ctx, w, address, again, http.StatusOK),
		r.ask(ctx, w, address, lie(w, again.Sequence+1), http.StatusConflict),
	)
}

// late has the pod of an earlier attempt say that it has succeeded after all.
func (r *rival) late(ctx context.Context, earlier *worker) error {
	for _, address := range r.addresses {
		if err := r.ask(ctx, earlier, address, lie(earlier, math.MaxInt32), http.StatusGone); err != nil {
			return err
		}
	}
	return nil
}

// lie is a final report that the worker has not made.
func lie(w *worker, sequence int64) *report.Report {
	return &report.Report{
		TaskID: w.uid, Attempt: w.attempt, Sequence: sequence, Kind: report.Succeeded,
		Result: &report.ResultPayload{URL: "https://results.example/other", Data: json.RawMessage(`"other"`)},
	}
}

// ask brings a report to a replica, which should answer with a status and store nothing.
func (r *rival) ask(ctx context.Context, w *worker, address string, body *report.Report, want int) error {
	r.asked.Add(1)
	status, answer, err := r.post(ctx, w, address, body)
	if err != nil {
		return err
	}
	if status >= http.StatusBadRequest {
		r.refused.Add(1)
	}
	if status != want || answer.Outcome == report.Stored {
		r.disagreed.Add(1)
		benchkit.Say("%s: the replica answers %d %+v, not %d", w.task, status, answer, want)
	}
	return nil
}

func (r *rival) post(ctx context.Context, w *worker, address string, body *report.Report) (int, report.Answer, error) {
	var answer report.Answer
	text, err := json.Marshal(body)
	if err != nil {
		return 0, answer, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+report.GatewayPath, bytes.NewReader(text))
	if err != nil {
		return 0, answer, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+w.token)
	res, err := r.http.Do(req)
	if err != nil {
		return 0, answer, fmt.Errorf("ask the other replica: %w", err)
	}
	err = json.NewDecoder(res.Body).Decode(&answer)
	return res.StatusCode, answer, errors.Join(err, res.Body.Close())
}
