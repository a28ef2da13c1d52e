package main

import (
	"bytes"
	"embed"
	"encoding/base64"
	"fmt"
	"os"
	"text/template"
)

//go:embed config
var configFiles embed.FS

// renderConfig fills a file of the folder config. A name the template asks for and data
// lacks is an error, not an empty string in some server's configuration.
func renderConfig(name string, data any) ([]byte, error) {
	t, err := template.New(name).Option("missingkey=error").
		Funcs(template.FuncMap{"base64": func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }}).
		ParseFS(configFiles, "config/"+name)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		return nil, fmt.Errorf("config %s: %w", name, err)
	}
	return out.Bytes(), nil
}

// writeConfigs renders the configuration files of the components this mode runs.
func (c *cluster) writeConfigs() error {
	net := slotNetwork(c.Slot)
	data := map[string]any{
		"Dir": c.dir, "Name": c.Name, "Slot": c.Slot, "NodeName": c.nodeName(), "Address": c.address(),
		"Pods": net.pods, "PodGateway": net.pods.Addr().Next(), "Cgroup": c.cgroup(), "PauseImage": pauseImage, "CNIBinDir": cniBinDir,
	}
	names := []string{"audit-policy.yaml"}
	if c.Mode == modeKubelet {
		names = append(names, "kubelet.yaml", "kube-proxy.yaml", "containerd.toml", "cni.conflist")
	}
	if c.Mode == modeKwok {
		// Full of kwok's own templates, so it is copied and not rendered.
		content, err := configFiles.ReadFile("config/kwok.yaml")
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.path("config", "kwok.yaml"), content, 0o644); err != nil {
			return err
		}
	}
	for _, name := range names {
		content, err := renderConfig(name, data)
		if err != nil {
			return err
		}
		target := c.path("config", name)
		if name == "cni.conflist" {
			target = c.path("config", "cni", "10-bridge.conflist")
		}
		if err := os.WriteFile(target, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
