package benchkit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/taskwarden/taskwarden/test/audit"
)

// AuditLog is the API server's audit log, read piece by piece after each phase: package audit keeps all events with their
// bodies, of which a run has too many.
type AuditLog struct {
	// Path is where the API server writes it.
	Path   string
	offset int64
}

// Size of the log so far.
func (l *AuditLog) Size() (int64, error) {
	info, err := os.Stat(l.Path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Skip passes over what is written so far.
func (l *AuditLog) Skip() (err error) {
	l.offset, err = l.Size()
	return err
}

// Read hands on the finished requests in a namespace that were written since the last read. A line that is not complete yet
// is left for the next one.
func (l *AuditLog) Read(namespace string, add func(*audit.Event) error) error {
	file, err := os.Open(l.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(l.offset, io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(file, 1<<20)
	wanted := []byte(`"namespace":"` + namespace + `"`)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		l.offset += int64(len(line))
		if !bytes.Contains(line, wanted) { // parsing is the slow part
			continue
		}
		var e audit.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%w in line %.200q", err, line)
		}
		if e.Object.Namespace != namespace || e.Stage != "ResponseComplete" {
			continue
		}
		if err := add(&e); err != nil {
			return err
		}
	}
}
