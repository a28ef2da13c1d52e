package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/gateway"
	"github.com/taskwarden/taskwarden/internal/report"
	"github.com/taskwarden/taskwarden/test/testenv"
)

// mouth delivers what played workers report to a gateway in this process, as their sidecars do.
type mouth struct {
	env     *testenv.Env
	handler http.Handler
}

func newMouth(t *testing.T, env *testenv.Env) *mouth {
	t.Helper()
	c, err := client.New(env.Config, client.Options{Scheme: testenv.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &mouth{env: env, handler: gateway.New(gateway.Options{Client: c, WriteInterval: time.Millisecond}).Handler()}
}

// say delivers a report of a pod's worker and gives the status of the gateway's answer.
func (m *mouth) say(ctx context.Context, pod *corev1.Pod, r *report.Report) (int, error) {
	r.TaskID = pod.Labels[v1alpha1.LabelTaskUID]
	if _, err := fmt.Sscan(pod.Labels[v1alpha1.LabelAttempt], &r.Attempt); err != nil {
		return 0, err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "default"}}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences:      []string{v1alpha1.TokenAudience},
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	if err := m.env.Client.SubResource("token").Create(ctx, account, token); err != nil {
		return 0, err
	}
	body, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, report.GatewayPath, bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+token.Status.Token)
	answer := httptest.NewRecorder()
	m.handler.ServeHTTP(answer, request)
	return answer.Code, nil
}

// final delivers a final report as a sidecar does: again and again until the gateway has taken or refused it for good, or the pod
// is gone. It tells whether it was taken.
func (m *mouth) final(ctx context.Context, pod *corev1.Pod, r *report.Report) bool {
	ctx, cancel := context.WithTimeout(ctx, testenv.Patience)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		switch code, err := m.say(ctx, pod, r); {
		case err != nil && client.IgnoreNotFound(err) == nil:
			return false // the pod is gone, and its token with it
		case err != nil, code == http.StatusTooManyRequests, code >= http.StatusInternalServerError:
		default:
			return code == http.StatusOK
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}
