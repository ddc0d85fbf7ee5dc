// ociseek-oracle calls soci's own library, so that tests compare our results with soci's and not
// with our idea of them. Most commands read one job per line from standard input and answer each
// job with one line, in the same order: `ok`, `refused` or `bad`, a tab, and the details.
//
//	build    span size, tool, gzip|uncompressed, LAYER, OUT   writes the ztoc that soci builds
//	verify   ZTOC, LAYER                                      checks what the snapshotter would serve
//	index    one JSON document per line                       prints the SOCI index of soci's MarshalIndex
//
// The fields of a job are separated by tabs. Two commands get their input in another way:
//
//	convert [options] SRC DST    writes what `soci convert --standalone --format oci-dir` writes
//	list                         lists what archive/tar finds in layers from standard input, each after its length
//
// soci panics on some layers and never finishes on others. Neither stops this program.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"
)

// The time limit for a job. A job that takes longer counts as hung. It continues in this process, so
// the caller should then kill the process.
const patience = 300 * time.Second

// A verdict is the answer to one job. `bad` means that the ztoc is wrong.
type verdict struct{ word, detail string }

func ok(format string, a ...any) verdict { return verdict{"ok", fmt.Sprintf(format, a...)} }
func refused(err error) verdict          { return verdict{"refused", err.Error()} }

func main() {
	time.Local = time.UTC // soci writes modification times in the local zone
	if len(os.Args) > 1 && os.Args[1] == "convert" {
		runConvert(os.Args[2:])
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "list" {
		runList()
		return
	}
	commands := map[string]func(string) verdict{"build": build, "verify": verify, "index": index}
	if len(os.Args) != 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: ociseek-oracle build|verify|index|list < jobs, or",
			"ociseek-oracle convert [options] SRC DST")
		os.Exit(2)
	}
	command := commands[os.Args[1]]
	// soci leaves databases in the directory for temporary files, for example of layers that it refuses.
	temporary, err := os.MkdirTemp("", "ociseek-oracle")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer os.RemoveAll(temporary)
	os.Setenv("TMPDIR", temporary)
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

// patiently runs a job. A panic and a timeout become verdicts.
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
