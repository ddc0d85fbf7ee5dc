package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sort"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// runList reads layers from standard input, each preceded by its length as four bytes in
// little-endian order, and answers each with what archive/tar lists in it.
func runList() {
	in, out := bufio.NewReaderSize(os.Stdin, 1<<20), bufio.NewWriter(os.Stdout)
	for {
		var length uint32
		if err := binary.Read(in, binary.LittleEndian, &length); err != nil {
			return
		}
		blob := make([]byte, length)
		if _, err := io.ReadFull(in, blob); err != nil {
			return
		}
		v := patiently(list, string(blob))
		fmt.Fprintf(out, "%s\t%s\n", v.word, strings.NewReplacer("\n", `\n`, "\r", `\r`).Replace(v.detail))
		out.Flush()
	}
}

// maxExpanded is the most bytes of a sparse file that are read.
const maxExpanded = 16 << 20

// list returns the properties of each entry as words, including the size and checksum of a regular
// file's content.
func list(blob string) verdict {
	plain, err := unpacked([]byte(blob))
	if err != nil {
		return refused(err)
	}
	var text strings.Builder
	r := tar.NewReader(bytes.NewReader(plain))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return ok("%s", text.String())
		}
		if err != nil {
			return refused(err)
		}
		sum := crc32.NewIEEE()
		isLarge := h.Size > maxExpanded && h.Size > int64(len(plain))
		if !isLarge {
			if _, err := io.Copy(sum, r); err != nil {
				return refused(err)
			}
		}
		kinds := map[byte]string{
			tar.TypeReg: "reg", tar.TypeGNUSparse: "reg", tar.TypeDir: "dir", tar.TypeSymlink: "symlink",
			tar.TypeLink: "hardlink", tar.TypeChar: "char", tar.TypeBlock: "block", tar.TypeFifo: "fifo",
		}
		kind := kinds[h.Typeflag]
		if kind == "" {
			continue
		}
		content := "-"
		switch {
		case kind == "reg" && isLarge:
			content = fmt.Sprintf("%d:-", h.Size)
		case kind == "reg":
			content = fmt.Sprintf("%d:%08x", h.Size, sum.Sum32())
		}
		t := h.ModTime
		fmt.Fprintf(&text, "%s %s %s %d %d:%d %s:%s %s %d.%d %d,%d %s;", kind, text16(h.Name), content, h.Mode,
			uint32(h.Uid), uint32(h.Gid), text16(h.Uname), text16(h.Gname), text16(h.Linkname), t.Unix(), t.Nanosecond(),
			h.Devmajor, h.Devminor, records(h.PAXRecords))
	}
}

func text16(s string) string { return hex.EncodeToString([]byte(s)) }

func records(all map[string]string) string {
	list := []string{}
	for key, value := range all {
		list = append(list, text16(key)+"="+text16(value))
	}
	sort.Strings(list)
	return strings.Join(list, ",")
}

// unpacked decodes a whole layer. Bytes after the last gzip member are ignored.
func unpacked(blob []byte) ([]byte, error) {
	frame, skippable := []byte{0x28, 0xb5, 0x2f, 0xfd}, []byte{0x2a, 0x4d, 0x18}
	switch {
	case bytes.HasPrefix(blob, []byte{0x1f, 0x8b}):
		var plain bytes.Buffer
		for rest := bytes.NewReader(blob); ; {
			r, err := gzip.NewReader(rest)
			if err != nil {
				return nil, err
			}
			r.Multistream(false)
			if _, err := io.Copy(&plain, r); err != nil {
				return nil, err
			}
			next := blob[len(blob)-rest.Len():]
			if !bytes.HasPrefix(next, []byte{0x1f, 0x8b}) {
				return plain.Bytes(), nil
			}
		}
	case bytes.HasPrefix(blob, frame), len(blob) > 3 && bytes.Equal(blob[1:4], skippable):
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer d.Close()
		plain, err := d.DecodeAll(blob, nil)
		if err != nil {
			err = fmt.Errorf("zstd: %w", err)
		}
		return plain, err
	}
	return blob, nil
}
