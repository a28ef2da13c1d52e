package reporter

import (
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/taskwarden/taskwarden/internal/report"
)

// Environment variables of the sidecar that the operator does not set; those that it sets are in package report.
const (
	// EnvListen is the address of the worker's API. It must be a loopback address. Default 127.0.0.1:7788.
	EnvListen = "TASKWARDEN_LISTEN"
	// EnvNoteFile is the sidecar's termination message. Default /dev/termination-log.
	EnvNoteFile = "TASKWARDEN_NOTE_FILE"
)

const (
	defaultNoteFile = "/dev/termination-log"
	defaultGrace    = 180
	maxGraceSeconds = 7 * 24 * 3600
)

// Config is what the environment says.
type Config struct {
	TaskUID string
	Attempt int32
	// GatewayURL is the whole URL that reports are posted to.
	GatewayURL string
	// GatewayAddress is dialled first; empty for the URL's own host.
	GatewayAddress string
	// RootCAs are nil with http alone.
	RootCAs   *x509.CertPool
	TokenFile string
	// SpoolDir holds what is not delivered yet.
	SpoolDir string
	Listen   string
	NoteFile string
	// NoteLimit is in bytes.
	NoteLimit int
	// CommandFile is empty where no copy of the program is wanted.
	CommandFile string
	// Grace is how long the sidecar may take to end, from SIGTERM.
	Grace time.Duration
}

// FromEnvironment reads the variables of this package. The error names each one that is missing or wrong, a line each.
func FromEnvironment(getenv func(string) string) (*Config, error) {
	e := &environment{getenv: getenv}
	c := &Config{
		TaskUID:        e.required(report.EnvTaskUID),
		Attempt:        int32(e.number(report.EnvAttempt, 0, 1, math.MaxInt32)),
		GatewayAddress: e.hostPort(report.EnvGatewayAddress, ""),
		TokenFile:      e.required(report.EnvTokenFile),
		SpoolDir:       e.folder(report.EnvSpool),
		Listen:         e.hostPort(EnvListen, report.DefaultListen),
		NoteFile:       e.optional(EnvNoteFile, defaultNoteFile),
		NoteLimit:      int(e.number(report.EnvNoteLimit, report.MaxNoteBytes, 1, report.MaxNoteBytes)),
		CommandFile:    e.optional(report.EnvCommandFile, ""),
		Grace:          time.Duration(e.number(report.EnvGraceSeconds, defaultGrace, 0, maxGraceSeconds)) * time.Second,
	}
	if len(c.TaskUID) > 64 {
		e.wrong(report.EnvTaskUID, "is not a UID")
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && !isLoopback(host) {
		e.wrong(EnvListen, "must be a loopback address, so that nobody outside of the pod can report")
	}
	e.gateway(c)
	if err := errors.Join(e.problems...); err != nil {
		return nil, err
	}
	return c, nil
}

// environment collects what is wrong with the variables that are read through it.
type environment struct {
	getenv   func(string) string
	problems []error
}

func (e *environment) wrong(name, format string, args ...any) {
	e.problems = append(e.problems, fmt.Errorf("environment variable %s %s", name, fmt.Sprintf(format, args...)))
}

func (e *environment) optional(name, value string) string {
	if v := e.getenv(name); v != "" {
		return v
	}
	return value
}

func (e *environment) required(name string) string {
	v := e.getenv(name)
	if v == "" {
		e.wrong(name, "is not set")
	}
	return v
}

// number reads a whole number. It is required where the default is out of its bounds.
func (e *environment) number(name string, value, least, most int64) int64 {
	text := e.getenv(name)
	if text == "" {
		if value < least {
			e.wrong(name, "is not set")
		}
		return value
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		e.wrong(name, "must be a whole number between %d and %d, not %.40q", least, most, text)
		return value
	}
	return n
}

func (e *environment) hostPort(name, value string) string {
	v := e.optional(name, value)
	if v == "" {
		return v
	}
	host, port, err := net.SplitHostPort(v)
	if n, errPort := strconv.Atoi(port); err != nil || host == "" || errPort != nil || n < 0 || n > math.MaxUint16 {
		e.wrong(name, "must be host:port, not %.80q", v)
	}
	return v
}

func (e *environment) folder(name string) string {
	v := e.required(name)
	if v != "" && !filepath.IsAbs(v) {
		e.wrong(name, "must be an absolute path, not %.80q", v)
	}
	return v
}

// gateway reads what is needed to trust the gateway.
func (e *environment) gateway(c *Config) {
	text := e.required(report.EnvGatewayURL)
	if text == "" {
		return
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		e.wrong(report.EnvGatewayURL, "must be a base URL such as https://taskwarden-gateway.taskwarden-system.svc:8443")
		return
	case u.Scheme == "http" && isLoopback(u.Hostname()):
	case u.Scheme != "https":
		e.wrong(report.EnvGatewayURL, "must begin with https://, because the token goes with each report")
		return
	default:
		c.RootCAs = x509.NewCertPool()
		if pem := e.required(report.EnvGatewayCA); pem != "" && !c.RootCAs.AppendCertsFromPEM([]byte(pem)) {
			e.wrong(report.EnvGatewayCA, "has no certificate in PEM")
		}
	}
	c.GatewayURL = strings.TrimSuffix(text, "/") + report.GatewayPath
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
