package reporter

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
)

// TestFailedDeliveryIsTriedAgain: after 1, 3 and 9 seconds; then the report is on disk, and the waits grow to their cap.
func TestFailedDeliveryIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
	r.start(nil)
	r.take("/v1/stage", `{"name":"resize"}`)
	r.came(1)
	for i, wait := range []time.Duration{1, 3, 9, 18, 30, 30} {
		if i < 3 && r.spooled() != "" {
			t.Errorf("after %d failures there is %s on disk", i+1, r.spooled())
		}
		r.step(wait*time.Second - 1)
		r.came(i + 1)
		r.step(1)
		r.came(i + 2)
	}
	if got := r.spooled(); got != "stage.json" {
		t.Errorf("on disk is %q", got)
	}
	if s := r.status(); s.Queued != 1 || s.Spooled != 1 || s.Retries != 7 || s.Delivered != 0 {
		t.Errorf("status %+v", s)
	}
	r.gateway.answers(nil)
	r.step(30 * time.Second)
	r.came(8)
	for i, got := range r.gateway.reports() {
		if got.RetryCount != i || got.Sequence != 1 || got.token != "Bearer "+secret || got.TaskID != "uid" || got.Attempt != 2 {
			t.Errorf("delivery %d is %+v", i, got)
		}
	}
	eventually(t, "the spool is empty", func() bool { return r.spooled() == "" })
	if s := r.status(); s.Delivered != 1 || s.DeliveredRetries != 7 || s.Retries != 7 || s.Queued != 0 {
		t.Errorf("status %+v", s)
	}
}

// TestSuccessMakesTheRestGo: what is stuck gets another number once others have overtaken it, because under its old one it
// would be ignored; and it goes as soon as anything is delivered.
func TestSuccessMakesTheRestGo(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusServiceUnavailable, report.Unavailable))
	r.start(nil)
	r.take("/v1/checkpoint", `{"page":1}`)
	r.came(1)
	for i, wait := range []time.Duration{1, 3, 9} {
		r.step(wait * time.Second)
		r.came(i + 2)
	}
	r.step(2 * time.Second)
	r.gateway.answers(nil)
	r.take("/v1/stage", `{"name":"a"}`)
	r.came(6)
	got := r.gateway.reports()[4:]
	if got[0].Kind != report.Stage || got[0].Sequence != 2 || got[1].Kind != report.Checkpoint || got[1].Sequence != 3 ||
		got[1].RetryCount != 4 {
		t.Errorf("got %+v", got)
	}
	eventually(t, "the spool is empty", func() bool { return r.spooled() == "" })
}

func TestUnreachableGateway(t *testing.T) {
	r := newRig(t)
	url := r.gateway.URL
	r.gateway.Close()
	r.start(nil)
	r.take("/v1/succeeded", `{"url":"s3://b/k"}`)
	eventually(t, "a delivery has failed", func() bool { return r.status().Retries == 1 })
	if !strings.Contains(r.log.String(), "connection refused") {
		t.Errorf("the log does not say why %s was not reached: %s", url, r.log)
	}
}

// TestDialsTheAddressFirst: without DNS the gateway is reached by its address, under the name of the URL; and by the URL where
// the address is dead.
func TestDialsTheAddressFirst(t *testing.T) {
	for name, c := range map[string]struct{ host, address string }{
		"no DNS":           {"http://gateway.invalid", "live"},
		"the address dies": {"live", "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			live := strings.TrimPrefix(r.gateway.URL, "http://")
			r.config.GatewayURL = strings.Replace(c.host, "live", r.gateway.URL, 1) + "/v1/reports"
			r.config.GatewayAddress = strings.Replace(c.address, "live", live, 1)
			r.start(nil)
			r.take("/v1/heartbeat", "")
			r.came(1)
		})
	}
}

func TestRetryAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "0": 0, "-1": 0, "NaN": 0, "x": 0,
		"1e99": maxRetryAfter, "3600": maxRetryAfter,
		" 7 ": 7 * time.Second, //nolint:gocritic // spaces are what is tried
		begin.Add(20 * time.Second).Format(http.TimeFormat): 20 * time.Second,
		begin.Add(-time.Hour).Format(http.TimeFormat):       0,
		begin.Add(time.Hour).Format(http.TimeFormat):        maxRetryAfter,
	} {
		if got := retryAfter(value, begin); got != want {
			t.Errorf("%q is %s, want %s", value, got, want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{"7", "1e99", "NaN", "Tue, 01 Jan 2030 00:00:20 GMT"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if d := retryAfter(value, begin); d < 0 || d > maxRetryAfter {
			t.Errorf("%q is %s", value, d)
		}
	})
}

func TestRetryAfterIsHonoured(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(func(*report.Report) gatewayAnswer {
		return gatewayAnswer{status: http.StatusTooManyRequests, code: report.TooManyRequests, retryAfter: "20"}
	})
	r.start(nil)
	r.take("/v1/heartbeat", "")
	r.came(1)
	r.step(20*time.Second - 1)
	r.came(1)
	r.step(1)
	r.came(2)
}

// TestTokenIsReadAgain: the kubelet replaces it. Without one nothing is sent, and nothing is lost.
func TestTokenIsReadAgain(t *testing.T) {
	r := newRig(t)
	r.start(nil)
	mustWrite(t, r.config.TokenFile, "")
	r.take("/v1/stage", `{"name":"a"}`)
	eventually(t, "a delivery has failed", func() bool { return r.status().Retries == 1 })
	mustWrite(t, r.config.TokenFile, "another")
	r.step(time.Second)
	r.came(1)
	if got := r.gateway.reports()[0].token; got != "Bearer another" {
		t.Errorf("the token is %q", got)
	}
}

// TestC48WrongFinishTime: the final report goes once more, without the time that the gateway does not take.
func TestC48WrongFinishTime(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(func(got *report.Report) gatewayAnswer {
		if got.ActualFinishTime != 0 {
			return gatewayAnswer{status: http.StatusBadRequest, code: report.InvalidFinishTime}
		}
		return gatewayAnswer{status: http.StatusOK}
	})
	r.start(nil)
	if status, a := r.post("/v1/succeeded?wait=30", `{}`); status != http.StatusOK || a.Outcome != report.Stored {
		t.Errorf("got %d %+v", status, a)
	}
	got := r.gateway.reports()
	if len(got) != 2 || got[0].ActualFinishTime != begin.UnixMilli() || got[0].Sequence != got[1].Sequence {
		t.Errorf("got %+v", got)
	}
}

// TestC69NothingSecretIsLogged: neither the token nor what a worker has said is in the log.
func TestC69NothingSecretIsLogged(t *testing.T) {
	r := newRig(t)
	r.gateway.answers(always(http.StatusForbidden, report.Forbidden))
	r.start(nil)
	r.take("/v1/checkpoint", `{"password":"hunter2"}`)
	r.post("/v1/failed?wait=30", `{"message":"hunter2"}`)
	r.stop()
	<-r.ended
	for _, word := range []string{secret, "hunter2"} {
		if strings.Contains(r.log.String(), word) {
			t.Errorf("the log has %q: %s", word, r.log)
		}
	}
	text, err := os.ReadFile(r.config.NoteFile)
	if err != nil || strings.Contains(string(text), secret) {
		t.Errorf("the note has the token: %s, %v", text, err)
	}
}
