package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// api asks the cluster's API server the few things `up` and `status` need. It is plain
// HTTP so that this program does not link client-go and compiles in seconds.
type api struct {
	url    string
	client *http.Client
}

func (c *cluster) api() (*api, error) {
	cert, err := tls.LoadX509KeyPair(c.path("pki", "admin.crt"), c.path("pki", "admin.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(c.path("pki", "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &api{url: c.apiURL(), client: &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots}},
	}}, nil
}

func (a *api) do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		content, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(content)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, content)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(content, out)
}

func (a *api) get(ctx context.Context, path string, out any) error {
	return a.do(ctx, http.MethodGet, path, nil, out)
}

// nodes answers how many nodes there are and how many of them are ready.
func (a *api) nodes(ctx context.Context) (ready, total int, err error) {
	var list struct {
		Items []struct {
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := a.get(ctx, "/api/v1/nodes", &list); err != nil {
		return 0, 0, err
	}
	for _, node := range list.Items {
		for _, cond := range node.Status.Conditions {
			if cond.Type == "Ready" && cond.Status == "True" {
				ready++
			}
		}
	}
	return ready, len(list.Items), nil
}

// ready asks for the API server's own verdict, which includes etcd and its start hooks.
func (a *api) ready(ctx context.Context) error { return a.get(ctx, "/readyz", nil) }
