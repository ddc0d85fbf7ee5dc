// ociseek-unpack-oracle unpacks stacks of layers with containerd's own code, so that tests compare
// our results with containerd's and not with our idea of them. It must run as root.
//
// Each line of standard input names the tars of one stack, lowest layer first, separated by tabs.
// The answer is one line of JSON: the entries of the resulting directory, or the number of the layer
// that could not be applied and the error.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive"
	"golang.org/x/sys/unix"
)

type answer struct {
	Layer   int      `json:"layer"` // the layer that failed
	Error   string   `json:"error,omitempty"`
	Entries []*entry `json:"entries"`
}

// An entry of the directory. Names and values are in hex. Mtime is null if no layer has set it.
type entry struct {
	Path   string            `json:"path"`
	Kind   string            `json:"kind"`
	Mode   uint32            `json:"mode"`
	UID    uint32            `json:"uid"`
	GID    uint32            `json:"gid"`
	Nlink  uint64            `json:"nlink"`
	Inode  uint64            `json:"inode"`
	Mtime  *[2]int64         `json:"mtime"`
	Size   int64             `json:"size"`
	SHA256 string            `json:"sha256,omitempty"`
	Target string            `json:"target,omitempty"`
	Major  uint32            `json:"major"`
	Minor  uint32            `json:"minor"`
	Xattrs map[string]string `json:"xattrs"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: ociseek-unpack-oracle SCRATCH-DIRECTORY < stacks")
		os.Exit(2)
	}
	stacks := bufio.NewScanner(os.Stdin)
	stacks.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	for stacks.Scan() {
		root, err := os.MkdirTemp(os.Args[1], "root-")
		if err != nil {
			fmt.Fprintln(os.Stderr, "ociseek-unpack-oracle:", err)
			os.Exit(1)
		}
		line, err := json.Marshal(unpack(root, strings.FieldsFunc(stacks.Text(), func(r rune) bool { return r == '\t' })))
		if err != nil {
			line = []byte(fmt.Sprintf(`{"layer":-1,"error":%q}`, err))
		}
		out.Write(append(line, '\n'))
		out.Flush()
		os.RemoveAll(root)
	}
}

func unpack(root string, layers []string) answer {
	if err := os.Chmod(root, 0o755); err != nil {
		return answer{Layer: -1, Error: err.Error()}
	}
	// File times may be a clock tick behind time.Now.
	start := time.Now().Add(-100 * time.Millisecond)
	for number, layer := range layers {
		content, err := os.ReadFile(layer)
		if err == nil {
			_, err = archive.Apply(context.Background(), root, bytes.NewReader(content))
		}
		if err != nil {
			return answer{Layer: number, Error: strings.ReplaceAll(err.Error(), root, "ROOT")}
		}
	}
	entries := []*entry{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		found, err := stat(root, path, start)
		entries = append(entries, found)
		return err
	})
	if err != nil {
		return answer{Layer: -1, Error: err.Error()}
	}
	return answer{Entries: entries}
}

func stat(root, path string, start time.Time) (*entry, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	st := info.Sys().(*syscall.Stat_t)
	found := &entry{
		Path:  hex.EncodeToString([]byte(strings.TrimPrefix(strings.TrimPrefix(path, root), "/"))),
		Mode:  st.Mode & 0o7777,
		UID:   st.Uid,
		GID:   st.Gid,
		Nlink: uint64(st.Nlink),
		Inode: st.Ino,
	}
	if info.ModTime().Before(start) {
		found.Mtime = &[2]int64{st.Mtim.Sec, st.Mtim.Nsec}
	}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		found.Kind = "dir"
	case syscall.S_IFREG:
		found.Kind = "reg"
		found.Size = st.Size
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(content)
		found.SHA256 = hex.EncodeToString(sum[:])
	case syscall.S_IFLNK:
		found.Kind = "symlink"
		target, err := os.Readlink(path)
		if err != nil {
			return nil, err
		}
		found.Target = hex.EncodeToString([]byte(target))
	case syscall.S_IFCHR:
		found.Kind = "char"
	case syscall.S_IFBLK:
		found.Kind = "block"
	case syscall.S_IFIFO:
		found.Kind = "fifo"
	default:
		return nil, fmt.Errorf("%s has the mode %o", path, st.Mode)
	}
	if found.Kind == "char" || found.Kind == "block" {
		found.Major, found.Minor = unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))
	}
	found.Xattrs, err = xattrs(path)
	return found, err
}

func xattrs(path string) (map[string]string, error) {
	list := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, name := range strings.Split(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(path, name, value)
		if err == unix.EINVAL { // Linux stores an empty capability set but cannot read it back
			n, err = 0, nil
		}
		if err != nil {
			return nil, err
		}
		found[hex.EncodeToString([]byte(name))] = hex.EncodeToString(value[:n])
	}
	return found, nil
}
