// Package workertext reads what a worker leaves in its termination message: JSON that is a result, or a text for people.
// The message comes from anybody's program and may be cut, hostile or binary; what is stored of it is bounded and valid:
// the limits are those of reports, and the text says what was left out because of them.
package workertext

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
	"github.com/taskwarden/taskwarden/internal/report"
)

// Parse says what a termination message means:
//
//   - an object with one or more of the keys url, data, logURL and message and no other key is the result, member by
//     member; message is the text;
//   - any other JSON object or array is the result's data;
//   - everything else is the text, also JSON that does not parse: half a result is none.
//
// The result is nil where there is none. The text is not cut here.
func Parse(message string) (*v1alpha1.TaskResult, string) {
	trimmed := strings.TrimSpace(message)
	if !strings.HasPrefix(trimmed, "{") && !strings.HasPrefix(trimmed, "[") {
		return nil, trimmed
	}
	if !utf8.ValidString(trimmed) || !json.Valid([]byte(trimmed)) {
		return nil, broken(message)
	}
	p := parser{}
	var members map[string]json.RawMessage
	if json.Unmarshal([]byte(trimmed), &members) == nil && isResult(members) {
		p.members(members)
	} else {
		p.data(json.RawMessage(trimmed))
	}
	if p.result == (v1alpha1.TaskResult{}) {
		return nil, p.text()
	}
	return &p.result, p.text()
}

// broken keeps the head of what looks like JSON and is none, and says why it may be so. A text in brackets is just a text.
func broken(message string) string {
	trimmed := strings.TrimSpace(message)
	if len(message) < report.MaxNoteBytes && !strings.HasPrefix(trimmed, `{"`) {
		return trimmed
	}
	return fmt.Sprintf("No result stored: the termination message is not whole JSON (%d bytes; it is cut at %d, at less with many "+
		"containers): %s", len(message), report.MaxNoteBytes, trimmed)
}

// isResult tells whether an object has the shape of a result, rather than being the data itself.
func isResult(members map[string]json.RawMessage) bool {
	for key, value := range members {
		switch key {
		case "url", "logURL", "message":
			var s string
			if json.Unmarshal(value, &s) != nil {
				return false
			}
		case "data":
		default:
			return false
		}
	}
	return len(members) > 0
}

type parser struct {
	result     v1alpha1.TaskResult
	message    string
	complaints []string
}

func (p *parser) members(members map[string]json.RawMessage) {
	p.message = strings.TrimSpace(text(members["message"]))
	p.result.URL = p.url("url", text(members["url"]))
	p.result.LogURL = p.url("logURL", text(members["logURL"]))
	if data := members["data"]; len(data) > 0 && string(data) != "null" {
		p.data(data)
	}
}

// text is the string that a member holds; isResult has seen to it that it holds one, or null.
func text(member json.RawMessage) string {
	var s string
	if len(member) == 0 || json.Unmarshal(member, &s) != nil {
		return ""
	}
	return s
}

func (p *parser) url(name, value string) string {
	switch {
	case len(value) > report.MaxURLBytes:
		p.complain("%s not stored: it has %d bytes, the limit is %d", name, len(value), report.MaxURLBytes)
	case strings.ContainsFunc(value, unicode.IsControl):
		p.complain("%s not stored: it has control characters", name)
	default:
		return value
	}
	return ""
}

func (p *parser) data(raw json.RawMessage) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		p.complain("data not stored: %v", err)
		return
	}
	if compact.Len() > report.MaxDataBytes {
		p.complain("data not stored: it has %d bytes, the limit is %d", compact.Len(), report.MaxDataBytes)
		return
	}
	switch tooDeep, number := report.Unstorable(compact.Bytes()); {
	case tooDeep:
		p.complain("data not stored: it is nested more than %d deep", report.MaxDepth)
	case number != "":
		p.complain("data not stored: the number %s is out of range", number)
	default:
		p.result.Data = &apiextensionsv1.JSON{Raw: compact.Bytes()}
	}
}

func (p *parser) complain(format string, args ...any) {
	p.complaints = append(p.complaints, fmt.Sprintf(format, args...))
}

// text is the worker's own message, after what had to be left out.
func (p *parser) text() string {
	parts := p.complaints
	if p.message != "" {
		parts = append(parts, p.message)
	}
	return strings.Join(parts, "; ")
}
