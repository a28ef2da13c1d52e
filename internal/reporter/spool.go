package reporter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/taskwarden/taskwarden/internal/report"
)

// Names in the spool. Each kind has one file at most, so the spool is bounded. A file that is not finished, or not readable, is
// put aside under its name and badSuffix.
const (
	lockName     = "lock"
	sequenceName = "sequence"
	finalName    = "final.json"
	tempSuffix   = ".tmp"
	badSuffix    = ".bad"
)

const (
	// sequenceBlock is how many numbers are reserved with one write. A restart of the container goes on with the next block.
	sequenceBlock = 1000
	// sequenceDigits is the length of the file, always the same: it is written in place, which works on a full disk as well.
	sequenceDigits = 20
	// maxRecordBytes is more than any record has.
	maxRecordBytes = 2 * report.MaxBodyBytes
)

// errSpoolInUse says that another process has the spool.
var errSpoolInUse = errors.New("another process uses the spool folder")

// record is the content of a file of the spool.
type record struct {
	Report report.Report `json:"report"`
	// Outcome says of a final report that it needs no further delivery, and why.
	Outcome finalOutcome `json:"outcome,omitempty"`
}

// parseRecord reads a record, which must be of the given attempt.
func parseRecord(data []byte, taskUID string, attempt int32) (*record, error) {
	var rec record
	if err := report.Decode(data, &rec); err != nil {
		return nil, err
	}
	if err := rec.Report.Check(); err != nil {
		return nil, err
	}
	if rec.Report.TaskID != taskUID || rec.Report.Attempt != attempt {
		return nil, errors.New("it is a report of another attempt")
	}
	return &rec, nil
}

// spool keeps reports in a folder: what is kept there outlives the process, and what is half written is never read.
type spool struct {
	dir  string
	log  *slog.Logger
	lock *os.File
	// fault fails a step of writing a file where a test wants it to. The steps are create, write, sync and rename.
	fault func(step, name string) error
	// reserved is the highest sequence number that is reserved on disk.
	reserved int64
}

// openSpool makes the folder and locks it. Where it can only not be written there is a spool nevertheless, and an error with
// it.
func openSpool(dir string, log *slog.Logger) (*spool, error) {
	s := &spool{dir: dir, log: log, fault: func(string, string) error { return nil }}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return s, err
	}
	lock, err := os.OpenFile(s.path(lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return s, err
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		_ = lock.Close()
		return nil, fmt.Errorf("%w %s", errSpoolInUse, dir)
	}
	s.lock = lock
	if err != nil {
		return s, fmt.Errorf("%s cannot be locked: %w", lock.Name(), err)
	}
	return s, nil
}

// close lets the next process in.
func (s *spool) close() {
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

func (s *spool) path(name string) string { return filepath.Join(s.dir, name) }

// nameOf is the file that holds the newest report of a kind.
func nameOf(k report.Kind) string {
	if k.Final() {
		return finalName
	}
	return string(k) + ".json"
}

// load reads what an earlier process has left: the final report, nil where there is none, and the others in no order.
// Everything that is not in order is put aside.
func (s *spool) load(taskUID string, attempt int32) (final *record, news []*record, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		name := entry.Name()
		switch {
		case strings.HasSuffix(name, tempSuffix):
			s.putAside(name, errors.New("it was not finished"))
			continue
		case !strings.HasSuffix(name, ".json"):
			continue
		}
		rec, err := s.read(entry, taskUID, attempt)
		if err != nil {
			s.putAside(name, err)
			continue
		}
		if rec.Report.Kind.Final() {
			final = rec
		} else {
			news = append(news, rec)
		}
	}
	return final, news, nil
}

func (s *spool) read(entry fs.DirEntry, taskUID string, attempt int32) (*record, error) {
	if !entry.Type().IsRegular() {
		return nil, errors.New("it is not a file")
	}
	f, err := os.Open(s.path(entry.Name()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxRecordBytes))
	if err != nil {
		return nil, err
	}
	rec, err := parseRecord(data, taskUID, attempt)
	if err != nil {
		return nil, err
	}
	if entry.Name() != nameOf(rec.Report.Kind) {
		return nil, fmt.Errorf("it holds a report of kind %s", rec.Report.Kind)
	}
	return rec, nil
}

// putAside renames what cannot be used, so that a person can look at it. The next of the same name takes its place.
func (s *spool) putAside(name string, why error) {
	s.log.Error("a file of the spool is put aside", "file", name, "error", why.Error())
	if err := os.Rename(s.path(name), s.path(name+badSuffix)); err != nil {
		s.log.Error("a file of the spool cannot be put aside", "file", name, "error", err.Error())
	}
}

// write keeps a report in place of an older one of its kind. After a synced write even a crash of the node finds it, or the
// older one, whole.
func (s *spool) write(rec *record, synced bool) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	name := nameOf(rec.Report.Kind)
	temp := name + tempSuffix
	if err := s.writeTemp(temp, data, synced); err != nil {
		_ = os.Remove(s.path(temp))
		return err
	}
	if err := s.fault("rename", name); err != nil {
		return err
	}
	if err := os.Rename(s.path(temp), s.path(name)); err != nil {
		return err
	}
	if !synced {
		return nil
	}
	return s.syncFolder()
}

func (s *spool) writeTemp(name string, data []byte, synced bool) error {
	if err := s.fault("create", name); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path(name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = s.fault("write", name)
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil && synced {
		if err = s.fault("sync", name); err == nil {
			err = f.Sync()
		}
	}
	return errors.Join(err, f.Close())
}

func (s *spool) syncFolder() error {
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// remove forgets the report of a kind.
func (s *spool) remove(k report.Kind) {
	if err := os.Remove(s.path(nameOf(k))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Error("a file of the spool cannot be removed", "file", nameOf(k), "error", err.Error())
	}
}

// firstSequence is the number that this process begins with: 1, or behind all that earlier ones may have used.
func (s *spool) firstSequence() (int64, error) {
	data, err := os.ReadFile(s.path(sequenceName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 1, s.reserve(1)
	case err != nil:
		return 0, err
	}
	last, err := parseSequence(string(data))
	if err != nil {
		s.putAside(sequenceName, err)
		return 0, err
	}
	return last + 1, s.reserve(last + 1)
}

func parseSequence(text string) (int64, error) {
	if len(text) != sequenceDigits {
		return 0, fmt.Errorf("it has %d bytes", len(text))
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > maxSequence {
		return 0, errors.New("it holds no sequence number")
	}
	return int64(n), nil
}

// maxSequence is far beyond what is ever used, and exact in every JSON library.
const maxSequence = 1 << 52

// reserve makes sure that no later process uses the number again.
func (s *spool) reserve(n int64) error {
	if n <= s.reserved {
		return nil
	}
	if err := s.fault("write", sequenceName); err != nil {
		return err
	}
	last := n + sequenceBlock - 1
	f, err := os.OpenFile(s.path(sequenceName), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, errWrite := f.WriteAt(fmt.Appendf(nil, "%0*d", sequenceDigits, last), 0)
	if err := errors.Join(errWrite, f.Sync(), f.Close()); err != nil {
		return err
	}
	s.reserved = last
	return nil
}
