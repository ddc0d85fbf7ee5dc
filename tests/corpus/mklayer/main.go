// mklayer makes test layers as image builders do.
//
//	mklayer tar DIR PREFIX OUT.tar      docker/containerd-style tar (PAX, whole-second mtimes, xattrs, hard links)
//	mklayer compress ALGO IN.tar OUT    ALGO: go, go9, go1, go0, klauspost, pgzip, estargz, zstd
package main

import (
	"archive/tar"
	gogzip "compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/stargz-snapshotter/estargz"
	kgzip "github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/klauspost/pgzip"
)

func main() {
	log.SetFlags(0)
	switch a := os.Args[1:]; {
	case len(a) == 4 && a[0] == "tar":
		must(makeTar(a[1], a[2], a[3]))
	case len(a) == 4 && a[0] == "compress":
		must(compress(a[1], a[2], a[3]))
	default:
		log.Fatal("usage: mklayer tar DIR PREFIX OUT | mklayer compress ALGO IN OUT")
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func xattrs(path string) map[string]string {
	var buf [4096]byte
	m := map[string]string{}
	n, err := syscall.Listxattr(path, buf[:])
	if err != nil {
		return m
	}
	for _, name := range strings.Split(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
		var v [65536]byte
		if k, err := syscall.Getxattr(path, name, v[:]); err == nil && name != "" {
			m["SCHILY.xattr."+name] = string(v[:k])
		}
	}
	return m
}

func makeTar(dir, prefix, out string) error {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(f)
	seen := map[[2]uint64]string{}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if rel == "." {
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		link := ""
		if fi.Mode()&os.ModeSymlink != 0 {
			if link, err = os.Readlink(p); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(fi, link)
		if err != nil {
			return err
		}
		h.Name = filepath.Join(prefix, rel)
		if fi.IsDir() {
			h.Name += "/"
		}
		h.Format, h.ModTime = tar.FormatPAX, h.ModTime.Truncate(time.Second)
		h.AccessTime, h.ChangeTime, h.Uname, h.Gname = time.Time{}, time.Time{}, "", ""
		st := fi.Sys().(*syscall.Stat_t)
		if fi.Mode().IsRegular() && st.Nlink > 1 {
			k := [2]uint64{st.Dev, st.Ino}
			if first, ok := seen[k]; ok {
				h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			} else {
				seen[k] = h.Name
			}
		}
		if fi.Mode()&os.ModeSymlink == 0 {
			if m := xattrs(p); len(m) > 0 {
				h.PAXRecords = m
			}
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		r, err := os.Open(p)
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.Copy(tw, r)
		return err
	})
	if err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return f.Close()
}

func compress(algo, in, out string) error {
	src, err := os.Open(in)
	if err != nil {
		return err
	}
	dst, err := os.Create(out)
	if err != nil {
		return err
	}
	defer dst.Close()
	var w io.WriteCloser
	switch algo {
	case "go": // docker, containerd, buildkit: compress/gzip at the default level
		w = gogzip.NewWriter(dst)
	case "go9":
		w, err = gogzip.NewWriterLevel(dst, gogzip.BestCompression)
	case "go1": // ko, go-containerregistry: BestSpeed
		w, err = gogzip.NewWriterLevel(dst, gogzip.BestSpeed)
	case "go0":
		w, err = gogzip.NewWriterLevel(dst, gogzip.NoCompression)
	case "klauspost":
		w = kgzip.NewWriter(dst)
	case "pgzip": // podman, buildah, skopeo
		w = pgzip.NewWriter(dst)
	case "zstd": // buildkit, containerd
		w, err = zstd.NewWriter(dst)
	case "estargz":
		st, err := src.Stat()
		if err != nil {
			return err
		}
		b, err := estargz.Build(io.NewSectionReader(src, 0, st.Size()))
		if err != nil {
			return err
		}
		defer b.Close()
		_, err = io.Copy(dst, b)
		return err
	default:
		return fmt.Errorf("unknown algorithm %q", algo)
	}
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, src); err != nil {
		return err
	}
	return w.Close()
}
