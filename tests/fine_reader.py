#!/usr/bin/env python3
"""fine_reader.py LAYOUT: a second reader of fine indexes, which shares no code with ociseek.

It was written from docs/contributing/fine-format.md alone, with Python's own library and the zstd program. Of each
fine index in the layout, it reads every document: all pages, all proofs, and what all spans decode to. The layer,
decoded from start to end, must have the same bytes, and tarfile must find the same entries. Prints a line for each
document.
"""
import gzip, hashlib, io, json, os, struct, subprocess, sys, tarfile, tempfile, zlib

K = [int(x, 16) for x in '''
428a2f98 71374491 b5c0fbcf e9b5dba5 3956c25b 59f111f1 923f82a4 ab1c5ed5 d807aa98 12835b01 243185be 550c7dc3 72be5d74
80deb1fe 9bdc06a7 c19bf174 e49b69c1 efbe4786 0fc19dc6 240ca1cc 2de92c6f 4a7484aa 5cb0a9dc 76f988da 983e5152 a831c66d
b00327c8 bf597fc7 c6e00bf3 d5a79147 06ca6351 14292967 27b70a85 2e1b2138 4d2c6dfc 53380d13 650a7354 766a0abb 81c2c92e
92722c85 a2bfe8a1 a81a664b c24b8b70 c76c51a3 d192e819 d6990624 f40e3585 106aa070 19a4c116 1e376c08 2748774c 34b0bcb5
391c0cb3 4ed8aa4a 5b9cca4f 682e6ff3 748f82ee 78a5636f 84c87814 8cc70208 90befffa a4506ceb bef9a3f7 c67178f2'''.split()]
INITIAL = bytes.fromhex('6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd19')


def compressed(state, data):
    """The state of SHA-256 after these bytes, a multiple of 64, from this state."""
    def turn(x, n):
        return (x >> n | x << 32 - n) & 0xffffffff

    h = list(struct.unpack('>8I', state))
    for at in range(0, len(data), 64):
        w = list(struct.unpack('>16I', data[at:at + 64]))
        for i in range(16, 64):
            low = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3
            high = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10
            w.append(w[i - 16] + low + w[i - 7] + high & 0xffffffff)
        a, b, c, d, e, f, g, last = h
        for k, word in zip(K, w):
            one = last + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + (e & f ^ ~e & g) + k + word
            two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + (a & b ^ a & c ^ b & c)
            a, b, c, d, e, f, g, last = one + two & 0xffffffff, a, b, c, d + one & 0xffffffff, e, f, g
        h = [x + y & 0xffffffff for x, y in zip(h, (a, b, c, d, e, f, g, last))]
    return struct.pack('>8I', *h)


def digest_after(state, length):
    """The digest of `length` bytes, a multiple of 64, that leave SHA-256 in this state: the rest is its padding."""
    return compressed(state, b'\x80' + bytes(55) + struct.pack('>Q', 8 * length))


def zstd(data, dictionary=None):
    """What frames decode to."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(dictionary or b'')
        file.flush()
        more = ['-D', file.name] if dictionary else []
        done = subprocess.run(['zstd', '-dc', '-q', '--long=27', *more], input=data, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def whole_frames(blob, window=None, has_checksum=False):
    """Yields frames that the zstd program can decode to the end, without sizes and checksums. The bytes begin with a
    frame, or with a block of a frame with this window descriptor, and end after any block."""
    at = 0
    while at < len(blob):
        if window is None:
            if blob[at] & 0xf0 == 0x50:
                at += 8 + int.from_bytes(blob[at + 4:at + 8], 'little')
                continue
            descriptor, at = blob[at + 4], at + 5
            has_checksum, is_single = descriptor & 4, descriptor & 32
            if not is_single:
                window, at = blob[at], at + 1
            at += [0, 1, 2, 4][descriptor & 3]
            size = [1 if is_single else 0, 2, 4, 8][descriptor >> 6]
            if is_single:
                content = int.from_bytes(blob[at:at + size], 'little') + (256 if size == 2 else 0)
                windows = ((1 << 10 + (byte >> 3)) // 8 * (8 + (byte & 7)) for byte in range(256))
                window = next(byte for byte, size in enumerate(windows) if size >= content)
            at += size
        begin, is_last = at, 0
        while at < len(blob) and not is_last:
            block = int.from_bytes(blob[at:at + 3], 'little')
            at, is_last = at + 3 + (1 if block >> 1 & 3 == 1 else block >> 3), block & 1
        yield bytes.fromhex('28b52ffd00') + bytes([window]) + blob[begin:at] + (b'' if is_last else b'\1\0\0')
        at, window = at + (4 if has_checksum else 0), None


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def bytes(self, count):
        assert self.at + count <= len(self.data)
        self.at += count
        return self.data[self.at - count:self.at]

    def varint(self):
        value = shift = 0
        while True:
            byte, = self.bytes(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                assert value < 1 << 64
                return value

    def varints(self, count):
        return [self.varint() for _ in range(count)]

    def signed(self, count):
        return [n >> 1 if n % 2 == 0 else -(n + 1 >> 1) for n in self.varints(count)]

    def texts(self, count):
        sizes = self.varints(count)
        return [self.bytes(size) for size in sizes]

    def end(self):
        assert self.at == len(self.data)


def frame(data, size):
    content = zstd(data)
    assert len(content) == size
    return content


class Document:
    def __init__(self, data, head_size, head_digest, layer):
        assert f'sha256:{hashlib.sha256(data[:head_size]).hexdigest()}' == head_digest
        self.layer = layer
        magic, version, self.codec, zeros, digest, size, self.tar_end, self.span_size, self.spans, entries, pages, \
            ranges, *frames = struct.unpack_from('<7sBB7s32s3Q4I4I', data)
        assert magic == b'OSKFINE' and zeros == bytes(7) and version == (2 if self.codec == 2 else 1)
        assert digest == hashlib.sha256(layer).digest() and size == len(layer)
        at = 104
        self.read_spans(frame(data[at:at + frames[0]], frames[1]), ranges)
        at += frames[0]
        self.read_entries(frame(data[at:at + frames[2]], frames[3]), entries)
        at += frames[2]
        self.proofs = [INITIAL] + [data[at + 32 * i:at + 32 * i + 32] for i in range(self.spans - 1)]
        at += 32 * (self.spans - 1)
        tables = [struct.unpack_from('<II32s', data, at + 40 * i) for i in range(pages)]
        assert at + 40 * pages == head_size
        # Python's own SHA-256 tells no state, but this decides it as well, and a thousand times faster.
        before = hashlib.sha256()
        for first, end, state in zip(self.border, self.border[1:], self.proofs):
            assert digest_after(state, first) == before.digest(), first
            before.update(layer[first:end])
        at, self.windows = head_size, {}
        assert len(tables) == len(self.page_order())
        for (stored, plain, digest), spans in zip(tables, self.page_order()):
            page = data[at:at + stored]
            assert hashlib.sha256(page).digest() == digest
            self.read_page(frame(page, plain), spans)
            at += stored
        assert at == len(data)

    def read_spans(self, content, ranges):
        reader = Reader(content)
        if self.codec == 0:
            self.input = self.output = [i * self.span_size for i in range(self.spans)]
            self.bits = [0] * self.spans
        else:
            self.input = reader.varints(self.spans)
            self.output = [0, *reader.varints(self.spans - 1)]
            for i in range(1, self.spans):
                self.input[i] += self.input[i - 1]
                self.output[i] += self.output[i - 1]
            self.bits = [0, *reader.bytes(self.spans - 1)]
        self.start = [reader.varints(2) for _ in range(ranges)]
        reader.end()
        self.border = [0] + [-(-offset // 64) * 64 for offset in self.input[1:]] + [len(self.layer)]

    def first(self, span):
        """The first byte of a span."""
        return self.input[span] - (1 if self.codec == 1 and self.bits[span] else 0)

    def page_order(self):
        """The spans of each page."""
        if self.codec == 0:
            return []
        per_page = 1 if self.codec == 2 else 8
        recorded = [i for first, count in self.start for i in range(first, first + count) if i > 0]
        pages = [recorded[i:i + per_page] for i in range(0, len(recorded), per_page)]
        for first in range(1, self.spans, per_page):
            rest = [i for i in range(first, min(first + per_page, self.spans)) if i not in recorded]
            pages += [rest] if rest else []
        return pages

    def read_page(self, content, spans):
        reader = Reader(content)
        for span in spans:
            window = {'lead': reader.bytes(self.border[span] - self.first(span)), 'state': 0}
            if self.codec == 2:
                window['state'], = reader.bytes(1)
            size = 32768
            if self.codec == 2 and window['state']:
                window['descriptor'], = reader.bytes(1)
                window['tables'] = reader.bytes(reader.varint())
                size = reader.varint()
            if self.codec == 1 or window['state']:
                numbers = [reader.varints(2) for _ in range(reader.varint())]
                content, at = bytearray(size), 0
                places = []
                for left_out, more in numbers:
                    places.append((at + left_out, more + 1))
                    at += left_out + more + 1
                for place, length in places:
                    content[place:place + length] = reader.bytes(length)
                assert len(content) == size
                window['content'] = bytes(content)
            self.windows[span] = window
        reader.end()

    def read_entries(self, content, count):
        reader = Reader(content)
        kinds = list(reader.bytes(count))
        shared, own = reader.varints(count), reader.varints(count)
        names, name = [], b''
        for same, size in zip(shared, own):
            name = name[:same] + reader.bytes(size)
            names.append(name)
        sizes, data = reader.varints(count), reader.signed(count)
        targets, modes = reader.texts(count), reader.signed(count)
        uids, gids = reader.varints(count), reader.varints(count)
        users, groups = reader.texts(count), reader.texts(count)
        timed = sum(kind >= 8 for kind in kinds)
        seconds, nanoseconds = iter(reader.signed(timed)), iter(reader.varints(timed))
        majors, minors = reader.signed(count), reader.signed(count)
        records = reader.varints(count)
        reader.texts(sum(records)), reader.texts(sum(records))
        reader.end()
        self.entries, expected, last = [], 512, 0
        for i in range(count):
            offset = expected + data[i]
            expected = -(-(offset + sizes[i]) // 512) * 512 + 512
            time = None
            if kinds[i] >= 8:
                last += next(seconds)
                time = last + next(nanoseconds) / 1e9
            self.entries.append((names[i], kinds[i] % 8, sizes[i], offset, targets[i], modes[i], uids[i], gids[i],
                                 users[i], groups[i], time, majors[i], minors[i]))

    def decoded(self, span):
        """What a span decodes to."""
        fetched = self.layer[self.border[span]:self.border[span + 1]]
        ends = [*self.output, self.tar_end]
        size = ends[span + 1] - ends[span]
        plain = [lambda: fetched, lambda: self.gzip_span(span, fetched, size), lambda: self.zstd_span(span, fetched)]
        plain = plain[self.codec]()
        assert len(plain) >= size, (span, len(plain), size)
        return plain[:size]

    def zstd_span(self, span, fetched):
        if span + 1 < self.spans:
            fetched = fetched[:max(0, self.input[span + 1] - self.border[span])]
        window = self.windows.get(span, {'lead': b'', 'state': 0})
        blob = window['lead'] + fetched
        if not window['state']:
            return b''.join(map(zstd, whole_frames(blob)))
        dictionary = bytes.fromhex('37a430ec01000000') + window['tables'] + window['content']
        first, *rest = whole_frames(blob, window['descriptor'], window['state'] == 2)
        return zstd(first, dictionary) + b''.join(map(zstd, rest))

    def gzip_span(self, span, fetched, size):
        if span == 0:
            reader, data = zlib.decompressobj(-15), fetched[self.input[0]:]
        else:
            window = self.windows[span]
            reader = zlib.decompressobj(-15, zdict=window['content'])
            data = window['lead'] + fetched
            if self.bits[span]:
                # Python's zlib takes whole bytes. Empty blocks stand for the bits before the first block.
                empty, length = skipping(8 - self.bits[span])
                joined = empty | data[0] >> (8 - self.bits[span]) << length
                data = joined.to_bytes((length + self.bits[span]) // 8, 'little') + data[1:]
        plain, trailer = b'', 8
        while True:
            plain += reader.decompress(data)
            if not reader.eof or len(plain) >= size:
                return plain
            # Only the first member was decoded without its header, and so without its trailer.
            data, trailer = reader.unused_data[trailer:], 0
            reader = zlib.decompressobj(31)


def skipping(bits):
    """Empty deflate blocks whose length in bits is `bits` modulo 8: their bits, and how many there are."""
    # With the fixed codes: 3 bits of header, and 7 of the end. With codes of its own: an odd number of bits.
    fixed = (0b010, 10)
    fields = [(0, 1), (2, 2), (0, 5), (0, 5), (15, 4)]
    order = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15]
    fields += [(1 if symbol in (1, 18) else 0, 3) for symbol in order]
    # Code 1 is 0, code 18 is 1: 138 and 118 zeros, then a length of 1 for the end and for a distance, and the end.
    fields += [(1, 1), (127, 7), (1, 1), (107, 7), (0, 1), (0, 1), (0, 1)]
    dynamic, length = 0, 0
    for value, size in fields:
        dynamic |= value << length
        length += size
    for odd in (0, 1):
        for even in range(4):
            if (odd * length + even * fixed[1] - bits) % 8 == 0:
                value, at = (dynamic, length) if odd else (0, 0)
                for _ in range(even):
                    value, at = value | fixed[0] << at, at + fixed[1]
                return value, at
    raise AssertionError(bits)


def listed(tar):
    """The entries as Python's tarfile finds them, in the document's terms."""
    kinds = {tarfile.REGTYPE: 0, tarfile.AREGTYPE: 0, tarfile.DIRTYPE: 1, tarfile.SYMTYPE: 2, tarfile.LNKTYPE: 3,
             tarfile.CHRTYPE: 4, tarfile.BLKTYPE: 5, tarfile.FIFOTYPE: 6}
    return [(of.name.encode('utf-8', 'surrogateescape').rstrip(b'/'), kinds[of.type],
             of.size if kinds[of.type] == 0 else 0, of.offset_data,
             of.linkname.encode('utf-8', 'surrogateescape') if kinds[of.type] in (2, 3) else b'', of.mode & 0o7777,
             of.uid, of.gid) for of in tarfile.open(fileobj=io.BytesIO(tar))]


def main():
    layout = sys.argv[1]

    def blob(digest):
        with open(f'{layout}/blobs/{digest.replace(":", "/")}', 'rb') as file:
            return file.read()

    with open(f'{layout}/index.json') as file:
        manifests = [json.loads(blob(entry['digest'])) for entry in json.load(file)['manifests']]
    for manifest in manifests:
        if manifest.get('artifactType') != 'application/vnd.ociseek.fine.v1+json':
            continue
        for listing in manifest['layers']:
            said = {key.rpartition('.')[2]: value for key, value in listing['annotations'].items()}
            layer = blob(said['layer-digest'])
            document = Document(blob(listing['digest']), int(said['head-size']), said['head-digest'], layer)
            tar = [lambda: layer, lambda: gzip.decompress(layer), lambda: zstd(layer)][document.codec]()
            at = 0
            for span in range(document.spans):
                plain = document.decoded(span)
                assert plain == tar[at:at + len(plain)], span
                at += len(plain)
            assert at == document.tar_end
            ours = [(name.rstrip(b'/'), kind, size, offset, target, mode & 0o7777, uid, gid)
                    for name, kind, size, offset, target, mode, uid, gid, *_ in document.entries]
            assert ours == listed(tar)
            print(f'codec {document.codec}: {document.spans} spans, {len(ours)} entries, {at} bytes')


main()
