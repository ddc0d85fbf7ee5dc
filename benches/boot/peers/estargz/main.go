// estargz FORM LAYER OUTPUT [LIST]: converts a gzip layer to an eStargz layer, of the form `gzip` or `zstd` (which is
// zstd:chunked), that begins with the files of LIST (one path per line), in that order. Prints the digest, the diff ID,
// the digest of the table of contents, and the size.
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
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/klauspost/compress/zstd"
)

// What stargz-snapshotter's converter to zstd:chunked uses.
type zstdCompression struct {
	*zstdchunked.Decompressor
	*zstdchunked.Compressor
}

func main() {
	if len(os.Args) < 4 || len(os.Args) > 5 {
		log.Fatal("estargz FORM LAYER OUTPUT [LIST]")
	}
	tar, size := inflated(os.Args[2])
	defer os.Remove(tar.Name())
	var options []estargz.Option
	switch os.Args[1] {
	case "gzip":
	case "zstd":
		compressor := &zstdchunked.Compressor{CompressionLevel: zstd.SpeedDefault}
		options = append(options, estargz.WithCompression(&zstdCompression{new(zstdchunked.Decompressor), compressor}))
	default:
		log.Fatal("FORM is gzip or zstd")
	}
	if len(os.Args) == 5 {
		// Each layer gets the list of the whole image.
		var elsewhere []string
		options = append(options, estargz.WithPrioritizedFiles(lines(os.Args[4])),
			estargz.WithAllowPrioritizeNotFound(&elsewhere))
	}
	blob, err := estargz.Build(io.NewSectionReader(tar, 0, size), options...)
	must(err)
	output, err := os.Create(os.Args[3])
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
