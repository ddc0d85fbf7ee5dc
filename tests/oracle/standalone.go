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

	"github.com/awslabs/soci-snapshotter/soci"
	"github.com/awslabs/soci-snapshotter/soci/store"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content/oci"
)

// runStandalone runs soci's own converter without soci's command line. It does what LoadImage,
// Convert and SaveImageToDir do for `soci convert --standalone --format oci-dir` of v0.15.0
// (cmd/soci/commands/internal/standalone.go; soci's cmd is a separate module that cannot be built
// from the Go proxy). It prints the digest of the converted image.
//
//	ociseek-oracle standalone [--all-platforms] [--platform P] [--span-size N] [--min-layer-size N]
//	    [--build-tool-identifier T] [--prefetch-file PATH]... SRC DST
//
// SRC and DST are directories, or names in ociseek's form oci:DIR:TAG. With a TAG, DST's index.json
// gets that tag. Only one conversion can run in a process, because soci.NewDB opens one database for
// the life of the process.
func runStandalone(args []string) {
	fs := flag.NewFlagSet("standalone", flag.ExitOnError)
	all, one := fs.Bool("all-platforms", false, ""), fs.String("platform", "", "")
	span, smallest := fs.Int64("span-size", 1<<22, ""), fs.Int64("min-layer-size", 10<<20, "")
	tool := fs.String("build-tool-identifier", cliTool, "")
	var prefetch []string
	fs.Func("prefetch-file", "", func(path string) error { prefetch = append(prefetch, path); return nil })
	fs.Parse(args)
	src, _ := reference(fs.Arg(0))
	dst, tag := reference(fs.Arg(1))
	desc, err := standalone(src, dst, tag, *all, *one, *span, *smallest, *tool, prefetch)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soci:", err)
		os.Exit(1)
	}
	fmt.Println(desc.Digest)
}

func reference(s string) (dir, tag string) {
	rest, ok := strings.CutPrefix(s, "oci:")
	if !ok {
		return s, ""
	}
	i := strings.LastIndex(rest, ":")
	return rest[:i], rest[i+1:]
}

func standalone(
	src, dst, tag string, all bool, one string, span, smallest int64, tool string, prefetch []string,
) (*ocispec.Descriptor, error) {
	ctx := context.Background()
	work, err := os.MkdirTemp("", "glue-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	layout := filepath.Join(work, "layout")
	if err := os.CopyFS(layout, os.DirFS(src)); err != nil {
		return nil, err
	}
	root, err := resolveLayoutRoot(layout)
	if err != nil {
		return nil, err
	}
	orasStore, err := oci.New(layout)
	if err != nil {
		return nil, fmt.Errorf("failed to create writable OCI store: %w", err)
	}
	content, err := local.NewStore(layout)
	if err != nil {
		return nil, err
	}
	db, err := soci.NewDB(soci.ArtifactsDbPath(work))
	if err != nil {
		return nil, err
	}
	stdout := os.Stdout
	os.Stdout = os.Stderr // the library prints each layer to stdout
	defer func() { os.Stdout = stdout }()
	builder, err := soci.NewIndexBuilder(content, &store.SociStore{Store: orasStore},
		soci.WithMinLayerSize(smallest), soci.WithSpanSize(span), soci.WithBuildToolIdentifier(tool),
		soci.WithArtifactsDb(db), soci.WithPrefetchPaths(prefetch))
	if err != nil {
		return nil, err
	}
	image := images.Image{Name: src, Target: root}
	var wanted []ocispec.Platform
	if all {
		if wanted, err = images.Platforms(ctx, content, root); err != nil {
			return nil, err
		}
	} else if one != "" {
		p, err := platforms.Parse(one)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, p)
	}
	desc, err := builder.Convert(ctx, image, soci.ConvertWithPlatforms(wanted...))
	if err != nil {
		return nil, err
	}
	if err := os.CopyFS(dst, os.DirFS(layout)); err != nil {
		return nil, err
	}
	entry := *desc
	if tag != "" {
		entry.Annotations = map[string]string{ocispec.AnnotationRefName: tag}
	}
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{entry},
	}
	return desc, writeJSON(filepath.Join(dst, "index.json"), index)
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
