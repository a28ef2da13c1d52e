package report

import (
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
	// Omitted are the members of the final report that there was no room for.
	Omitted []string `json:"omitted,omitempty"`
	// SpoolError says why reports could not be kept on disk.
	SpoolError string `json:"spoolError,omitempty"`
}

// noteMark makes a note of ours of a JSON object.
const noteMark = "taskwardenNote"

// Encode writes the note into at most limit bytes. What does not fit is left out, the largest first: data, then the rest of the
// result, so that at least the outcome stays.
func (n *Note) Encode(limit int) []byte {
	short := *n
	if n.Final != nil {
		final := *n.Final
		short.Final = &final
	}
	for _, cut := range []func(*Note) string{cutNothing, cutData, cutSpoolError, cutURLs, cutMessages} {
		if name := cut(&short); name != "" {
			short.Omitted = append(append([]string(nil), short.Omitted...), name)
		}
		if text, err := json.Marshal(map[string]*Note{noteMark: &short}); err == nil && len(text) <= limit {
			return text
		}
	}
	return nil
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

// ParseNote reads a note from a termination message; nil where there is none, or only a part of one.
func ParseNote(message string) *Note {
	var marked map[string]*Note
	if json.Unmarshal([]byte(strings.TrimSpace(message)), &marked) != nil || len(marked) != 1 {
		return nil
	}
	n := marked[noteMark]
	if n == nil || n.Final != nil && n.Final.Check() != nil {
		return nil
	}
	return n
}
