package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/awslabs/soci-snapshotter/soci"
	"github.com/awslabs/soci-snapshotter/soci/store"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content/oci"
)

// The build tool identifier that the soci command uses.
const cliTool = "AWS SOCI CLI v0.2"

// A conversion is what the command line asks for.
type conversion struct {
	src, dst, tag  string
	allPlatforms   bool
	platform       string
	span, smallest int64
	tool           string
	prefetch       []string
}

// runConvert does what `soci convert --standalone --format oci-dir` of v0.15.0 does, with the same
// calls to soci's library. (The command itself is in cmd/soci/commands/convert.go and
// internal/standalone.go, in a separate module that cannot be built from the Go proxy.) It prints
// the wall clock and CPU time of the conversion, without the two copies, and on the last line the
// digest of the converted image.
//
//	ociseek-oracle convert [--all-platforms] [--platform P] [--span-size N] [--min-layer-size N]
//	    [--build-tool-identifier T] [--prefetch-file PATH]... SRC DST
//
// SRC and DST are directories, or names in ociseek's form oci:DIR:TAG. With a TAG, DST's index.json
// gets that tag. Tars (the command's default format) are not supported.
func runConvert(args []string) {
	var c conversion
	fs := flag.NewFlagSet("convert", flag.ExitOnError)
	fs.BoolVar(&c.allPlatforms, "all-platforms", false, "")
	fs.StringVar(&c.platform, "platform", "", "")
	fs.Int64Var(&c.span, "span-size", 4<<20, "")
	fs.Int64Var(&c.smallest, "min-layer-size", 10<<20, "")
	fs.StringVar(&c.tool, "build-tool-identifier", cliTool, "")
	fs.Func("prefetch-file", "", func(path string) error { c.prefetch = append(c.prefetch, path); return nil })
	fs.Parse(args)
	c.src, _ = reference(fs.Arg(0))
	c.dst, c.tag = reference(fs.Arg(1))
	answers := os.Stdout
	os.Stdout = os.Stderr // the library prints each layer to stdout
	converted, wall, cpu, err := c.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soci:", err)
		os.Exit(1)
	}
	fmt.Fprintf(answers, "converted in %.3f s, %.3f CPU s\n%s\n", wall.Seconds(), cpu.Seconds(), converted)
}

func reference(s string) (dir, tag string) {
	rest, ok := strings.CutPrefix(s, "oci:")
	if !ok {
		return s, ""
	}
	i := strings.LastIndex(rest, ":")
	return rest[:i], rest[i+1:]
}

// run copies the layout src into a temporary directory in $TMPDIR, converts it there with a new
// artifacts database, and copies the result to dst, with an index.json that lists only the converted
// image.
func (c *conversion) run() (converted digest.Digest, wall, cpu time.Duration, err error) {
	ctx := context.Background()
	work, err := os.MkdirTemp("", "oracle-convert-*")
	if err != nil {
		return
	}
	defer os.RemoveAll(work)
	layout := filepath.Join(work, "layout")
	if err = os.CopyFS(layout, os.DirFS(c.src)); err != nil {
		return
	}
	root, err := resolveLayoutRoot(layout)
	if err != nil {
		return
	}
	orasStore, err := oci.New(layout)
	if err != nil {
		return
	}
	blobs, err := local.NewStore(layout)
	if err != nil {
		return
	}
	db, err := soci.NewDB(soci.ArtifactsDbPath(work))
	if err != nil {
		return
	}
	builder, err := soci.NewIndexBuilder(blobs, &store.SociStore{Store: orasStore},
		soci.WithMinLayerSize(c.smallest), soci.WithSpanSize(c.span), soci.WithBuildToolIdentifier(c.tool),
		soci.WithArtifactsDb(db), soci.WithPrefetchPaths(c.prefetch))
	if err != nil {
		return
	}
	wanted, err := c.platforms(ctx, blobs, root)
	if err != nil {
		return
	}
	started, spent := time.Now(), cpuTime()
	made, err := builder.Convert(ctx, images.Image{Name: c.src, Target: root}, soci.ConvertWithPlatforms(wanted...))
	if err != nil {
		return
	}
	wall, cpu = time.Since(started), cpuTime()-spent
	if err = os.CopyFS(c.dst, os.DirFS(layout)); err != nil {
		return
	}
	entry := *made
	if c.tag != "" {
		entry.Annotations = map[string]string{ocispec.AnnotationRefName: c.tag}
	}
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{entry},
	}
	return made.Digest, wall, cpu, writeJSON(filepath.Join(c.dst, ocispec.ImageIndexFile), index)
}

// platforms returns what soci is asked to convert; without any, it takes the image's own or this machine's.
func (c *conversion) platforms(
	ctx context.Context, blobs content.Provider, root ocispec.Descriptor,
) ([]ocispec.Platform, error) {
	switch {
	case c.allPlatforms:
		return images.Platforms(ctx, blobs, root)
	case c.platform != "":
		p, err := platforms.Parse(c.platform)
		return []ocispec.Platform{p}, err
	}
	return nil, nil
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// resolveLayoutRoot finds what to convert, as soci's does: one manifest, one list, or a list made
// of index.json or of the entries that are there.
func resolveLayoutRoot(layout string) (ocispec.Descriptor, error) {
	var none ocispec.Descriptor
	blob := func(d digest.Digest) string {
		return filepath.Join(layout, "blobs", d.Algorithm().String(), d.Encoded())
	}
	list, err := os.ReadFile(filepath.Join(layout, "index.json"))
	if err != nil {
		return none, err
	}
	var top, index ocispec.Index
	if err := json.Unmarshal(list, &top); err != nil {
		return none, fmt.Errorf("unmarshal index.json: %w", err)
	}
	n := len(top.Manifests)
	if n == 0 {
		return none, errors.New("index.json contains no manifests")
	}
	if n == 1 && !images.IsIndexType(top.Manifests[0].MediaType) {
		return top.Manifests[0], nil
	}
	mediaType := top.MediaType
	if n == 1 {
		mediaType = top.Manifests[0].MediaType
		if list, err = os.ReadFile(blob(top.Manifests[0].Digest)); err != nil {
			return none, fmt.Errorf("read manifest list: %w", err)
		}
	}
	if mediaType == "" {
		mediaType = ocispec.MediaTypeImageIndex
	}
	if err := json.Unmarshal(list, &index); err != nil {
		return none, fmt.Errorf("unmarshal manifest list: %w", err)
	}
	available := make([]ocispec.Descriptor, 0, len(index.Manifests))
	for _, d := range index.Manifests {
		if _, err := os.Stat(blob(d.Digest)); err == nil {
			available = append(available, d)
		}
	}
	switch {
	case len(available) == 0:
		return none, errors.New("manifest list contains no entries with available blobs")
	case len(available) == 1 && images.IsManifestType(available[0].MediaType):
		return available[0], nil
	case n == 1 && len(available) == len(index.Manifests):
		return top.Manifests[0], nil
	}
	index.MediaType, index.Manifests = mediaType, available
	b, err := json.Marshal(index)
	if err != nil {
		return none, err
	}
	d := digest.FromBytes(b)
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(b))}, os.WriteFile(blob(d), b, 0o644)
}

// cpuTime returns the CPU time that this process has used so far, on all threads, in user and system mode.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
