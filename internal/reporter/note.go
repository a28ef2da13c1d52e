package reporter

import (
	"bytes"
	"errors"
	"io"
	"os"

	"github.com/taskwarden/taskwarden/internal/report"
)

// noteFile is the termination message: the kubelet reads it when the container has ended, and the operator from the pod.
type noteFile struct {
	path  string
	limit int
	// fault fails a step of writing where a test wants it to; may be nil. The only step is truncate.
	fault func(step string) error
}

// write replaces the note. The file may be a bind mount, so it is written in place; in one call, with blanks up to the old
// length, so that a process killed in between leaves no half note.
func (n *noteFile) write(note *report.Note) error {
	text := note.Encode(n.limit)
	f, err := os.OpenFile(n.path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil && size > int64(len(text)) && size <= report.MaxNoteBytes {
		_, err = f.WriteAt(append(bytes.Clone(text), bytes.Repeat([]byte(" "), int(size)-len(text))...), 0)
	} else if err == nil {
		_, err = f.WriteAt(text, 0)
	}
	if err == nil && n.fault != nil {
		err = n.fault("truncate")
	}
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	return errors.Join(err, f.Close())
}

// noteOf is what the note says of a final report, nil where there is none.
func noteOf(final *report.Report, outcome finalOutcome, spoolError string) *report.Note {
	note := &report.Note{Final: final, SpoolError: spoolError, Delivered: outcome == finalDelivered || outcome == finalLate}
	if final != nil && note.Delivered && final.Result != nil && len(final.Result.Data) > 0 {
		short := *final
		result := *final.Result
		result.Data, short.Result = nil, &result
		note.Final = &short // the Task has the data
	}
	return note
}
