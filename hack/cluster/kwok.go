package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
)

func (c *cluster) kwok() *component {
	return &component{Name: "kwok", Argv: []string{
		c.bin().path("kwok"),
		"--kubeconfig=" + c.path("config", "kwok.kubeconfig"),
		"--config=" + c.path("config", "kwok.yaml"),
		"--server-address=127.0.0.1:" + strconv.Itoa(c.ports().kwok),
	}}
}

// createSimulatedNodes adds the nodes that kwok then plays.
func createSimulatedNodes(ctx context.Context, a *api, count int) error {
	for i := range count {
		name := fmt.Sprintf("kwok-%d", i)
		resources := map[string]string{"cpu": "64", "memory": "256Gi", "pods": "1000", "ephemeral-storage": "1Ti"}
		node := map[string]any{
			"apiVersion": "v1", "kind": "Node",
			"metadata": map[string]any{
				"name": name,
				"labels": map[string]string{
					"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "type": "kwok",
				},
				"annotations": map[string]string{"kwok.x-k8s.io/node": "fake"},
			},
			"status": map[string]any{"allocatable": resources, "capacity": resources},
		}
		if err := a.do(ctx, http.MethodPost, "/api/v1/nodes", node, nil); err != nil {
			return err
		}
	}
	return nil
}
