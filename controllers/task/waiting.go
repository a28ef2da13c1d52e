package task

import (
	"cmp"
	"strings"

	"github.com/taskwarden/taskwarden/api/v1alpha1"
)

// kubeletReasons maps what the kubelet says of a container that does not run to our reasons.
var kubeletReasons = map[string]string{
	"ErrImagePull":               v1alpha1.ReasonImagePullFailed,
	"ImagePullBackOff":           v1alpha1.ReasonImagePullFailed,
	"ErrImageNeverPull":          v1alpha1.ReasonImagePullFailed,
	"ImageInspectError":          v1alpha1.ReasonImagePullFailed,
	"RegistryUnavailable":        v1alpha1.ReasonImagePullFailed,
	"SignatureValidationFailed":  v1alpha1.ReasonImagePullFailed,
	"InvalidImageName":           v1alpha1.ReasonInvalidImageName,
	"CreateContainerConfigError": v1alpha1.ReasonConfigError,
	"CreateContainerError":       v1alpha1.ReasonConfigError,
	"PreCreateHookError":         v1alpha1.ReasonConfigError,
	"PreStartHookError":          v1alpha1.ReasonConfigError,
	"RunContainerError":          v1alpha1.ReasonStartError,
}

// sticky are the reasons that stay while nothing better is known: between two tries the kubelet says nothing of the last.
var sticky = map[string]bool{
	v1alpha1.ReasonImagePullFailed:  true,
	v1alpha1.ReasonInvalidImageName: true,
	v1alpha1.ReasonConfigError:      true,
	v1alpha1.ReasonMountFailed:      true,
	v1alpha1.ReasonStartError:       true,
}

// waitingFor says what the current attempt's worker waits for.
func waitingFor(s *Snapshot, w *Worker) (reason, message string) {
	status := &s.Task.Status
	switch pod := w.Pod(""); {
	case pod == nil:
		return waitingForPod(s)
	case pod.Unschedulable != "" && pod.NodeName == "":
		return v1alpha1.ReasonUnschedulable, pod.Unschedulable
	case kubeletReasons[pod.Waiting.Reason] != "":
		return kubeletReasons[pod.Waiting.Reason], cmp.Or(pod.Waiting.Message, pod.Waiting.Reason)
	case s.MountError != "" && !pod.Prepared:
		return v1alpha1.ReasonMountFailed, s.MountError
	case pod.Waiting.Reason != "" && pod.Waiting.Reason != containerCreating:
		// Of another container, perhaps, that the worker waits for.
		return v1alpha1.ReasonContainerWaiting, pod.Waiting.Reason + ": " + pod.Waiting.Message
	case status.Reason == v1alpha1.ReasonMountFailed && pod.Prepared:
		// that is over
	case sticky[status.Reason] && pod.NodeName != "" && pod.UID == status.Worker.PodUID:
		return status.Reason, status.Message
	}
	return v1alpha1.ReasonWaitingForWorker, "The worker's pod does not run yet"
}

// waitingForPod says why there is no pod.
func waitingForPod(s *Snapshot) (reason, message string) {
	if s.PodCreateError != "" {
		return podCreateReason(s.PodCreateError), s.PodCreateError
	}
	switch status := &s.Task.Status; status.Reason {
	case v1alpha1.ReasonQuotaExceeded, v1alpha1.ReasonAdmissionDenied, v1alpha1.ReasonConfigError, v1alpha1.ReasonPodCreateFailed:
		if status.Worker.JobUID != "" {
			return status.Reason, status.Message // its Event has gone, and is still the last word
		}
	}
	return v1alpha1.ReasonWaitingForWorker, "The worker Job has no pod yet"
}

// podCreateReason reads the text of a FailedCreate Event. Text decides here: the API server's refusal of a
// pod reaches us only as the Job controller's Event, which has no field for its cause.
func podCreateReason(text string) string {
	switch {
	case strings.Contains(text, "exceeded quota"):
		return v1alpha1.ReasonQuotaExceeded
	case strings.Contains(text, "error looking up service account"):
		return v1alpha1.ReasonConfigError
	case strings.Contains(text, "is forbidden"):
		return v1alpha1.ReasonAdmissionDenied
	}
	return v1alpha1.ReasonPodCreateFailed
}
