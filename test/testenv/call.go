package testenv

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Call is one request of the operator.
type Call struct {
	// Verb is get, list, watch, create, update, patch, delete or deletecollection.
	Verb string
	// Resource is plural, as in "jobs".
	Resource string
	// Subresource as in "status", or "".
	Subresource string
	Namespace   string
	// Name is "" for a creation: see Into.
	Name string
	// Body is what was sent, as JSON.
	Body []byte
}

func (c Call) String() string {
	what := c.Resource
	if c.Subresource != "" {
		what += "/" + c.Subresource
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Verb, what, c.Name))
}

// Into reads the body into an object.
func (c Call) Into(object any) error { return json.Unmarshal(c.Body, object) }

// matches tells whether a call is meant by a pattern: a verb and a resource, "create jobs" or "update tasks/status", where
// either may be "*" and the verb "write" stands for all that change something.
func (c Call) matches(pattern string) bool {
	verb, what, ok := strings.Cut(pattern, " ")
	if !ok {
		panic(fmt.Sprintf("testenv: %q is not a pattern such as \"create jobs\"", pattern))
	}
	own := c.Resource
	if c.Subresource != "" {
		own += "/" + c.Subresource
	}
	verbFits := verb == "*" || verb == c.Verb || verb == "write" && c.Writes()
	return verbFits && (what == "*" || what == own)
}

// Writes tells whether it changes something.
func (c Call) Writes() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, c.Verb)
}

// parseCall reads a request as the API server does. The second result is false for what is about no resource.
func parseCall(r *http.Request) (Call, bool) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return Call{}, false // discovery
	}
	var c Call
	if parts[0] == "namespaces" && len(parts) > 2 {
		c.Namespace, parts = parts[1], parts[2:]
	}
	c.Resource = parts[0]
	if len(parts) > 1 {
		c.Name = parts[1]
	}
	if len(parts) > 2 {
		c.Subresource = strings.Join(parts[2:], "/")
	}
	c.Verb = verbOf(r, c.Name)
	return c, true
}

func verbOf(r *http.Request, name string) string {
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if name == "" {
			return "deletecollection"
		}
		return "delete"
	}
	switch {
	case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
		return "watch"
	case name == "":
		return "list"
	}
	return "get"
}
