package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

const valid = `{"task_id":"u","attempt":1,"sequence":1,`

func TestParse(t *testing.T) {
	big := strings.Repeat("x", MaxDataBytes)
	for name, c := range map[string]struct {
		body  string
		field string // that is wrong; empty where nothing is
		limit int
	}{
		"heartbeat":                   {body: valid + `"kind":"heartbeat"}`},
		"progress":                    {body: valid + `"kind":"progress","progress":{"percent":40.5,"message":"m","estimated_remaining_seconds":3}}`},
		"progress out of bounds":      {body: valid + `"kind":"progress","progress":{"percent":250}}`},
		"stage":                       {body: valid + `"kind":"stage","stage":{"name":"resize"}}`},
		"checkpoint":                  {body: valid + `"kind":"checkpoint","checkpoint":[1, 2]}`},
		"checkpoint null":             {body: valid + `"kind":"checkpoint","checkpoint":null}`, field: "checkpoint"},
		"success":                     {body: valid + `"kind":"succeeded","actual_finish_time":1700000000000,"execution_log_url":"https://l/1","retry_count":2,"result":{"url":"s3://b/k","data":{"a":1},"message":"m"}}`},
		"success without a result":    {body: valid + `"kind":"succeeded"}`},
		"failure":                     {body: valid + `"kind":"failed","failure":{"message":"m","permanent":true}}`},
		"nothing":                     {body: ``, field: "body"},
		"an array":                    {body: `[]`, field: "body"},
		"two values":                  {body: valid + `"kind":"heartbeat"}{}`, field: "body"},
		"a member that is not known":  {body: valid + `"kind":"heartbeat","state":"Succeeded"}`, field: "body"},
		"not UTF-8":                   {body: valid + "\"kind\":\"\xff\"}", field: "body"},
		"a member of the wrong type":  {body: valid + `"kind":"progress","progress":{"percent":"abc"}}`, field: "body"},
		"NaN":                         {body: valid + `"kind":"progress","progress":{"percent":NaN}}`, field: "body"},
		"no task":                     {body: `{"attempt":1,"sequence":1,"kind":"heartbeat"}`, field: "task_id"},
		"attempt 0":                   {body: `{"task_id":"u","attempt":0,"sequence":1,"kind":"heartbeat"}`, field: "attempt"},
		"sequence 0":                  {body: `{"task_id":"u","attempt":1,"sequence":0,"kind":"heartbeat"}`, field: "sequence"},
		"negative retries":            {body: valid + `"kind":"heartbeat","retry_count":-1}`, field: "retry_count"},
		"another kind":                {body: valid + `"kind":"cancelled"}`, field: "kind"},
		"progress without progress":   {body: valid + `"kind":"progress"}`, field: "progress"},
		"progress with a result":      {body: valid + `"kind":"progress","progress":{"percent":1},"result":{}}`, field: "result"},
		"success with a failure":      {body: valid + `"kind":"succeeded","failure":{}}`, field: "failure"},
		"heartbeat with a finish":     {body: valid + `"kind":"heartbeat","actual_finish_time":1}`, field: "actual_finish_time"},
		"heartbeat with a log":        {body: valid + `"kind":"heartbeat","execution_log_url":"https://l"}`, field: "execution_log_url"},
		"stage without a name":        {body: valid + `"kind":"stage","stage":{"name":""}}`, field: "stage.name"},
		"long stage":                  {body: valid + `"kind":"stage","stage":{"name":"` + big[:64] + `"}}`, field: "stage.name", limit: MaxStageBytes},
		"long message":                {body: valid + `"kind":"failed","failure":{"message":"` + big[:1025] + `"}}`, field: "failure.message", limit: MaxMessageBytes},
		"long URL":                    {body: valid + `"kind":"succeeded","result":{"url":"https://` + big[:2048] + `"}}`, field: "result.url", limit: MaxURLBytes},
		"relative URL":                {body: valid + `"kind":"succeeded","result":{"url":"/a"}}`, field: "result.url"},
		"URL with a line break":       {body: valid + `"kind":"succeeded","execution_log_url":"https://a\nb"}`, field: "execution_log_url"},
		"data at the limit":           {body: valid + `"kind":"succeeded","result":{"data":"` + big[2:] + `"}}`},
		"data over the limit":         {body: valid + `"kind":"succeeded","result":{"data":"` + big + `"}}`, field: "result.data", limit: MaxDataBytes},
		"checkpoint over the limit":   {body: valid + `"kind":"checkpoint","checkpoint":"` + big + `"}`, field: "checkpoint", limit: MaxCheckpointBytes},
		"data that is nested deep":    {body: valid + `"kind":"succeeded","result":{"data":` + nested(MaxDepth+1) + `}}`, field: "result.data"},
		"data that is nested less":    {body: valid + `"kind":"succeeded","result":{"data":` + nested(MaxDepth) + `}}`},
		"a mebibyte of brackets":      {body: valid + `"kind":"succeeded","result":{"data":` + strings.Repeat("[", MaxBodyBytes-200), field: "body"},
		"a body over the limit":       {body: strings.Repeat(" ", MaxBodyBytes+1), field: "body", limit: MaxBodyBytes},
		"a number out of range":       {body: valid + `"kind":"succeeded","result":{"data":1e999}}`, field: "result.data"},
		"a remaining time below zero": {body: valid + `"kind":"progress","progress":{"percent":1,"estimated_remaining_seconds":-1}}`, field: "progress.estimated_remaining_seconds"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.body))
			var field *FieldError
			switch {
			case c.field == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.field == "":
			case !errors.As(err, &field) || field.Field != c.field || field.Limit != c.limit:
				t.Errorf("got %#v, want a complaint about %s, limit %d", err, c.field, c.limit)
			case IsTooLarge(err) != (c.limit > 0):
				t.Error("IsTooLarge does not say what the limit says")
			}
		})
	}
}

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

// TestLargestReportFits: what is valid is never refused for the size of its body, however wastefully it is written.
func TestLargestReportFits(t *testing.T) {
	escaped := func(n int) string { return strings.Repeat("\\u0041", n) }
	body := valid + `"kind":"succeeded","execution_log_url":"a:` + escaped(MaxURLBytes-2) + `","result":{"url":"a:` + escaped(MaxURLBytes-2) +
		`","message":"` + escaped(MaxMessageBytes) + `","data":"` + escaped((MaxDataBytes-2)/6) + `"}}`
	if _, err := Parse([]byte(body)); err != nil {
		t.Error(err)
	}
}

func TestClamped(t *testing.T) {
	for percent, want := range map[float64]int32{-5: 0, 0: 0, 0.9: 0, 40.9: 40, 99.9: 99, 100: 100, 250: 100, 1e300: 100, -1e300: 0} {
		if got := (&ProgressPayload{Percent: percent}).Clamped(); got != want {
			t.Errorf("%v is stored as %d, want %d", percent, got, want)
		}
	}
}

func TestBasisPoints(t *testing.T) {
	for percent, want := range map[float64]int32{-5: 0, 0.01: 1, 40.009: 4000, 99.999: 9999, 250: 10000, 1e300: 10000} {
		if got := (&ProgressPayload{Percent: percent}).BasisPoints(); got != want {
			t.Errorf("%v is %d, want %d", percent, got, want)
		}
	}
}

func TestPermanent(t *testing.T) {
	for status, want := range map[int]bool{200: false, 400: true, 401: true, 403: true, 408: false, 409: true, 410: true, 413: true, 429: false, 500: false, 503: false} {
		if Permanent(status) != want {
			t.Errorf("%d: want %v", status, want)
		}
	}
}

func TestNote(t *testing.T) {
	final := func(data int) *Report {
		return &Report{TaskID: strings.Repeat("u", 36), Attempt: 1, Sequence: 7, Kind: Succeeded, ActualFinishTime: 1700000000000,
			ExecutionLogURL: "https://logs.example.com/1",
			Result:          &ResultPayload{URL: "s3://bucket/key", Message: "done", Data: json.RawMessage(`"` + strings.Repeat("x", data) + `"`)}}
	}
	for name, c := range map[string]struct {
		note    Note
		limit   int
		omitted string
		none    bool
	}{
		"all fits":                 {note: Note{Final: final(100)}, limit: 4096},
		"data does not fit":        {note: Note{Final: final(4096)}, limit: 4096, omitted: "data"},
		"data and URLs do not fit": {note: Note{Final: final(4096)}, limit: 440, omitted: "data url"},
		"URLs do not fit":          {note: Note{Final: final(10), SpoolError: strings.Repeat("e", 5000)}, limit: 560, omitted: "data url"},
		"the head alone fits":      {note: Note{Final: final(10)}, limit: 300, omitted: "data url message"},
		"nothing fits":             {note: Note{Final: final(10)}, limit: 50, none: true},
		"no report":                {note: Note{SpoolError: "no space left on device"}, limit: 4096},
		"a failure, cut":           {note: Note{Final: &Report{TaskID: "u", Attempt: 1, Sequence: 1, Kind: Failed, Failure: &FailurePayload{Permanent: true, Message: strings.Repeat("ä", 500)}}}, limit: 450, omitted: "message"},
	} {
		t.Run(name, func(t *testing.T) {
			before, _ := json.Marshal(c.note)
			text := c.note.Encode(c.limit)
			if after, _ := json.Marshal(c.note); !bytes.Equal(before, after) {
				t.Error("the note itself has changed")
			}
			if c.none {
				if text != nil {
					t.Errorf("got %s", text)
				}
				return
			}
			if len(text) == 0 || len(text) > c.limit {
				t.Fatalf("%d bytes, want 1 to %d", len(text), c.limit)
			}
			got := ParseNote(string(text))
			if got == nil {
				t.Fatalf("not read back: %s", text)
			}
			if strings.Join(got.Omitted, " ") != c.omitted {
				t.Errorf("left out %v, want %q", got.Omitted, c.omitted)
			}
			if (got.Final == nil) != (c.note.Final == nil) || got.Final != nil && got.Final.Kind != c.note.Final.Kind {
				t.Errorf("the outcome has changed: %+v", got.Final)
			}
		})
	}
	for _, message := range []string{"", "text", "{}", `{"taskwardenNote":`, `{"taskwardenNote":null}`, `{"url":"https://a"}`, `{"taskwardenNote":{"final":{"kind":"succeeded"}}}`, `{"taskwardenNote":{},"x":{}}`,
		`{"taskwardenHead":null}`, `{"taskwardenHead":{}}`,
		`{"taskwardenHead":{"kind":"heartbeat","attempt":1,"sequence":1,"task_id":"u","follows":[]}}`} {
		if n := ParseNote(message); n != nil {
			t.Errorf("%q is read as %+v", message, n)
		}
	}
}

// TestC43NoteSurvivesACut: wherever a kubelet cuts a note, the outcome is there as long as the first line is, and what is lost is
// named. The first line is shorter than the share of any container in a pod of forty.
func TestC43NoteSurvivesACut(t *testing.T) {
	for name, c := range map[string]struct {
		final     Report
		delivered bool
		omitted   string
	}{
		"a success with all": {omitted: "data url message", final: Report{Kind: Succeeded, ExecutionLogURL: "https://l/1",
			Result: &ResultPayload{URL: "s3://b/k", Message: "done", Data: json.RawMessage(`"` + strings.Repeat("x", 3000) + `"`)}}},
		"a success with a log":   {omitted: "url", final: Report{Kind: Succeeded, ExecutionLogURL: "https://l/1"}},
		"a success, and no more": {final: Report{Kind: Succeeded}},
		"a success, delivered": {delivered: true, omitted: "message",
			final: Report{Kind: Succeeded, Result: &ResultPayload{Message: "m"}}},
		"a failure for good": {omitted: "message",
			final: Report{Kind: Failed, Failure: &FailurePayload{Permanent: true, Message: "no\ndisk"}}},
		"a failure without a word":  {final: Report{Kind: Failed}},
		"a failure, and no message": {final: Report{Kind: Failed, Failure: &FailurePayload{Permanent: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			final := c.final
			final.TaskID, final.Attempt, final.Sequence = strings.Repeat("u", 36), 1<<31-1, 1<<52
			final.ActualFinishTime = 1700000000000
			text := string((&Note{Final: &final, Delivered: c.delivered}).Encode(MaxNoteBytes))
			first := strings.IndexByte(text, '\n')
			if first < 0 || first > 300 {
				t.Fatalf("the first line ends at byte %d: %s", first, text)
			}
			want := *(&Note{Final: &final}).head().note().Final
			for cut := range len(text) {
				n := ParseNote(text[:cut])
				if cut < first {
					if n != nil {
						t.Fatalf("%q is read as %+v", text[:cut], n)
					}
					continue
				}
				if n == nil || n.Delivered != c.delivered || strings.Join(n.Omitted, " ") != c.omitted {
					t.Fatalf("cut at %d it is read as %+v", cut, n)
				}
				if diff := cmp.Diff(&want, n.Final); diff != "" {
					t.Fatalf("cut at %d (-want +got):\n%s", cut, diff)
				}
			}
			if n := ParseNote(text); n == nil || len(n.Omitted) > 0 || n.Final.Kind != final.Kind ||
				orEmpty(n.Final.Failure) != orEmpty(final.Failure) || n.Final.ExecutionLogURL != final.ExecutionLogURL {
				t.Errorf("whole it is read as %+v", n)
			}
			if got := want.Failure != nil && want.Failure.Permanent; got != orEmpty(final.Failure).Permanent {
				t.Errorf("the head says permanent %v", got)
			}
		})
	}
}

func orEmpty(f *FailurePayload) FailurePayload {
	if f == nil {
		return FailurePayload{}
	}
	return *f
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(valid + `"kind":"succeeded","result":{"data":{"a":[1,2,{"b":null}]}}}`))
	f.Add([]byte(valid + `"kind":"progress","progress":{"percent":1e309}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := Parse(body)
		if err != nil {
			return
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text)
		if err != nil {
			t.Fatalf("what was taken is refused when written again: %v", err)
		}
		if twice, _ := json.Marshal(again); !bytes.Equal(twice, text) {
			t.Errorf("%s becomes %s", text, twice)
		}
	})
}

func FuzzParseNote(f *testing.F) {
	f.Add(`{"taskwardenNote":{"final":{"task_id":"u","attempt":1,"sequence":1,"kind":"failed","retry_count":0}}}`)
	f.Add(`{"taskwardenHead":{"kind":"failed","permanent":true,"attempt":1,"sequence":1,"task_id":"u","follows":["message"]}}` +
		"\n" + `{"taskw`)
	f.Add(`{"taskwardenHead":{"kind":"succeeded","permanent":true,"attempt":1,"sequence":1,"task_id":"u","follows":[]}}`)
	f.Fuzz(func(t *testing.T, message string) {
		n := ParseNote(message)
		if n == nil || n.Final == nil {
			return
		}
		if err := n.Final.Check(); err != nil {
			t.Error(err)
		}
		// The outcome does not change when the note is written again and cut.
		text := string(n.Encode(MaxNoteBytes))
		first, _, _ := strings.Cut(text, "\n")
		for _, again := range []string{text, first} {
			got := ParseNote(again)
			if text != "" && (got == nil || got.Final == nil || got.Final.Kind != n.Final.Kind) {
				t.Errorf("%q becomes %q, which is read as %+v", message, again, got)
			}
		}
	})
}

// TestNamesAreThoseOfTheAPI: this package must not import that of the API, so that workers and sidecars need the standard
// library alone.
func TestNamesAreThoseOfTheAPI(t *testing.T) {
	for ours, theirs := range map[string]string{
		EnvTaskName: v1alpha1.EnvTaskName, EnvTaskNamespace: v1alpha1.EnvTaskNamespace, EnvTaskUID: v1alpha1.EnvTaskUID,
		EnvAttempt: v1alpha1.EnvAttempt, EnvInput: v1alpha1.EnvInput, EnvCheckpoint: v1alpha1.EnvCheckpoint,
		EnvReporter: v1alpha1.EnvReporter, EnvHeartbeatSeconds: v1alpha1.EnvHeartbeatSeconds,
	} {
		if ours != theirs {
			t.Errorf("%s is %s in the API", ours, theirs)
		}
	}
}
