package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/awslabs/soci-snapshotter/cache"
	"github.com/awslabs/soci-snapshotter/fs/reader"
	spanmanager "github.com/awslabs/soci-snapshotter/fs/span-manager"
	"github.com/awslabs/soci-snapshotter/metadata"
	"github.com/awslabs/soci-snapshotter/ztoc"
	"github.com/awslabs/soci-snapshotter/ztoc/compression"
)

// A node of the file tree that unpacking the layer would create.
type node struct {
	header *tar.Header
	sum    []byte // the hash of a regular file's content
}

// A comparison counts the faults of a ztoc and keeps the first few.
type comparison struct {
	bad   int
	first []string
}

func (c *comparison) complain(format string, a ...any) {
	if c.bad++; len(c.first) < 5 {
		c.first = append(c.first, fmt.Sprintf(format, a...))
	}
}

// verify compares what the snapshotter would serve with what archive/tar reads from the layer when
// it is decompressed from start to end. It reads every regular entry through the span manager (span
// digests, increasing checkpoints), every span by itself (background fetcher, prefetch), and every
// file of the mounted tree through the metadata store and fs/reader (comparison with the tar
// headers).
func verify(job string) verdict {
	parts, err := fields(job, 2)
	if err != nil {
		return refused(err)
	}
	zf, err := os.Open(parts[0])
	if err != nil {
		return refused(err)
	}
	defer zf.Close()
	zt, err := ztoc.Unmarshal(zf)
	if err != nil {
		return verdict{"bad", fmt.Sprint("unmarshal: ", err)}
	}
	layer, err := os.Open(parts[1])
	if err != nil {
		return refused(err)
	}
	defer layer.Close()
	st, err := layer.Stat()
	if err != nil {
		return refused(err)
	}
	whole := io.NewSectionReader(layer, 0, st.Size())
	var plain io.Reader = io.NewSectionReader(layer, 0, st.Size())
	if zt.CompressionAlgorithm == compression.Gzip {
		if plain, err = gzip.NewReader(plain); err != nil {
			return verdict{"bad", fmt.Sprint("straight decompression: ", err)}
		}
	}
	spans, entries := zt.MaxSpanID+1, zt.FileMetadata // the span manager empties the ztoc
	sm, err := spanmanager.New(zt, whole, cache.NewMemoryCache(), 0, "")
	if err != nil {
		return verdict{"bad", fmt.Sprint("span manager: ", err)}
	}
	defer sm.Close()
	c := &comparison{}
	tree, err := c.entries(plain, entries, sm)
	if err != nil {
		return verdict{"bad", fmt.Sprint("straight decompression: ", err)}
	}
	for s := compression.SpanID(0); s < spans; s++ {
		if err := sm.ResolveSpan(s); err != nil {
			c.complain("span %d does not resolve: %v", s, err)
		}
	}
	if err := c.mounted(zt.TOC, entries, whole, sm, tree); err != nil {
		c.complain("metadata store: %v", err)
	}
	if c.bad > 0 {
		return verdict{"bad", fmt.Sprintf("%d: %s", c.bad, strings.Join(c.first, "; "))}
	}
	return ok("%d entries, %d spans, %d mounted", len(entries), spans, len(tree))
}

// entries compares the ztoc with the tar, entry by entry and byte by byte. It returns the file tree.
func (c *comparison) entries(
	plain io.Reader, files []ztoc.FileMetadata, sm *spanmanager.SpanManager,
) (map[string]node, error) {
	tree, dirs := map[string]node{}, map[string]bool{}
	tr, i := tar.NewReader(plain), 0
	for ; ; i++ {
		h, err := tr.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		if i >= len(files) {
			c.complain("missing from the ztoc: %q", h.Name)
			continue
		}
		m := files[i]
		// A whiteout may be a hard link to a file of a lower layer, which soci's reader refuses. Only its name counts.
		if h.Typeflag == tar.TypeLink && m.Type == "reg" && strings.HasPrefix(path.Base(h.Name), ".wh.") {
			h.Typeflag, h.Linkname = tar.TypeReg, ""
		}
		if m.Name != h.Name || m.Linkname != h.Linkname || int64(m.UncompressedSize) != h.Size {
			c.complain("entry %d: tar %q size %d, ztoc %q size %d", i, h.Name, h.Size, m.Name, m.UncompressedSize)
		}
		for dir := path.Dir(clean(h.Name)); dir != "/" && !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
		}
		target, linked := tree[clean(h.Linkname)]
		if h.Typeflag != tar.TypeDir && dirs[clean(h.Name)] { // it replaces a directory with all its content
			for name := range tree {
				if strings.HasPrefix(name, clean(h.Name)+"/") {
					delete(tree, name)
				}
			}
		}
		if h.Typeflag == tar.TypeLink {
			if linked {
				tree[clean(h.Name)] = target
			}
			continue
		}
		n := node{header: h}
		if m.Type == "reg" {
			want := sha256.New()
			size, err := io.Copy(want, tr)
			if err != nil {
				return nil, err
			}
			n.sum = want.Sum(nil)
			c.content(m, size, n.sum, sm)
		}
		tree[clean(h.Name)] = n
	}
	if i != len(files) {
		c.complain("the ztoc has %d entries, the tar has %d", len(files), i)
	}
	_, err := io.Copy(io.Discard, plain)
	return tree, err
}

// content compares an entry, read through the span manager, with the expected hash.
func (c *comparison) content(m ztoc.FileMetadata, size int64, want []byte, sm *spanmanager.SpanManager) {
	if m.UncompressedSize == 0 { // the snapshotter never reads empty files through the span manager
		return
	}
	r, err := sm.GetContents(m.UncompressedOffset, m.UncompressedOffset+m.UncompressedSize)
	if err != nil {
		c.complain("%q: span manager: %v", m.Name, err)
		return
	}
	defer r.Close()
	got := sha256.New()
	n, err := io.Copy(got, r)
	if err != nil || n != size || !bytes.Equal(got.Sum(nil), want) {
		c.complain("%q: content differs (%d bytes, want %d): %v", m.Name, n, size, err)
	}
}

// mounted compares the tree that the snapshotter would mount with the tree of the tar.
func (c *comparison) mounted(
	toc ztoc.TOC, files []ztoc.FileMetadata, layer *io.SectionReader, sm *spanmanager.SpanManager, tree map[string]node,
) error {
	toc.FileMetadata = files
	meta, err := metadata.NewTempDbStore(layer, toc)
	if err != nil {
		return err
	}
	r, err := reader.NewReader(meta, "", sm, false)
	if err != nil {
		meta.Close()
		return err
	}
	defer r.Close()
	for name, want := range tree {
		id, attr := meta.RootID(), metadata.Attr{}
		for _, base := range strings.Split(name[1:], "/") {
			if base == "" {
				continue // the root itself
			}
			if id, attr, err = meta.GetChild(id, base); err != nil {
				break
			}
		}
		if err != nil {
			c.complain("mounted tree: %q: %v", name, err)
			continue
		}
		if name != "/" {
			c.attributes(name, attr, want.header)
		}
		if want.sum == nil {
			continue
		}
		f, err := r.OpenFile(id)
		if err != nil {
			c.complain("mounted tree: %q: %v", name, err)
			continue
		}
		h, buf := sha256.New(), make([]byte, 1<<20)
		for off := int64(0); off < attr.Size && err == nil; {
			var k int
			if k, err = f.ReadAt(buf, off); k == 0 && err == nil {
				err = io.ErrNoProgress
			}
			h.Write(buf[:k])
			off += int64(k)
		}
		if err != nil || !bytes.Equal(h.Sum(nil), want.sum) {
			c.complain("mounted tree: %q: content differs: %v", name, err)
		}
	}
	return nil
}

// attributes compares the attributes of a file with its tar header.
func (c *comparison) attributes(name string, attr metadata.Attr, h *tar.Header) {
	xattrs := map[string][]byte{}
	for key, value := range h.PAXRecords {
		if x, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
			xattrs[x] = []byte(value)
		}
	}
	same := len(xattrs) == len(attr.Xattrs)
	for key, value := range xattrs {
		same = same && bytes.Equal(attr.Xattrs[key], value)
	}
	regular := h.Typeflag == tar.TypeReg
	// The type comes from the type flag. Type bits in the mode field are ignored.
	mode := h.FileInfo().Mode()
	const bits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	sameType := attr.Mode.IsRegular() == regular && attr.Mode.IsDir() == (h.Typeflag == tar.TypeDir) &&
		(attr.Mode&fs.ModeSymlink != 0) == (h.Typeflag == tar.TypeSymlink)
	switch {
	case regular && attr.Size != h.Size:
		c.complain("mounted tree: %q: size %d, want %d", name, attr.Size, h.Size)
	case attr.UID != h.Uid || attr.GID != h.Gid:
		c.complain("mounted tree: %q: owner %d:%d, want %d:%d", name, attr.UID, attr.GID, h.Uid, h.Gid)
	case attr.Mode&bits != mode&bits || !sameType:
		c.complain("mounted tree: %q: mode %v, want %v", name, attr.Mode, mode)
	case !attr.ModTime.Equal(h.ModTime):
		c.complain("mounted tree: %q: time %v, want %v", name, attr.ModTime, h.ModTime)
	case h.Typeflag == tar.TypeSymlink && attr.LinkName != h.Linkname:
		c.complain("mounted tree: %q: link to %q, want %q", name, attr.LinkName, h.Linkname)
	case !same:
		c.complain("mounted tree: %q: xattrs %q, want %q", name, attr.Xattrs, xattrs)
	}
}

func clean(name string) string { return path.Clean("/" + name) }
