package reporter

import (
	"encoding/pem"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
)

// environ is an environment as the operator sets it, for a gateway with TLS.
func environ(t *testing.T, g *httptest.Server) map[string]string {
	dir := t.TempDir()
	return map[string]string{
		report.EnvTaskUID: "uid", report.EnvAttempt: "2",
		report.EnvGatewayURL:     g.URL,
		report.EnvGatewayCA:      string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw})),
		report.EnvTokenFile:      filepath.Join(dir, "token"),
		report.EnvSpool:          filepath.Join(dir, "spool"),
		report.EnvGatewayAddress: "", EnvListen: "", EnvNoteFile: "",
	}
}

func TestFromEnvironment(t *testing.T) {
	g := httptest.NewTLSServer(http.NotFoundHandler())
	defer g.Close()
	env := environ(t, g)
	c, err := FromEnvironment(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	if c.TaskUID != "uid" || c.Attempt != 2 || c.GatewayURL != g.URL+"/v1/reports" || c.Listen != "127.0.0.1:7788" ||
		c.NoteFile != "/dev/termination-log" || c.NoteLimit != 4096 || c.Grace != 180*time.Second || c.RootCAs == nil ||
		c.CommandFile != "" {
		t.Errorf("got %+v", c)
	}
	for name, values := range map[string][]string{
		report.EnvTaskUID: {"", strings.Repeat("u", 65)},
		report.EnvAttempt: {"", "0", "-1", "1.5", "x", "99999999999"},
		report.EnvGatewayURL: {"", "gateway", "http://gateway:8443", "ftp://gateway", "https://", "https://u:p@gateway",
			"https://g/?a=b", ":"},
		report.EnvGatewayAddress: {"10.0.0.1", ":8443", "10.0.0.1:x", "10.0.0.1:70000"},
		report.EnvGatewayCA:      {"", "junk"},
		report.EnvTokenFile:      {""},
		report.EnvSpool:          {"", "relative/path"},
		EnvListen:                {"0.0.0.0:7788", ":7788", "10.0.0.1:7788", "gateway:7788", "127.0.0.1"},
		report.EnvNoteLimit:      {"0", "4097", "x"},
		report.EnvGraceSeconds:   {"-1", "x"},
	} {
		for _, value := range values {
			wrong := maps.Clone(env)
			wrong[name] = value
			_, err := FromEnvironment(func(name string) string { return wrong[name] })
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%q: got %v, want an error that names it", name, value, err)
			}
		}
	}
	if _, err := FromEnvironment(func(string) string { return "" }); strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("not all that is missing is named at once: %v", err)
	}
}

// TestC68TLS: the sidecar trusts the certificates that it was given, and the name in its URL, whatever address it dials.
func TestC68TLS(t *testing.T) {
	g := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"outcome":"Stored"}`)
	}))
	defer g.Close()
	for name, c := range map[string]struct {
		change map[string]string
		taken  bool
	}{
		"the gateway": {taken: true},
		"by its cluster IP": {
			// The certificate of httptest is for example.com as well.
			change: map[string]string{
				report.EnvGatewayURL: "https://example.com:8443", report.EnvGatewayAddress: strings.TrimPrefix(g.URL, "https://"),
			}, taken: true,
		},
		"another name": {
			change: map[string]string{
				report.EnvGatewayURL: "https://gateway.invalid:8443", report.EnvGatewayAddress: strings.TrimPrefix(g.URL, "https://"),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := environ(t, g)
			maps.Copy(env, c.change)
			config, err := FromEnvironment(func(name string) string { return env[name] })
			if err != nil {
				t.Fatal(err)
			}
			mustWrite(t, config.TokenFile, secret)
			r := newRig(t)
			d := newGateway(config, r.clock).send(t.Context(), &report.Report{TaskID: "u", Attempt: 1, Sequence: 1,
				Kind: report.Heartbeat})
			if d.taken() != c.taken {
				t.Errorf("got %+v", d)
			}
			if !c.taken && d.answered() {
				t.Error("something was sent to a gateway that is not trusted")
			}
		})
	}
}

// TestC68NoRedirect: the token goes to nobody but the gateway.
func TestC68NoRedirect(t *testing.T) {
	asked := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer other.Close()
	redirecting := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer redirecting.Close()
	r := newRig(t)
	r.config.GatewayURL = redirecting.URL
	d := newGateway(r.config, r.clock).send(t.Context(), &report.Report{TaskID: "u", Attempt: 1, Sequence: 1,
		Kind: report.Heartbeat})
	if asked || d.taken() || new(queue).refused(&item{}, &d) {
		t.Errorf("got %+v, asked elsewhere: %v", d, asked)
	}
}
