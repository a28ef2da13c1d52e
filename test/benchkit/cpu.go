package benchkit

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is the unit of /proc, the same on all Linux machines.
const ticksPerSecond = 100

// CPUTimes says what took the processors: figures of a run that shared the machine with something else mean little.
type CPUTimes struct {
	at   time.Time
	of   map[string]float64 // CPU seconds by process
	busy float64            // of the whole machine
}

// ReadCPUTimes reads the times of some processes, by name, and those of this one and of the machine.
func ReadCPUTimes(pids map[string]int) (CPUTimes, error) {
	t := CPUTimes{at: time.Now(), of: map[string]float64{}}
	all := maps.Clone(pids)
	all["bench"] = os.Getpid()
	for name, pid := range all {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return t, err
		}
		if t.of[name], err = parseProcessTime(string(content)); err != nil {
			return t, err
		}
	}
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, err
	}
	t.busy, err = parseMachineTime(string(content))
	return t, err
}

// parseProcessTime reads user and system time. The program's name may hold anything, so fields are counted from its end.
func parseProcessTime(stat string) (float64, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, errors.New("short /proc/PID/stat")
	}
	return sumTicks(fields[11:13])
}

// parseMachineTime adds up the time of all processors that was not idle.
func parseMachineTime(stat string) (float64, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, errors.New("short /proc/stat")
	}
	return sumTicks(append(slices.Clone(fields[1:4]), fields[6:9]...)) // without idle and iowait; guests are in user
}

func sumTicks(fields []string) (float64, error) {
	var sum float64
	for _, f := range fields {
		v, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return 0, err
		}
		sum += v / ticksPerSecond
	}
	return sum, nil
}

// Since describes the CPU time from an earlier reading on.
func (t CPUTimes) Since(before CPUTimes) string {
	total := t.busy - before.busy
	others := total
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(t.of)) {
		used := t.of[name] - before.of[name]
		others -= used
		parts = append(parts, fmt.Sprintf("%s %.1f", name, used))
	}
	return fmt.Sprintf("CPU seconds: %s, all others %.1f; the %d processors were busy for %.0f%% of %.1f s",
		strings.Join(parts, ", "), max(others, 0), runtime.NumCPU(),
		100*total/t.at.Sub(before.at).Seconds()/float64(runtime.NumCPU()), t.at.Sub(before.at).Seconds())
}

// MeasureCPU begins to measure the cluster and further processes; the returned function says what took the processors since.
func MeasureCPU(c *Cluster, processes map[string]*Process, say func(string, ...any)) (report func() error, err error) {
	pids, err := c.Processes()
	if err != nil {
		return nil, err
	}
	for name, p := range processes {
		pids[name] = p.PID()
	}
	before, err := ReadCPUTimes(pids)
	if err != nil {
		return nil, err
	}
	return func() error {
		after, err := ReadCPUTimes(pids)
		if err == nil {
			say("%s", after.Since(before))
		}
		return err
	}, nil
}
