package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/awslabs/soci-snapshotter/soci"
	"github.com/awslabs/soci-snapshotter/soci/store"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content/oci"
)

// The build tool identifier that the soci command uses.
const cliTool = "AWS SOCI CLI v0.2"

// Whether a job has run. soci.NewDB opens one database for the life of the process, so a second job
// would find the ztocs of the first one and build none.
var converted bool

// convert does what `soci convert --standalone --format oci-dir LAYOUT OUT` of v0.15 does, with the
// same calls to soci's library. (The command itself is in cmd/soci/commands/convert.go and
// internal/standalone.go, in a separate module that cannot be imported here.) It copies LAYOUT into
// a temporary directory in $TMPDIR, converts it there with a new artifacts database, and copies the
// result to OUT, with an index.json that lists only the converted image. OUT must not exist. Only
// one job can run in a process. The answer contains the digest of the converted image, and the wall
// clock and CPU time of the conversion, without the two copies.
//
// Not supported: tars as input or output (the command's default format), platforms other than the
// image's own, layouts with several images, prefetch files, and command-line options.
func convert(job string) verdict {
	parts, err := fields(job, 4)
	if err != nil {
		return refused(err)
	}
	span, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return refused(err)
	}
	smallest, err := strconv.ParseInt(parts[3], 10, 64)
	if err != nil {
		return refused(err)
	}
	if converted {
		return refused(errors.New("only one conversion can run in a process"))
	}
	converted = true
	os.Stdout = os.Stderr // the library prints each layer to stdout; answers go to a writer that was opened before
	v, err := convertLayout(context.Background(), parts[0], parts[1], span, smallest)
	if err != nil {
		return refused(err)
	}
	return v
}

func convertLayout(ctx context.Context, layout, out string, span, smallest int64) (verdict, error) {
	var none verdict
	work, err := os.MkdirTemp("", "oracle-layout-*")
	if err != nil {
		return none, err
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, os.DirFS(layout)); err != nil {
		return none, fmt.Errorf("copying the layout: %w", err)
	}
	image, err := onlyImage(work)
	if err != nil {
		return none, err
	}
	orasStore, err := oci.New(work)
	if err != nil {
		return none, err
	}
	contentStore, err := local.NewStore(work)
	if err != nil {
		return none, err
	}
	records, err := os.MkdirTemp("", "oracle-artifacts-*")
	if err != nil {
		return none, err
	}
	defer os.RemoveAll(records)
	db, err := soci.NewDB(soci.ArtifactsDbPath(records))
	if err != nil {
		return none, err
	}
	blobs := &store.SociStore{Store: orasStore}
	builder, err := soci.NewIndexBuilder(contentStore, blobs, soci.WithSpanSize(span), soci.WithMinLayerSize(smallest),
		soci.WithBuildToolIdentifier(cliTool), soci.WithArtifactsDb(db))
	if err != nil {
		return none, err
	}
	batch, done, err := blobs.BatchOpen(ctx)
	if err != nil {
		return none, err
	}
	defer done(ctx)
	started, spent := time.Now(), cpu()
	made, err := builder.Convert(batch, images.Image{Name: layout, Target: image})
	if err != nil {
		return none, err
	}
	wall, spent := time.Since(started), cpu()-spent
	if err := os.CopyFS(out, os.DirFS(work)); err != nil {
		return none, fmt.Errorf("copying the converted layout: %w", err)
	}
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{*made},
	})
	if err != nil {
		return none, err
	}
	if err := os.WriteFile(filepath.Join(out, ocispec.ImageIndexFile), index, 0o644); err != nil {
		return none, err
	}
	return ok("%s converted in %.3f s, %.3f CPU s", made.Digest, wall.Seconds(), spent.Seconds()), nil
}

// onlyImage returns the descriptor of the only image in a layout's index.json.
func onlyImage(layout string) (ocispec.Descriptor, error) {
	var index ocispec.Index
	bytes, err := os.ReadFile(filepath.Join(layout, ocispec.ImageIndexFile))
	if err == nil {
		err = json.Unmarshal(bytes, &index)
	}
	if err == nil && len(index.Manifests) != 1 {
		err = fmt.Errorf("want one image, got %d", len(index.Manifests))
	}
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("index.json: %w", err)
	}
	return index.Manifests[0], nil
}

// cpu returns the CPU time that this process has used so far, on all threads, in user and system mode.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
