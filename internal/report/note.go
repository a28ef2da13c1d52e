package report

import (
	"bytes"
	"encoding/json"
	"strings"
)

// MaxNoteBytes is the longest termination message that a kubelet keeps of one container. With more than three containers in the
// pod it is less: all together have 12 KiB.
const MaxNoteBytes = 4096

// Note is what a sidecar leaves in its termination message, for the controller to read from the pod when the report itself
// has not arrived.
type Note struct {
	// Final is the worker's final report; nil where it has made none.
	Final *Report `json:"final,omitempty"`
	// Delivered tells that the gateway has taken the final report, or has refused it because the outcome was fixed before (409,
	// 410). After any other refusal it does not know what the worker has said, so the note is still needed.
	Delivered bool `json:"delivered,omitempty"`
	// Omitted are the members of the final report that there was no room for: data, url (that of the log as well) and message.
	Omitted []string `json:"omitted,omitempty"`
	// SpoolError says why reports could not be kept on disk.
	SpoolError string `json:"spoolError,omitempty"`
}

// The marks make notes, and heads of notes, of JSON objects.
const (
	noteMark = "taskwardenNote"
	headMark = "taskwardenHead"
)

// head is the first line of a note with a final report. A kubelet gives each container of a pod an equal share of 12 KiB, and
// cuts what is longer; where somebody else puts containers into the pod, a mesh for example, the share is less than the sidecar
// was told. JSON that is cut is worth nothing, so the outcome stands in front, in a line that is far shorter than any share,
// and the whole note follows in the next line.
type head struct {
	Kind             Kind   `json:"kind"`
	Permanent        bool   `json:"permanent,omitempty"`
	Attempt          int32  `json:"attempt"`
	Sequence         int64  `json:"sequence"`
	TaskID           string `json:"task_id"`
	ActualFinishTime int64  `json:"actual_finish_time,omitempty"`
	Delivered        bool   `json:"delivered,omitempty"`
	// Follows are the members of the final report that are not in the head. Without the next line they are lost.
	Follows []string `json:"follows"`
}

func (n *Note) head() *head {
	f := n.Final
	h := &head{
		Kind: f.Kind, Attempt: f.Attempt, Sequence: f.Sequence, TaskID: f.TaskID, ActualFinishTime: f.ActualFinishTime,
		Delivered: n.Delivered, Permanent: f.Failure != nil && f.Failure.Permanent, Follows: []string{},
	}
	result, failure := ResultPayload{}, FailurePayload{}
	if f.Result != nil {
		result = *f.Result
	}
	if f.Failure != nil {
		failure = *f.Failure
	}
	for _, m := range []struct {
		name string
		set  bool
	}{
		{"data", len(result.Data) > 0},
		{"url", result.URL != "" || f.ExecutionLogURL != ""},
		{"message", result.Message != "" || failure.Message != ""},
	} {
		if m.set {
			h.Follows = append(h.Follows, m.name)
		}
	}
	return h
}

// note is what is left of a note whose second line is lost.
func (h *head) note() *Note {
	n := &Note{Delivered: h.Delivered, Omitted: h.Follows, Final: &Report{
		Kind: h.Kind, Attempt: h.Attempt, Sequence: h.Sequence, TaskID: h.TaskID, ActualFinishTime: h.ActualFinishTime,
	}}
	if h.Permanent {
		n.Final.Failure = &FailurePayload{Permanent: true}
	}
	return n
}

// Encode writes the note into at most limit bytes: the head, where there is a final report, and the note itself. What does not
// fit is left out, the largest first: data, then the rest of the result, then all but the head, so that at least the outcome
// stays.
func (n *Note) Encode(limit int) []byte {
	short := *n
	var front []byte
	if n.Final != nil {
		final := *n.Final
		short.Final = &final
		text, err := json.Marshal(map[string]*head{headMark: n.head()})
		if err != nil || len(text) > limit {
			return nil
		}
		text = append(text, '\n')
		front = text
	}
	for _, cut := range []func(*Note) string{cutNothing, cutData, cutSpoolError, cutURLs, cutMessages} {
		if name := cut(&short); name != "" {
			short.Omitted = append(append([]string(nil), short.Omitted...), name)
		}
		if text, err := json.Marshal(map[string]*Note{noteMark: &short}); err == nil && len(front)+len(text) <= limit {
			return append(front, text...)
		}
	}
	return bytes.TrimSpace(front)
}

func cutNothing(*Note) string { return "" }

func cutData(n *Note) string {
	if n.Final == nil || n.Final.Result == nil || len(n.Final.Result.Data) == 0 {
		return ""
	}
	result := *n.Final.Result
	result.Data = nil
	n.Final.Result = &result
	return "data"
}

func cutSpoolError(n *Note) string {
	n.SpoolError = cutText(n.SpoolError, 100)
	return ""
}

func cutURLs(n *Note) string {
	if n.Final == nil {
		return ""
	}
	cut := n.Final.ExecutionLogURL != ""
	n.Final.ExecutionLogURL = ""
	if r := n.Final.Result; r != nil && r.URL != "" {
		result := *r
		result.URL, cut = "", true
		n.Final.Result = &result
	}
	if !cut {
		return ""
	}
	return "url"
}

func cutMessages(n *Note) string {
	if n.Final == nil {
		return ""
	}
	if r := n.Final.Result; r != nil {
		n.Final.Result = &ResultPayload{Message: cutText(r.Message, 100)}
	}
	if f := n.Final.Failure; f != nil {
		n.Final.Failure = &FailurePayload{Permanent: f.Permanent, Message: cutText(f.Message, 100)}
	}
	return "message"
}

// cutText cuts a text at a rune.
func cutText(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}

// ParseNote reads a note from a termination message; nil where there is none. Of one that was cut behind its head it reads the
// head, and says that everything else was omitted.
func ParseNote(message string) *Note {
	message = strings.TrimSpace(message)
	first, rest, _ := strings.Cut(message, "\n")
	h := marked[head](first, headMark)
	if h == nil {
		return checked(marked[Note](message, noteMark))
	}
	if n := checked(marked[Note](rest, noteMark)); n != nil && n.Final != nil {
		return n
	}
	return checked(h.note())
}

// marked reads a JSON object that has one member of the given name; nil where it is something else.
func marked[T any](text, mark string) *T {
	var members map[string]*T
	if json.Unmarshal([]byte(text), &members) != nil || len(members) != 1 {
		return nil
	}
	return members[mark]
}

// checked is nil where a note has something that is no final report in the place of one.
func checked(n *Note) *Note {
	if n == nil || n.Final != nil && (!n.Final.Kind.Final() || n.Final.Check() != nil) {
		return nil
	}
	return n
}
