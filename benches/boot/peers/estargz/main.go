// estargz LAYER OUTPUT [LIST]: converts a gzip layer to an eStargz layer that begins with the files of LIST (one path
// per line), in that order. Prints the digest, the diff ID, the digest of the table of contents, and the size.
package main

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/containerd/stargz-snapshotter/estargz"
)

func main() {
	if len(os.Args) < 3 || len(os.Args) > 4 {
		log.Fatal("estargz LAYER OUTPUT [LIST]")
	}
	tar, size := inflated(os.Args[1])
	defer os.Remove(tar.Name())
	var options []estargz.Option
	if len(os.Args) == 4 {
		// Each layer gets the list of the whole image.
		var elsewhere []string
		options = append(options, estargz.WithPrioritizedFiles(lines(os.Args[3])),
			estargz.WithAllowPrioritizeNotFound(&elsewhere))
	}
	blob, err := estargz.Build(io.NewSectionReader(tar, 0, size), options...)
	must(err)
	output, err := os.Create(os.Args[2])
	must(err)
	hash := sha256.New()
	size, err = io.Copy(io.MultiWriter(output, hash), blob)
	must(err)
	must(blob.Close())
	must(output.Close())
	fmt.Printf("sha256:%x %s %s %d\n", hash.Sum(nil), blob.DiffID(), blob.TOCDigest(), size)
}

func inflated(path string) (*os.File, int64) {
	layer, err := os.Open(path)
	must(err)
	defer layer.Close()
	reader, err := gzip.NewReader(layer)
	must(err)
	tar, err := os.CreateTemp("", "estargz")
	must(err)
	size, err := io.Copy(tar, reader)
	must(err)
	return tar, size
}

func lines(path string) []string {
	file, err := os.Open(path)
	must(err)
	defer file.Close()
	var found []string
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		found = append(found, scanner.Text())
	}
	must(scanner.Err())
	return found
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
