package main

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/awslabs/soci-snapshotter/ztoc"
)

// build builds a ztoc as `soci create` does, and writes it to a file.
func build(job string) verdict {
	parts, err := fields(job, 5)
	if err != nil {
		return refused(err)
	}
	tool, algorithm, layer, out := parts[1], parts[2], parts[3], parts[4]
	span, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil {
		return refused(err)
	}
	built, err := ztoc.NewBuilder(tool).BuildZtoc(layer, span, ztoc.WithCompression(algorithm))
	if err != nil {
		return refused(err)
	}
	r, desc, err := ztoc.Marshal(built)
	if err != nil {
		return refused(err)
	}
	bytes, err := io.ReadAll(r)
	if err == nil {
		err = os.WriteFile(out, bytes, 0o644)
	}
	if err != nil {
		return refused(fmt.Errorf("writing the ztoc: %w", err))
	}
	return ok("%s %d bytes, %d spans, %d entries", desc.Digest, desc.Size, len(built.SpanDigests), len(built.FileMetadata))
}
