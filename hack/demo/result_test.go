package main

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

const input = `{"source": "/pictures/a.png", "sizes": [640, {"width": 320}, {"width": 100, "height": 80}], "outputDir": "/out"}`

var goodResult = `{"source": {"path": "/pictures/a.png", "size": 9, "sha256": "` + digest("0") + `", "width": 1601, "height": 1000},
"outputs": [
{"path": "/out/640x400.jpg", "size": 9, "sha256": "` + digest("1") + `", "width": 640, "height": 400},
{"path": "/out/320x200.jpg", "size": 9, "sha256": "` + digest("2") + `", "width": 320, "height": 200},
{"path": "/out/100x80.jpg", "size": 9, "sha256": "` + digest("3") + `", "width": 100, "height": 80}]}`

func digest(digit string) string { return strings.Repeat(digit, 64) }

func succeeded(uid types.UID, result string) v1alpha1.Task {
	t := v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Name: string(uid), UID: uid, Annotations: map[string]string{
		expectState: "Succeeded", expectReason: "Completed", expectAttempts: "1",
	}}}
	t.Spec.Input = &v1alpha1.TaskInput{Value: apiextensionsv1.JSON{Raw: []byte(input)}}
	t.Status = v1alpha1.TaskStatus{State: v1alpha1.StateSucceeded, Reason: v1alpha1.ReasonCompleted, Attempt: 1}
	if result != "" {
		t.Status.Result = &v1alpha1.TaskResult{Data: &apiextensionsv1.JSON{Raw: []byte(result)}}
	}
	return t
}

func TestCheckResult(t *testing.T) {
	good := succeeded("good", goodResult)
	if err := checkResult(&good); err != nil {
		t.Errorf("a good one: %v", err)
	}
	for name, change := range map[string][]string{
		"other width":                {`"width": 640, "height": 400`, `"width": 641, "height": 400`},
		"other height":               {`"height": 80`, `"height": 81`},
		"other proportions":          {`"height": 200`, `"height": 201`},
		"other folder":               {"/out/320x200.jpg", "/tmp/320x200.jpg"},
		"empty":                      {`"size": 9, "sha256": "1`, `"size": 0, "sha256": "1`},
		"short digest":               {digest("1"), digest("1")[1:]},
		"no digest":                  {digest("1"), strings.Repeat("x", 64)},
		"one digest for two":         {digest("1"), digest("2")},
		"the source itself":          {digest("1"), digest("0")},
		"other source":               {"/pictures/a.png", "/pictures/b.png"},
		"source of unknown size":     {`"width": 1601`, `"width": 0`},
		"one too few":                {`{"path": "/out/640x400.jpg", "size": 9, "sha256": "` + digest("1") + `", "width": 640, "height": 400},`, ""},
		"not what the worker leaves": {"outputs", "pictures"},
	} {
		result := strings.Replace(goodResult, change[0], change[1], 1)
		if result == goodResult {
			t.Fatalf("%s: nothing changed", name)
		}
		bad := succeeded("bad", result)
		if err := checkResult(&bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	none := succeeded("none", "")
	if err := checkResult(&none); err == nil {
		t.Error("no result: accepted")
	}
}

func TestCheckExpected(t *testing.T) {
	result := &v1alpha1.TaskResult{URL: "s3://b/k", Data: &apiextensionsv1.JSON{Raw: []byte(`{"pages": 3, "from": 2}`)}}
	for name, tt := range map[string]struct {
		want string
		got  *v1alpha1.TaskResult
		good bool
	}{
		"nothing expected":  {"", nil, true},
		"all":               {`{"url": "s3://b/k", "data": {"from": 2, "pages": 3}}`, result, true},
		"the address alone": {`{"url": "s3://b/k"}`, result, true},
		"other address":     {`{"url": "s3://b/l"}`, result, false},
		"other data":        {`{"data": {"pages": 3, "from": 1}}`, result, false},
		"less data":         {`{"data": {"pages": 3}}`, result, false},
		"no result":         {`{"url": "s3://b/k"}`, nil, false},
		"not JSON":          {`{`, result, false},
	} {
		if err := checkExpected(tt.want, tt.got); (err == nil) != tt.good {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
