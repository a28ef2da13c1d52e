// Package audit reads the API server's audit log: what was really asked of the server and what it really stored, told by
// neither the operator nor its status.
package audit

import (
	"encoding/json"
	"net/url"
	"time"
)

// Event is the part of an audit event that tests look at. The type of k8s.io/apiserver is not used because it would bring
// the whole API server into the build of every test.
type Event struct {
	ID         string `json:"auditID"`
	Stage      string `json:"stage"`
	RequestURI string `json:"requestURI"`
	Verb       string `json:"verb"`
	User       User   `json:"user"`
	ActsAs     *User  `json:"impersonatedUser,omitempty"`
	UserAgent  string `json:"userAgent,omitempty"`
	Object     Ref    `json:"objectRef"`
	Status     Status `json:"responseStatus"`
	// Request and Response are the bodies, where the policy of the log keeps them.
	Request  json.RawMessage `json:"requestObject,omitempty"`
	Response json.RawMessage `json:"responseObject,omitempty"`
	Received time.Time       `json:"requestReceivedTimestamp"`
	Done     time.Time       `json:"stageTimestamp"`
}

// User is who asked.
type User struct {
	Name string `json:"username"`
}

// Ref is what was asked about.
type Ref struct {
	Group       string `json:"apiGroup,omitempty"`
	Resource    string `json:"resource,omitempty"`
	Subresource string `json:"subresource,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
	UID         string `json:"uid,omitempty"`
}

// Status is what was answered.
type Status struct {
	Code int `json:"code,omitempty"`
}

// UserName is on whose behalf the request was made.
func (e *Event) UserName() string {
	if e.ActsAs != nil {
		return e.ActsAs.Name
	}
	return e.User.Name
}

// Write tells whether the request meant to change something that is stored.
func (e *Event) Write() bool {
	switch e.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return !e.dryRun()
	}
	return false
}

// Stored tells whether the request changed, or could have changed, something.
func (e *Event) Stored() bool {
	return e.Write() && e.Status.Code >= 200 && e.Status.Code < 300
}

// Is tells whether the request was about this resource, "tasks/status" or "jobs", say.
func (e *Event) Is(resource string) bool {
	own := e.Object.Resource
	if e.Object.Subresource != "" {
		own += "/" + e.Object.Subresource
	}
	return own == resource
}

func (e *Event) dryRun() bool {
	u, err := url.ParseRequestURI(e.RequestURI)
	return err == nil && u.Query().Get("dryRun") != ""
}

// Version is the resourceVersion of the object in the answer, "" where there is none.
func (e *Event) Version() string {
	var object struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if json.Unmarshal(e.Response, &object) != nil { // also where there is no body
		return ""
	}
	return object.Metadata.ResourceVersion
}
