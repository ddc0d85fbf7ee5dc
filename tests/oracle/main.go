// ociseek-oracle asks soci's own library, so that tests compare with it and not with what we
// believe of it. Each command reads jobs from stdin and answers each with one line, in order: `ok`,
// `refused` or `bad`, a tab, and what there is to say.
//
//	build    span size, tool, gzip|uncompressed, LAYER, OUT  (tab-separated)  writes the ztoc that soci builds
//	verify   ZTOC, LAYER                                                      what the snapshotter would serve
//	index    one JSON document a line                                         the SOCI index, by soci's MarshalIndex
//	convert  LAYOUT, OUT, span size, minimum layer size                       what `soci convert --standalone` writes
//
// and two that take their jobs elsewhere:
//
//	standalone [options] SRC DST    soci's whole converter: what `soci convert --standalone --format oci-dir` writes
//	list                            from stdin layers, each after its length: what archive/tar finds in them
//
// soci panics on some layers, and takes for ever on others: neither ends the run.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"
)

// A layer that takes soci longer than this has hung it. Whoever asks should end this process then:
// the job goes on in it.
const patience = 300 * time.Second

// A verdict is one line of the answer. `bad` is for a ztoc that does not do what it should.
type verdict struct{ word, detail string }

func ok(format string, a ...any) verdict { return verdict{"ok", fmt.Sprintf(format, a...)} }
func refused(err error) verdict          { return verdict{"refused", err.Error()} }

func main() {
	time.Local = time.UTC // soci writes modification times in the local zone
	if len(os.Args) > 1 && os.Args[1] == "standalone" {
		runStandalone(os.Args[2:])
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "list" {
		runList()
		return
	}
	commands := map[string]func(string) verdict{"build": build, "verify": verify, "index": index, "convert": convert}
	if len(os.Args) != 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: ociseek-oracle build|verify|index|convert|list < jobs, or",
			"ociseek-oracle standalone [options] SRC DST")
		os.Exit(2)
	}
	command := commands[os.Args[1]]
	jobs := bufio.NewScanner(os.Stdin)
	jobs.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	for jobs.Scan() {
		v := patiently(command, jobs.Text())
		fmt.Fprintf(out, "%s\t%s\n", v.word, strings.NewReplacer("\n", `\n`, "\r", `\r`).Replace(v.detail))
		out.Flush()
	}
	if err := jobs.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "ociseek-oracle:", err)
		os.Exit(1)
	}
}

// patiently runs a job; a panic or a hang is a verdict too.
func patiently(command func(string) verdict, job string) verdict {
	done := make(chan verdict, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- verdict{"refused", fmt.Sprint("panic: ", r)}
			}
		}()
		done <- command(job)
	}()
	select {
	case v := <-done:
		return v
	case <-time.After(patience):
		return verdict{"refused", fmt.Sprint("no answer within ", patience)}
	}
}

// fields splits a job into exactly n parts.
func fields(job string, n int) ([]string, error) {
	parts := strings.Split(job, "\t")
	if len(parts) != n {
		return nil, fmt.Errorf("want %d fields, got %d", n, len(parts))
	}
	return parts, nil
}
