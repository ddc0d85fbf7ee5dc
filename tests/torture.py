"""torture.py OUT [SEED]: writes about 3,400 unusual layers (40 MB) into the directory OUT.

Each file name begins with what is unusual: gzip framing, PAX records, tar header fields, trees, damage. All content is
derived from the seed, so the same seed gives the same bytes (with the same version of zlib).
tests/system/differential.rs compares what ociseek and soci's library do with these layers.
"""
import bz2, lzma, os, random, struct, sys, zlib

OUT = sys.argv[1]
R = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
os.makedirs(OUT, exist_ok=True)
T = 1700000000
written = set()


def save(name, data):
    assert name not in written, name
    written.add(name)
    with open(f'{OUT}/{name}', 'wb') as f:
        f.write(data)


# ---- tar -------------------------------------------------------------------------------------------------------

USTAR, GNU, V7, STAR = b'ustar\x0000', b'ustar  \0', bytes(8), b'ustar\x0000'
FIELDS = {'name': (0, 100), 'mode': (100, 8), 'uid': (108, 8), 'gid': (116, 8), 'size': (124, 12), 'mtime': (136, 12),
          'chksum': (148, 8), 'type': (156, 1), 'link': (157, 100), 'magic': (257, 8), 'uname': (265, 32), 'gname': (297, 32),
          'devmajor': (329, 8), 'devminor': (337, 8), 'prefix': (345, 155)}


def num(v, n):
    if 0 <= v < 8 ** (n - 1):
        return b'%0*o\0' % (n - 1, v)
    return (v & ((1 << (8 * n)) - 1) if v < 0 else v | (0x80 << (8 * (n - 1)))).to_bytes(n, 'big')


def seal(h, how='unsigned'):
    """Returns the header block with its checksum."""
    h = bytearray(h)
    h[148:156] = b' ' * 8
    total = sum(h) if how != 'signed' else sum(b - 256 if b > 127 else b for b in h)
    h[148:156] = {'unsigned': b'%06o\0 ', 'signed': b'%06o\0 ', 'spaces': b'%6o\0 ', '7digits': b'%07o\0', 'nul': b'\0\0%05o\0',
                  'noterm': b'%08o', 'lead': b' %06o\0'}[how] % total
    return bytes(h)


def hdr(name, typ=b'0', size=0, mode=0o644, uid=0, gid=0, mtime=T, link=b'', magic=USTAR, uname=b'', gname=b'', dev=(0, 0),
        prefix=b'', raw=None, check='unsigned'):
    name, link = (x.encode() if isinstance(x, str) else x for x in (name, link))
    h = bytearray(512)

    def at(field, b):
        o, n = FIELDS[field]
        b = b[:n]
        h[o:o + len(b)] = b
    at('name', name), at('mode', num(mode, 8)), at('uid', num(uid, 8)), at('gid', num(gid, 8)), at('size', num(size, 12))
    at('mtime', num(mtime, 12)), at('type', typ), at('link', link), at('magic', magic), at('uname', uname), at('gname', gname)
    if magic != V7:
        at('devmajor', num(dev[0], 8)), at('devminor', num(dev[1], 8)), at('prefix', prefix)
    for field, b in (raw or {}).items():
        o, n = FIELDS[field]
        h[o:o + n] = bytes(n)
        at(field, b)
    return seal(h, check)


def pad(b):
    return b + bytes(-len(b) % 512)


def f(name, data=b'', **k):
    return hdr(name, size=len(data), **k) + pad(data)


def rec(k, v):
    k, v = (x.encode() if isinstance(x, str) else x for x in (k, v))
    n = len(k) + len(v) + 3
    while len(str(n)) + len(k) + len(v) + 3 != n:
        n = len(str(n)) + len(k) + len(v) + 3
    return b'%d %s=%s\n' % (n, k, v)


def paxraw(body, typ=b'x', size=None, **k):
    return hdr('PaxHeaders/x', typ, len(body) if size is None else size, **k) + pad(body)


def pax(*recs, typ=b'x', **k):
    return paxraw(b''.join(rec(*r) for r in recs), typ, **k)


def long(kind, text):
    return hdr('././@LongLink', kind, len(text), magic=GNU) + pad(text)


END = bytes(1024)
WORDS = b'layer blob span ztoc index of the quick brown container image that jumps over a lazy registry'.split()


def prose(n, r=None):
    r = r or R
    out = bytearray()
    while len(out) < n:
        out += r.choice(WORDS) + (b'\n' if r.random() < .1 else b' ')
    return bytes(out[:n])


def noise(n):
    return R.randbytes(n)


A = f('a.txt', b'hello\n')
Z = f('z.txt', b'and the end\n')

# ---- gzip ------------------------------------------------------------------------------------------------------


def deflate(data, level=6, strategy=0, mem=8, wbits=15, flush=None, every=0):
    c = zlib.compressobj(level, zlib.DEFLATED, -wbits, mem, strategy)
    out = b''
    if flush is not None:
        for i in range(0, len(data), every):
            out += c.compress(data[i:i + every]) + c.flush(flush)
    else:
        out = c.compress(data)
    return out + c.flush()


def member(data, level=6, flags=0, fields=b'', raw=None, crc=None, isize=None, cm=8, **k):
    body = deflate(data, level, **k) if raw is None else raw
    return (b'\x1f\x8b' + bytes([cm, flags]) + b'\0\0\0\0\0\xff' + fields + body
            + struct.pack('<II', zlib.crc32(data) if crc is None else crc, (len(data) if isize is None else isize) & 0xffffffff))


class Bits:
    """Writes deflate blocks bit by bit, so that block borders can be anywhere."""

    def __init__(self):
        self.acc = self.n = 0
        self.out = bytearray()

    def put(self, v, n):
        self.acc |= v << self.n
        self.n += n
        while self.n >= 8:
            self.out.append(self.acc & 255)
            self.acc >>= 8
            self.n -= 8

    def huff(self, code, n):
        self.put(int(f'{code:0{n}b}'[::-1], 2), n)

    def fixed(self, data, last=False, end=True):
        self.put(int(last), 1), self.put(1, 2)
        for b in data:
            self.huff(0x30 + b, 8) if b < 144 else self.huff(0x190 + b - 144, 9)
        if end:
            self.huff(0, 7)

    def match(self, distance_code, extra_bits, extra):
        """Writes a match of length 3. Only inside a fixed block."""
        self.huff(1, 7), self.huff(distance_code, 5), self.put(extra, extra_bits)

    def stored(self, data, last=False, bad=False):
        self.put(int(last), 1), self.put(0, 2)
        if self.n:
            self.put(0, 8 - self.n)
        n = len(data)
        self.out += struct.pack('<HH', n, (n ^ 0xffff) ^ (1 if bad else 0)) + data

    def done(self):
        if self.n:
            self.put(0, 8 - self.n)
        return bytes(self.out)


count = [0]


def tar(name, data, gz=True):
    """Saves a tar as a gzip layer, and every third one also uncompressed."""
    count[0] += 1
    save(name + '.tar.gz', member(data))
    if count[0] % 3 == 0:
        save(name + '.tar', data)


BODY = b''.join(f(f'dir{i % 3}/f{i:02}', prose(R.randrange(0, 9000))) for i in range(14)) + f('noise', noise(6000)) + END
GOOD = member(BODY)

# a1: truncated at various bytes
for n in list(range(0, 14)) + [len(GOOD) - i for i in range(1, 14)] + sorted(R.sample(range(20, len(GOOD) - 20), 24)):
    save(f'a01-gzip-cut-{n:05}.tar.gz', GOOD[:n])
for n in [1, 100, 511, 512, 513, 1024, len(BODY) - 1, len(BODY) - 511, len(BODY) - 512, len(BODY) - 513, len(BODY) - 1024,
          len(BODY) - 1025] + sorted(R.sample(range(600, len(BODY)), 16)):
    save(f'a01-plain-cut-{n:05}.tar', BODY[:n])
two = member(BODY[:5000]) + member(BODY[5000:])
for n in sorted(R.sample(range(len(member(BODY[:5000])) - 12, len(member(BODY[:5000])) + 16), 16)):
    save(f'a01-member-border-cut-{n:05}.tar.gz', two[:n])

# a2: flipped bits
for bit in range(80):
    d = bytearray(GOOD)
    d[bit // 8] ^= 1 << bit % 8
    save(f'a02-gzip-flip-header-{bit:02}.tar.gz', bytes(d))
for i in range(60):
    d, bit = bytearray(GOOD), R.randrange(80, len(GOOD) * 8)
    d[bit // 8] ^= 1 << bit % 8
    save(f'a02-gzip-flip-{i:02}.tar.gz', bytes(d))
for i in range(50):
    d, bit = bytearray(BODY), R.randrange(0, 512 * 8)
    d[bit // 8] ^= 1 << bit % 8
    save(f'a02-plain-flip-{i:02}.tar', bytes(d))

# a3: wrong checksums
for where in range(3):
    for k in ({'crc': 1}, {'isize': 1}, {'isize': 1 << 31}):
        parts = [member(BODY[i * 9000:(i + 1) * 9000 if i < 2 else len(BODY)], **(k if i == where else {})) for i in range(3)]
        save(f'a03-wrong-{list(k)[0]}-{list(k.values())[0]}-member-{where}.tar.gz', b''.join(parts))

# a4: bytes after the last member
for name, tail in {'zero': b'\0', 'zeros-512': bytes(512), 'zeros-511': bytes(511), 'zeros-10240': bytes(10240), 'text': b'garbage', 'x1f': b'\x1f', 'magic': b'\x1f\x8b',
                   'magic-cm': b'\x1f\x8b\x08', 'magic-cm7': b'\x1f\x8b\x07' + bytes(40), 'header': GOOD[:10], 'header-flags': b'\x1f\x8b\x08\xe0' + bytes(30),
                   'half-member': GOOD[:900], 'zlib': zlib.compress(b'x'), 'zero-member': b'\0' + member(b''), 'newline': b'\n', 'noise': noise(300)}.items():
    save(f'a04-trailing-{name}.tar.gz', GOOD + tail)

# a5: many members
SMALL = f('one', prose(700)) + f('two', prose(300)) + END
save('a05-member-per-byte.tar.gz', b''.join(member(SMALL[i:i + 1]) for i in range(len(SMALL))))
save('a05-member-per-block.tar.gz', b''.join(member(BODY[i:i + 512]) for i in range(0, len(BODY), 512)))
EXTRA = struct.pack('<H', 6) + b'AB\x02\0xy'
save('a05-member-fields-in-each.tar.gz', b''.join(member(BODY[i:i + 7000], flags=0x1c, fields=EXTRA + b'layer.tar\0c\xe9\0') for i in range(0, len(BODY), 7000)))
save('a05-bgzip-like.tar.gz', b''.join(member(BODY[i:i + 4000], flags=4, fields=struct.pack('<H', 6) + b'BC\x02\0\xff\x0f') for i in range(0, len(BODY), 4000)) + member(b'', flags=4, fields=struct.pack('<H', 6) + b'BC\x02\0\x1b\0'))
for i in range(40):
    out, at = b'', 0
    while at < len(BODY):
        n = R.choice([0, 1, 3, 100, 512, 4096, 4097, 9999, 30000])
        out += member(BODY[at:at + n], level=R.randrange(10), strategy=R.choice([0, 0, 1, 2, 3, 4]), mem=R.randrange(1, 10))
        at += n
    save(f'a05-random-members-{i:02}.tar.gz', out)

# a6: empty members
E0 = member(b'')
for n in (1, 2, 3, 10, 1000):
    save(f'a06-empty-first-{n}.tar.gz', E0 * n + GOOD)
    save(f'a06-empty-last-{n}.tar.gz', GOOD + E0 * n)
    save(f'a06-empty-alone-{n}.tar.gz', E0 * n)
    save(f'a06-empty-middle-{n}.tar.gz', member(BODY[:20000]) + E0 * n + member(BODY[20000:]))
save('a06-empty-first-3000.tar.gz', E0 * 3000 + GOOD)  # soci stores 32 KiB for each
save('a06-empty-first-stored.tar.gz', member(b'', raw=b'\x01\0\0\xff\xff') + GOOD)
save('a06-empty-first-many-blocks.tar.gz', member(b'', raw=b'\0\0\0\xff\xff' * 5 + b'\x01\0\0\xff\xff') + GOOD)

# a7: empty blocks
NUL = b'\0\0\0\xff\xff'
for n in (1, 2, 100, 3000):
    save(f'a07-empty-blocks-first-{n}.tar.gz', member(BODY, raw=NUL * n + deflate(BODY)))
    c = zlib.compressobj(6, zlib.DEFLATED, -15)
    half = c.compress(BODY[:20000]) + c.flush(zlib.Z_FULL_FLUSH)
    save(f'a07-empty-blocks-middle-{n}.tar.gz', member(BODY, raw=half + NUL * n + c.compress(BODY[20000:]) + c.flush()))
    c = zlib.compressobj(6, zlib.DEFLATED, -15)
    save(f'a07-empty-blocks-last-{n}.tar.gz', member(BODY, raw=c.compress(BODY) + c.flush(zlib.Z_FULL_FLUSH) + NUL * n + b'\x01\0\0\xff\xff'))
b = Bits()
for _ in range(99):
    b.fixed(b'')
b.fixed(SMALL, last=True)
save('a07-empty-fixed-blocks-first.tar.gz', member(SMALL, raw=b.done()))

# a8: header fields
for n in (0, 1, 4, 60000, 65535):
    save(f'a08-extra-{n}.tar.gz', member(BODY, flags=4, fields=struct.pack('<H', n) + noise(n)))
for n in (0, 1, 255, 510, 511, 512, 513, 600, 2000, 70000):
    save(f'a08-name-{n}.tar.gz', member(BODY, flags=8, fields=b'n' * n + b'\0'))
    save(f'a08-comment-{n}.tar.gz', member(BODY, flags=16, fields=b'c' * n + b'\0'))
save('a08-name-latin1.tar.gz', member(BODY, flags=8, fields=b'caf\xe9\xff\0'))
save('a08-text.tar.gz', member(BODY, flags=1))


def hcrc(flags, fields, wrong=0):
    h = b'\x1f\x8b\x08' + bytes([flags]) + b'\0\0\0\0\0\xff' + fields
    return fields + struct.pack('<H', (zlib.crc32(h) & 0xffff) ^ wrong)


for flags, fields in ((2, b''), (0x1e, EXTRA + b'n\0c\0'), (0x1f, EXTRA + b'n\0c\0'), (0x0a, b'caf\xe9\0')):
    save(f'a08-hcrc-{flags:02x}.tar.gz', member(BODY, flags=flags, fields=hcrc(flags, fields)))
    save(f'a08-hcrc-wrong-{flags:02x}.tar.gz', member(BODY, flags=flags, fields=hcrc(flags, fields, 1)))
    save(f'a08-hcrc-wrong-second-{flags:02x}.tar.gz', member(BODY[:9000]) + member(BODY[9000:], flags=flags, fields=hcrc(flags, fields, 0x100)))
for flag in (0x20, 0x40, 0x80, 0xe0):
    save(f'a08-reserved-{flag:02x}.tar.gz', member(BODY, flags=flag))
    save(f'a08-reserved-second-{flag:02x}.tar.gz', member(BODY[:9000]) + member(BODY[9000:], flags=flag))
for cm in (0, 7, 9, 255):
    save(f'a08-cm-{cm}.tar.gz', member(BODY, cm=cm))
    save(f'a08-cm-second-{cm}.tar.gz', member(BODY[:9000]) + member(BODY[9000:], cm=cm))
save('a08-name-512-second.tar.gz', member(BODY[:9000]) + member(BODY[9000:], flags=8, fields=b'n' * 600 + b'\0'))
save('a08-name-unterminated.tar.gz', b'\x1f\x8b\x08\x08\0\0\0\0\0\xff' + b'n' * 3000)
save('a08-mtime-xfl-os.tar.gz', b'\x1f\x8b\x08\0\xff\xff\xff\x7f\x02\x03' + GOOD[10:])

# a9, a42: not gzip
d = zlib.compressobj(6, zlib.DEFLATED, 15, 8, 0, b'layer blob span ztoc')
ZSTD = b'\x28\xb5\x2f\xfd\x20' + bytes([len(SMALL[:200])]) + struct.pack('<I', (200 << 3) | 1)[:3] + SMALL[:200]
for name, data in {'zlib': zlib.compress(BODY), 'raw-deflate': deflate(BODY), 'zlib-dict': d.compress(BODY) + d.flush(), 'gzip-in-gzip': member(GOOD),
                   'zstd-in-gzip': member(ZSTD), 'zstd': ZSTD, 'zstd-skippable': b'\x50\x2a\x4d\x18\x04\0\0\0abcd' + ZSTD, 'html': b'<!DOCTYPE html><html><body>sign in</body></html>\n' * 20,
                   'json': b'{"errors":[{"code":"UNAUTHORIZED"}]}', 'bz2': bz2.compress(BODY), 'xz': lzma.compress(BODY), 'lzma': lzma.compress(BODY, lzma.FORMAT_ALONE),
                   'compress-z': b'\x1f\x9d\x90' + noise(700), 'lz4': b'\x04\x22\x4d\x18' + noise(700), 'br': noise(700), 'text': prose(3000), 'noise': noise(3000),
                   'zip': b'PK\x03\x04' + noise(900), 'elf': b'\x7fELF' + noise(900), 'one-byte': b'x', 'x1f': b'\x1f', 'newline': b'\n', 'squashfs': b'hsqs' + noise(900)}.items():
    save(f'a09-{name}', data)
    if name not in ('gzip-in-gzip', 'zstd-in-gzip'):
        save(f'a09-{name}-in-gzip.tar.gz', member(data))

# a10: blocks
for n in (1, 7, 500, 65535):
    b = Bits()
    for i in range(0, len(SMALL if n == 1 else BODY), n):
        b.stored((SMALL if n == 1 else BODY)[i:i + n])
    b.fixed(b'', last=True)
    save(f'a10-stored-{n}.tar.gz', member(SMALL if n == 1 else BODY, raw=b.done()))
b = Bits()
b.stored(SMALL, last=True, bad=True)
save('a10-stored-bad-length.tar.gz', member(SMALL, raw=b.done()))
b = Bits()
b.fixed(BODY, last=True)
save('a10-one-fixed-block.tar.gz', member(BODY, raw=b.done()))
save('a10-huffman-only.tar.gz', member(BODY, strategy=2))
for phase in range(8):
    b, at = Bits(), 0
    while at < len(BODY):  # literals above 143 take 9 bits, so blocks start at every bit position
        n = R.randrange(1, 2600)
        b.fixed(BODY[at:at + n], last=at + n >= len(BODY))
        at += n
    save(f'a10-fixed-blocks-{phase}.tar.gz', member(BODY, raw=b.done()))
PERIOD = noise(32768)
FAR = f('far', PERIOD * 3 + prose(100)) + END
for i, fl in enumerate((zlib.Z_SYNC_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_BLOCK)):
    save(f'a10-flush-{i}.tar.gz', member(BODY, flush=fl, every=1000))
    save(f'a10-flush-far-{i}.tar.gz', member(FAR, level=9, flush=fl, every=5000))
save('a10-full-flush.tar.gz', member(BODY, flush=zlib.Z_FULL_FLUSH, every=3000))
b = Bits()
first = pad(hdr('m', size=40000)) + noise(32768 - 512)
b.stored(first)
b.fixed(b'', end=False)
b.match(29, 13, 8191)  # distance 32768, directly after a block border
b.huff(0, 7)
rest = 512 + 40000 - 32768 - 3
tail = bytes(rest + (-40000 % 512)) + END
b.stored(tail, last=True)
save('a10-distance-32768.tar.gz', member(first + first[:3] + tail, raw=b.done()))
b = Bits()
b.fixed(b'abc', end=False)
b.match(29, 13, 8191)
b.huff(0, 7)
b.fixed(b'', last=True)
save('a10-distance-too-far.tar.gz', member(b'abcabc', raw=b.done()))
b = Bits()
b.put(1, 1), b.put(3, 2), b.put(0, 30)
save('a10-block-type-3.tar.gz', member(SMALL, raw=b.done()))
b = Bits()
b.put(1, 1), b.put(2, 2), b.put(31, 5), b.put(31, 5), b.put(15, 4), b.put((1 << 57) - 1, 57), b.put(0, 60)
save('a10-bad-dynamic-tables.tar.gz', member(SMALL, raw=b.done()))
for wbits in (9, 12):
    save(f'a10-wbits-{wbits}.tar.gz', member(BODY, wbits=wbits))
for level in range(10):
    for mem in (1, 9):
        save(f'a10-level-{level}-mem-{mem}.tar.gz', member(BODY, level=level, mem=mem))
for s in range(1, 5):
    save(f'a10-strategy-{s}.tar.gz', member(BODY, strategy=s))

# a11: decompression bombs
ZEROS = f('zeros', bytes(20 << 20)) + END
save('a11-bomb-20MiB.tar.gz', member(ZEROS, level=9))

# a12, a13, a14, a15: how the tar ends
for name, data in {'a12-zero-bytes': b'', 'a12-zeros-511': bytes(511), 'a12-zeros-512': bytes(512), 'a12-zeros-513': bytes(513), 'a12-zeros-1024': END, 'a12-zeros-1025': bytes(1025),
                   'a12-zeros-10240': bytes(10240), 'a13-no-end': A, 'a13-one-end-block': A + bytes(512), 'a13-end': A + END, 'a13-ends-in-padding': A[:-100], 'a13-ends-in-data': A[:514],
                   'a13-ends-before-padding': A[:518], 'a13-ends-after-pax': A + pax(('path', 'x')), 'a13-ends-after-pax-and-zeros': A + pax(('path', 'x')) + END,
                   'a13-ends-after-longname': A + long(b'L', b'x\0'), 'a13-ends-after-longname-and-zeros': A + long(b'L', b'x\0') + END, 'a13-only-pax': pax(('path', 'x')), 'a13-only-global': pax(('path', 'x'), typ=b'g'),
                   'a14-zero-then-entry': A + bytes(512) + Z + END, 'a14-partial-end-1': A + bytes(1), 'a14-partial-end-700': A + bytes(700), 'a14-one-end-and-junk': A + bytes(512) + b'x' * 512,
                   'a15-entries-after-end': A + END + Z + END, 'a15-junk-after-end': A + END + noise(3000), 'a15-junk-after-end-small': A + END + b'x', 'a15-long-padding': A + END + bytes(200000), 'a15-padding-300': A + END + bytes(300),
                   'a15-long-padding-empty': bytes(200000), 'a15-padding-to-10240': A + bytes(10240 - len(A))}.items():
    save(f'{name}.tar', data)
    save(f'{name}.tar.gz', member(data))
    save(f'{name}.stored.tar.gz', member(data, level=0))
for n in (4096, 65536, 8192, 131072):  # uncompressed tars whose last file ends at or near a span border
    for off in (-1024, -512, 0):
        for end in (b'', bytes(512), END):
            save(f'a15-span-aligned-{n}-{-off}-{len(end)}.tar', f('a.bin', prose(n - 512 + off)) + end)

# a16: many entries, headers, directories or links
save('a16-many-entries.tar.gz', member(b''.join(f(f'd{i % 7}/{i:05}') for i in range(8000)) + END))
save('a16-one-name-5000-times.tar.gz', member(b''.join(f('same', b'%d' % i) for i in range(5000)) + END))
save('a16-globals-1000.tar.gz', member(pax(('comment', 'x'), typ=b'g') * 1000 + A + END))
save('a16-pax-in-a-row-10000.tar.gz', member(pax(('path', 'x')) * 10000 + A + END))
save('a16-deep-path.tar.gz', member(pax(('path', 'd/' * 600 + 'f')) + A + END))
save('a16-hardlinks-2000.tar.gz', member(A + b''.join(hdr(f'h{i}', b'1', link='a.txt' if i % 2 else f'h{i - 1}' if i else 'a.txt') for i in range(2000)) + END))

# a17, a18, a19, a20: sizes, and several extension headers for one entry
for n in (0, 1, 5, 6, 7, 511, 512, 513, 1024, 2 ** 33, 2 ** 63 - 1, 2 ** 63, 2 ** 64, -1):
    tar(f'a18-pax-size-{n}', pax(('size', str(n))) + A + Z + END)
    tar(f'a18-pax-size-{n}-over-0', pax(('size', str(n))) + hdr('a.txt') + pad(b'hello\n') + Z + END)
    tar(f'a19-pax-size-{n}-then-longname', pax(('size', str(n))) + long(b'L', b'long-name\0') + A + Z + END)
    tar(f'a19-pax-size-{n}-then-pax', pax(('size', str(n))) + pax(('mtime', '5')) + A + Z + END)
for n in (2 ** 33, 2 ** 40, 2 ** 62, 2 ** 63 - 1, 2 ** 63, 2 ** 64, 2 ** 90, -1, -2 ** 40):
    tar(f'a17-header-size-{n}', hdr('a', size=n) + pad(b'hello\n') + Z + END)
tar('a20-two-pax', pax(('path', 'first'), ('uname', 'me')) + pax(('gname', 'us')) + A + END)
tar('a20-two-long', long(b'L', b'first\0') + long(b'L', b'second\0') + A + END)
tar('a20-long-then-pax', long(b'L', b'from-gnu\0') + pax(('path', 'from-pax')) + A + END)
tar('a20-pax-then-long', pax(('path', 'from-pax')) + long(b'L', b'from-gnu\0') + A + END)
tar('a20-longlink-and-pax', long(b'K', b'gnu-target\0') + pax(('linkpath', 'pax-target')) + hdr('l', b'2', link='x') + END)
tar('a20-longlink-on-file', long(b'K', b'gnu-target\0') + A + END)
tar('a20-pax-of-dir-slash', pax(('path', 'd/')) + hdr('x', b'0') + END)
tar('a20-pax-path-slash-with-data', pax(('path', 'd/')) + A + END)
tar('a20-long-slash', long(b'L', b'd/\0') + A + END)

# a21, a22, a23, a24: PAX records
good = rec('uname', 'me')
SHAPES = {'len-short': b'8 uname=me\n', 'len-long': b'13 uname=me\n', 'len-0': b'0 uname=me\n', 'len-plus': b'+12 uname=me\n', 'len-leading-0': b'012 uname=m\n',
          'len-space': b' 12 uname=me\n', 'len-negative': b'-12 uname=me\n', 'len-hex': b'0xc uname=me\n', 'len-huge': b'99999999999999999999 uname=me\n', 'len-2^63': b'9223372036854775807 uname=me\n', 'no-eq': b'11 unameme \n',
          'no-newline': b'12 uname=me ', 'no-space': b'11uname=me\n', 'empty-key': b'6 =me\n', 'tab': b'12\tuname=me\n', 'nul-after': good + bytes(7), 'newline-after': good + b'\n',
          'space-after': good + b' ', 'junk-after': good + b'junk', 'only-nuls': bytes(20), 'empty': b'', 'only-len': b'12', 'len-alone': b'3 \n', 'crlf': b'13 uname=me\r\n', 'key-space': rec('u name', 'x'),
          'eq-in-value': rec('comment', 'a=b=c'), 'newline-in-value': rec('comment', 'a\nb'), 'two-same': rec('uname', 'a') + rec('uname', 'b'), 'empty-value': rec('uname', ''), 'len-1': b'1\n', 'len-2': b'2 \n', 'len-5': b'5 a=\n', 'len-arabic': '١٢ uname=me\n'.encode()}
for name, body in SHAPES.items():
    tar(f'a21-{name}', A + paxraw(body) + Z + END)
    tar(f'a21-{name}-global', A + paxraw(body, b'g') + Z + END)
VALUES = ['', '0', '1', '-1', '+1', '00012', '1.5', '1.', '.5', '-0', '-1.5', '-0.5', '1e3', '0x10', '1_0', ' 1', '1 ', '2147483648', '4294967295', '4294967296', '9223372036854775807', '9223372036854775808',
          '-9223372036854775808', '1700000000.123456789', '1700000000.1234567891234', '1700000000.000000001', '-1.999999999', '1700000000.12x', '1..5', 'abc', 'a\0b', '1\0', '253402300799', '253402300800', '253402300799.999999999', '-62135596800', '-62135596801', '-62167219200', '-62167219201', '99999999999999999999']
for key in ('uid', 'gid', 'mtime', 'atime', 'ctime', 'size'):
    for i, v in enumerate(VALUES):
        save(f'a21-pax-{key}-{i:02}.tar.gz', member(pax((key, v)) + A + Z + END))
for key in ('path', 'linkpath', 'uname', 'gname', 'hdrcharset', 'comment', 'SCHILY.xattr.user.k', 'SCHILY.devmajor', 'SCHILY.acl.access', 'LIBARCHIVE.xattr.user.k', 'GNU.x', 'VENDOR.k', 'GNU.sparse.name'):
    for i, v in enumerate(('', 'x', 'a\0b', '\0', b'caf\xe9', 'a\nb', '/', './', '..', 'x/', 'v' * 300, 'v' * 5000, 'd/' * 200 + 'f', '日本語')):
        save(f'a22-{key.replace(".", "-")}-{i:02}.tar.gz', member(pax((key, v)) + (hdr('l', b'2', link='t') if key == 'linkpath' else A) + Z + END))
for i, k in enumerate(('\0', 'a\0', 'SCHILY.xattr.', 'SCHILY.xattr.a\0b', 'SCHILY.xattr.user.a=b', b'SCHILY.xattr.user.\xff', 'PATH', 'Path', 'path ', 'GNU.sparse.foo', 'k' * 400)):
    save(f'a22-key-{i:02}.tar.gz', member(pax((k, 'v')) + A + Z + END))
for n in (100, 101, 155, 256, 257, 4096, 32768, 32769, 65536, (1 << 20) - 100, (1 << 20) + 100):
    save(f'a23-path-{n}.tar.gz', member(pax(('path', 'p' * n)) + A + END))
for total in ((1 << 20) - 1, 1 << 20, (1 << 20) + 1):
    body = rec('comment', 'v' * (total - 20))
    body += rec('k', 'v' * (total - len(body) - 6))[:total - len(body)] if len(body) < total else b''
    save(f'a23-pax-{total}.tar.gz', member(paxraw(body) + A + END))
save('a24-records-10000.tar.gz', member(pax(*((f'SCHILY.xattr.user.{i:05}', 'v') for i in range(10000))) + A + END))
save('a24-xattr-64KiB.tar.gz', member(pax(('SCHILY.xattr.user.big', 'v' * 65536)) + A + END))
X = 'SCHILY.xattr.user.'
for i, recs in enumerate([[('a', '')], [('a', '1')], [('a', '1'), ('b', '')], [('a', ''), ('b', '')], [('a', '1'), ('b', '2')], [('', '1')], [('', '')], [('a', b'\xff\xfe\0\1')], [('a', b'\0'), ('b', b'\0\0')],
                          [('a', '1'), ('b', '2'), ('c', '')], [('k' * 32000, 'v')], [('k' * 32000, 'v'), ('b', 'v')], [('k' * 33000, 'v'), ('b', 'v')], [('b', '1'), ('a', '2'), ('Z', '3')], [('é', 'é')]]):
    save(f'a24-xattrs-{i:02}.tar.gz', member(pax(*((X + k if k else X[:-5], v) for k, v in recs)) + A + END))
    save(f'a24-xattrs-dir-{i:02}.tar.gz', member(pax(*((X + k, v) for k, v in recs)) + hdr('d/', b'5', mode=0o755) + A + END))
save('a24-xattr-on-symlink.tar.gz', member(pax((X + 'a', '1')) + hdr('l', b'2', link='a') + A + END))
save('a24-xattr-on-hardlink.tar.gz', member(A + pax((X + 'a', '1')) + hdr('h', b'1', link='a.txt') + END))
save('a24-mixed-records.tar.gz', member(pax((X + 'a', '1'), ('LIBARCHIVE.xattr.user.a', 'MQ=='), ('SCHILY.acl.access', 'user::rw-'), ('comment', 'hi'), ('mtime', '5.25'), ('hdrcharset', 'BINARY')) + A + END))

# a25: GNU long names
for i, text in enumerate((b'x\0', b'x', b'', b'\0', b'\0x\0', b'a\0b\0', b'd/\0', b'n' * 100 + b'\0', b'n' * 511, b'n' * 512, b'n' * 513 + b'\0', b'caf\xe9\0', b'd/' * 300 + b'f\0', b'n' * 40000 + b'\0', b'../up\0', b'/abs\0')):
    tar(f'a25-long-name-{i:02}', long(b'L', text) + f('short', b'data', magic=GNU) + Z + END)
    tar(f'a25-long-name-dir-{i:02}', long(b'L', text) + hdr('short/', b'5', magic=GNU) + Z + END)
    tar(f'a25-long-link-{i:02}', long(b'K', text) + hdr('l', b'2', link='x', magic=GNU) + Z + END)
save('a25-long-1MiB.tar.gz', member(long(b'L', b'n' * (1 << 20)) + A + END))
save('a25-long-1MiB-and-1.tar.gz', member(long(b'L', b'n' * ((1 << 20) + 1)) + A + END))
tar('a25-long-ustar-magic', hdr('././@LongLink', b'L', 3) + pad(b'yy\0') + A + END)
tar('a25-long-v7-magic', hdr('././@LongLink', b'L', 3, magic=V7) + pad(b'yy\0') + A + END)

# a26, a27: sparse files


def gnusparse(extents, real, ext=0, size=None, magic=GNU, name='s'):
    h = bytearray(hdr(name, b'S', sum(n for _, n in extents) if size is None else size, magic=magic))
    for i, (o, n) in enumerate(extents[:4]):
        h[386 + 24 * i:398 + 24 * i], h[398 + 24 * i:410 + 24 * i] = num(o, 12), num(n, 12)
    h[482], h[483:495] = ext, num(real, 12)
    return seal(h)


tar('a26-old', gnusparse([(0, 512), (4096, 512)], 8192) + bytes(1024) + Z + END)
tar('a26-old-no-extents', gnusparse([], 8192) + Z + END)
tar('a26-old-overlap', gnusparse([(0, 512), (100, 512)], 8192) + bytes(1024) + Z + END)
tar('a26-old-ext', gnusparse([(0, 512)] * 4, 99999, ext=1) + bytes(504) + b'\1' + bytes(7) + bytes(512) + Z + END)
tar('a26-old-ext-cut', gnusparse([(0, 512)] * 4, 99999, ext=1))
tar('a26-old-ustar', gnusparse([(0, 512)], 4096, magic=USTAR) + bytes(512) + Z + END)
tar('a26-after-file', A + gnusparse([(0, 512)], 4096) + bytes(512) + Z + END)
for i, recs in enumerate([[('GNU.sparse.major', '1'), ('GNU.sparse.minor', '0'), ('GNU.sparse.name', 's'), ('GNU.sparse.realsize', '9999')],
                          [('GNU.sparse.major', '0'), ('GNU.sparse.minor', '1'), ('GNU.sparse.name', 's'), ('GNU.sparse.size', '9999'), ('GNU.sparse.numblocks', '1'), ('GNU.sparse.map', '0,6')],
                          [('GNU.sparse.size', '9999'), ('GNU.sparse.numblocks', '1'), ('GNU.sparse.offset', '0'), ('GNU.sparse.numbytes', '6')],
                          [('GNU.sparse.major', '2'), ('GNU.sparse.minor', '0')], [('GNU.sparse.major', '0'), ('GNU.sparse.minor', '0')], [('GNU.sparse.map', '0,6'), ('GNU.sparse.size', '6')],
                          [('GNU.sparse.name', 'renamed')], [('GNU.sparse.realsize', '3')], [('GNU.sparse.numblocks', '-1')], [('GNU.sparse.size', '7')], [('GNU.sparse.size', 'x')], [('GNU.sparse.realsize', '-7')],
                          [('GNU.sparse.map', '')], [('GNU.sparse.numblocks', '100000000000'), ('GNU.sparse.map', '0,1')], [('GNU.sparse.major', '1'), ('GNU.sparse.minor', '0')], [('GNU.sparse.major', ''), ('GNU.sparse.minor', '')],
                          [('GNU.sparse.major', '1')], [('GNU.sparse.minor', '0')], [('GNU.sparse.offset', '0')], [('GNU.sparse.numbytes', '6')], [('SCHILY.realsize', '9')], [('GNU.sparse.major', '1'), ('GNU.sparse.minor', '0'), ('GNU.sparse.realsize', str(2 ** 60))]]):
    tar(f'a27-pax-{i:02}', pax(*recs) + f('s', b'1\n0\n6\n' + bytes(506) + b'hello\n') + Z + END)
    tar(f'a27-pax-empty-{i:02}', pax(*recs) + f('s') + Z + END)
    tar(f'a27-pax-dir-{i:02}', pax(*recs) + hdr('s/', b'5') + Z + END)

# a28, a29: type flags
tar('a28-global-first', pax(('comment', 'c' * 40), typ=b'g') + A + Z + END)
tar('a28-global-middle', A + pax(('mtime', '5'), typ=b'g') + Z + END)
tar('a28-global-last', A + Z + pax(('mtime', '5'), typ=b'g') + END)
tar('a28-global-alone', pax(('mtime', '5'), typ=b'g') + END)
for t in range(256):
    data = f('e', b'', typ=bytes([t])) if t % 2 else hdr('e', bytes([t]), 5) + pad(b'12345')
    save(f'a29-type-{t:03}.tar.gz', member(A + data + Z + END))
for t in b'\0\x30\x31\x32\x33\x34\x35\x36\x37':
    for m, magic in (('v7', V7), ('gnu', GNU), ('ustar', USTAR)):
        save(f'a29-type-{t:03}-slash-{m}.tar.gz', member(A + hdr('e/', bytes([t]), magic=magic, link='a.txt') + Z + END))

# a30: data in entries whose type has none
for t in b'123456':
    for n in (1, 512, 5000, -1, 2 ** 40):
        for data in (False, True):
            if data and n > 5000 or data and n < 0:
                continue
            save(f'a30-type-{chr(t)}-size-{n}-{"data" if data else "bare"}.tar.gz', member(A + hdr('e', bytes([t]), n, link='a.txt') + (pad(prose(n)) if data else b'') + Z + END))

# a31: dialects and checksums
for i, magic in enumerate((USTAR, GNU, V7, b'ustar\0\0\0', b'ustar 00', b'USTAR\x0000', b'ustar\x0001', b'ustar  x', b'ustar\x0099', b'xstar\x0000', b'ustar   ')):
    for how in ('unsigned', 'signed', 'spaces', '7digits', 'nul', 'noterm', 'lead'):
        save(f'a31-magic-{i:02}-{how}.tar.gz', member(hdr(b'caf\xe9', size=3, magic=magic, check=how, uname=b'me', prefix=b'pre/fix') + pad(b'abc') + Z + END))
star = bytearray(hdr('s', size=3, prefix=b'p' * 131))
star[508:512] = b'tar\0'
star[476:488], star[488:500] = num(5, 12), num(6, 12)
tar('a31-star', seal(star) + pad(b'abc') + Z + END)
star[476:488] = b'junkjunkjunk'
tar('a31-star-bad-atime', seal(star) + pad(b'abc') + Z + END)
gnu = bytearray(hdr('g', size=3, magic=GNU))
gnu[345:357], gnu[357:369] = num(5, 12), num(6, 12)
tar('a31-gnu-times', seal(gnu) + pad(b'abc') + Z + END)
gnu[345:357] = b'prefix/dir\0\0'
tar('a31-gnu-text-in-times', seal(gnu) + pad(b'abc') + Z + END)
gnu[345:357] = b'pr\xe9fix/dir\0'
tar('a31-gnu-latin1-in-times', seal(gnu) + pad(b'abc') + Z + END)
for i, (pre, name) in enumerate(((b'pre', b'n'), (b'pre/', b'n'), (b'', b''), (b'p', b''), (b'p' * 155, b'n' * 100), (b'p\0q', b'n'), (b'caf\xe9', b'n'), (b'/', b'n'), (b'pre', b'/n'))):
    tar(f'a31-prefix-{i}', f(name, b'data', prefix=pre) + Z + END)

# a32, a33, a34: numbers in the header
NUMS = {'blank': b'', 'spaces': b' ' * 12, 'zero-chars': b'0' * 12, 'eight': b'00000008\0', 'letters': b'abcdefg\0', 'minus': b'-0000001\0', 'plus': b'+0000001\0', 'hex': b'0x1\0', 'lead-space': b'   17 \0', 'lead-nul': b'\0\x0017\0',
        'mid-space': b'1 7\0', 'mid-nul': b'1\x007\0', 'short': b'17\0', 'space-term': b'17 ', 'no-term': b'777777777777', 'b256-1': b'\x80' + bytes(6) + b'\1' , 'b256-neg': b'\xff' * 12, 'b256-min': b'\xc0' + bytes(11), 'b256-big': b'\x80' + b'\xff' * 11,
        'b256-7f': b'\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff', 'b256-2^63': b'\x80\0\0\0\x80\0\0\0\0\0\0\0', 'b256-40': b'\xbf' + b'\xff' * 11, 'tabs': b'\t17\0', 'latin1': b'1\xe97\0', 'mixed': b'00\x8017\0', 'huge-uid': b'\x80\0\0\1\0\0\0\0', 'uid-max': b'\x80\0\0\0\xff\xff\xff\xff', 'uid-2^31': b'\x80\0\0\0\x80\0\0\0'}
for field in ('mode', 'uid', 'gid', 'size', 'mtime', 'devmajor', 'devminor'):
    for name, raw in NUMS.items():
        typ = b'3' if field.startswith('dev') else b'0'
        save(f'a32-{field}-{name}.tar.gz', member(hdr('e', typ, raw={field: raw[:FIELDS[field][1]]}) + Z + END))
for m in list(range(0, 0o20)) + [0o7777, 0o10777, 0o40755, 0o100644, 0o120777, 0o140755, 0o60644, 0o20644, 0o10644, 0o170000, 0o777777, -1, -2 ** 20, 2 ** 32 + 0o644, 0o1000000, 0o200644]:
    for t in (b'0', b'5', b'2'):
        save(f'a33-mode-{m}-{t.decode()}.tar.gz', member(hdr('e', t, mode=m, link='x' if t == b'2' else '') + Z + END))
for v in (2 ** 21 - 1, 2 ** 21, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1, 2 ** 32, 2 ** 40, -1, -2, -2 ** 31):
    save(f'a33-uid-{v}.tar.gz', member(f('e', b'x', uid=v) + Z + END))
    save(f'a33-gid-{v}.tar.gz', member(f('e', b'x', gid=v) + Z + END))
    save(f'a33-dev-{v}.tar.gz', member(hdr('e', b'3', dev=(v, 1)) + hdr('b', b'4', dev=(1, v)) + Z + END))
for v in (0, 1, 8 ** 11 - 1, 8 ** 11, 253402300799, 253402300800, 2 ** 62, 2 ** 63 - 1, -1, -2 ** 31, -62135596800, -62135596801, -62167219200, -62167219201, -2 ** 63):
    save(f'a34-mtime-{v}.tar.gz', member(f('e', b'x', mtime=v) + Z + END))
for i, v in enumerate(('0.1', '0.10', '0.000000001', '-0.1', '-1.000000001', '1.999999999', '1.9999999999', '253402300799.9')):
    save(f'a34-subsecond-{i}.tar.gz', member(pax(('mtime', v)) + A + Z + END))

# a35: names
NAMES = [b'..', b'../x', b'a/../../x', b'/abs', b'//x', b'/', b'.', b'./', b'./.', b'./a', b'a//b', b'a/./b', b'a/', b'a//', b'', b' ', b'a ', b'a\n', b'\x01', b'\x7f', 'abc\u202etxt'.encode(), b'\xff', b'c:\\x', b'a\\b', b'*', b'-x', b'n' * 100, b'a/..', b'./..', b'...', b'a/...', b'.../a', b'.a', b'..a/b', '日本'.encode(), b'a\tb', b'"q"', b"'q'", b'a/b/../c', b'./a/./b/']
for i, n in enumerate(NAMES):
    for t in (b'0', b'5', b'2', b'1'):
        save(f'a35-name-{i:02}-{t.decode()}.tar.gz', member(A + hdr(n, t, link='a.txt' if t in b'12' else '') + Z + END))
for n in (255, 256, 300, 4096, 32768, 32769):
    save(f'a35-component-{n}.tar.gz', member(pax(('path', 'd/' + 'c' * n)) + A + Z + END))

# a36, a37, a38: trees; links to links, files below files, directories that replace files ...


def entry(name, kind, target):
    if kind == 'reg':
        return f(name, prose(R.choice((0, 1, 5, 700))), mode=R.choice((0o644, 0o755, 0o600)))
    if kind == 'dir':
        return hdr(name + R.choice(('', '/')), b'5', mode=0o755)
    if kind == 'sym':
        return hdr(name, b'2', link=target)
    if kind == 'hard':
        return hdr(name, b'1', link=target)
    if kind == 'fifo':
        return hdr(name, b'6')
    return hdr(name, b'3', dev=(1, 3))


for i in range(220):
    names = R.choice((['a', 'b', 'a/b'], ['a', 'a/b', 'a/b/c', 'b', './a', 'a/'], ['x', 'y', 'd/x', 'd/y', 'd', '/x', 'd/../x', '..']))
    kinds = R.choice((['reg', 'dir'], ['reg', 'hard'], ['reg', 'dir', 'sym', 'hard'], ['reg', 'dir', 'hard', 'hard', 'fifo', 'dev', 'sym']))
    save(f'a36-tree-{i:03}.tar.gz', member(b''.join(entry(R.choice(names), R.choice(kinds), R.choice(names)) for _ in range(R.randrange(2, 9))) + END))
for i, links in enumerate(([('h', 'none')], [('h', 'h')], [('h', 'later'), ('later', None)], [('x', 'y'), ('y', 'x')], [('f', None), ('h', 'f'), ('i', 'h'), ('j', 'i')], [('f', None), ('h', '/f')], [('f', None), ('h', './f')], [('f', None), ('h', '../f')],
                           [('f', None), ('h', 'f/')], [('f', None), ('h', '')], [('d/f', None), ('d/h', 'f')], [('d/f', None), ('h', 'd/f')], [('d/f', None), ('h', 'd')], [('f', None), ('f', None), ('h', 'f')], [('f', None), ('h', 'f'), ('f', None)], [('f', None), ('h', 'f'), ('h', None)], [('f', None), ('f', 'f')], [('f', None), ('h', 'f'), ('h', 'f')], [('f', None), ('h', '.')], [('f', None), ('.', 'f')])):
    tar(f'a37-hardlinks-{i:02}', b''.join(f(n, b'data') if t is None else hdr(n, b'1', link=t) for n, t in links) + END)
for i, t in enumerate((b'', b'/', b'.', b'..', b'self', b'../../etc/passwd', b'a' * 100, b'\xff', b'a\n', b'//', b'x/')):
    tar(f'a38-symlink-{i:02}', hdr('self', b'2', link=t) + Z + END)
tar('a38-symlink-5000', pax(('linkpath', 'x/' * 2500)) + hdr('l', b'2', link='x') + END)
tar('a38-child-under-symlink', hdr('d', b'5') + hdr('l', b'2', link='d') + f('l/child', b'x') + END)
tar('a38-symlink-with-slash', hdr('l/', b'2', link='d') + Z + END)

# a39, a40: whiteouts, devices, special bits
for i, names in enumerate((['.wh.a'], ['a', '.wh.a'], ['.wh.a', 'a'], ['.wh.a', '.wh.a'], ['.wh.'], ['.wh..'], ['.wh...'], ['d/.wh..wh..opq'], ['.wh..wh..opq'], ['d/a', 'd/.wh..wh..opq', 'd/b'], ['.wh..wh.plnk/1.2'], ['.wh..wh.aufs'], ['d/.wh.a/b'], ['.wh.d/x'])):
    tar(f'a39-whiteout-{i:02}', b''.join(f(n) for n in names) + Z + END)
tar('a39-whiteout-dir', hdr('.wh.d/', b'5') + Z + END)
tar('a39-whiteout-with-content', f('.wh.a', b'content') + Z + END)
tar('a39-whiteout-hardlink', A + hdr('.wh.a', b'1', link='a.txt') + END)
tar('a39-whiteout-hardlink-lower', A + hdr('.wh.b', b'1', link='lower/c') + hdr('d/.wh..wh..opq', b'1', link='lower/c') + hdr('d/.wh.e', b'1', link='.wh.b') + END)
for mode in (0o4755, 0o2755, 0o1777, 0o6755, 0o7777, 0o7000):
    tar(f'a40-mode-{mode:o}', f('s', b'x', mode=mode) + hdr('d/', b'5', mode=mode) + END)
tar('a40-device-0-0', hdr('c', b'3') + hdr('b', b'4') + hdr('p', b'6') + Z + END)
tar('a40-device-with-link', hdr('c', b'3', link='x') + hdr('d/', b'5', link='x') + hdr('f', b'0', link='x') + Z + END)

# Mutations: one changed field in one header of a varied tar, with a correct checksum.
RICH = (hdr('d/', b'5', mode=0o755) + f('d/a', prose(800)) + hdr('d/s', b'2', link='a') + hdr('d/h', b'1', link='d/a') + pax((X + 'k', 'v'), ('mtime', '5.5')) + f('p', b'pax') + long(b'L', b'long' * 40 + b'\0')
        + f('short', b'gnu', magic=GNU) + hdr('c', b'3', dev=(1, 3)) + hdr('fifo', b'6') + f('v7', b'old', magic=V7) + f('last', prose(2000)) + END)
HEADERS = [i for i in range(0, len(RICH) - 1024, 512) if RICH[i + 148:i + 154].strip(b'\0 ').isdigit() and seal(RICH[i:i + 512])[148:154] == RICH[i + 148:i + 154]]
for i in range(300):
    d = bytearray(RICH)
    for _ in range(R.choice((1, 1, 1, 2, 4))):
        at, (o, n) = R.choice(HEADERS), R.choice([v for k, v in FIELDS.items() if k != 'chksum'])
        if R.random() < .5:
            d[at + o + R.randrange(n)] = R.choice((0, 1, 32, 47, 48, 49, 55, 56, 127, 128, 255, R.randrange(256)))
        else:
            src = R.choice(HEADERS)
            d[at + o:at + o + n] = RICH[src + o:src + o + n]
        d[at:at + 512] = seal(d[at:at + 512])
    save(f'mut-field-{i:03}.tar.gz', member(bytes(d)))
for i in range(120):
    body = b''.join(rec(R.choice(['path', 'linkpath', 'size', 'uid', 'gid', 'mtime', 'uname', X + 'a', X + 'b', 'comment', 'GNU.sparse.name', 'hdrcharset']), R.choice(['', '0', '1', '6', 'x', 'd/', '7.5', '-1', 'é', 'a.txt'])) for _ in range(R.randrange(1, 5)))
    if R.random() < .3:
        at = R.randrange(len(body))
        body = body[:at] + bytes([R.randrange(256)]) + body[at + R.randrange(2):]
    save(f'mut-pax-{i:03}.tar.gz', member(paxraw(body) + A + Z + END))
# Blocks in random order: whole headers and data blocks are removed, repeated and exchanged.
for i in range(120):
    blocks = [RICH[j:j + 512] for j in range(0, len(RICH), 512)]
    for _ in range(R.choice((1, 2))):
        j, k = R.randrange(len(blocks)), R.randrange(len(blocks))
        R.choice((lambda: blocks.pop(j), lambda: blocks.insert(j, blocks[k]), lambda: blocks.__setitem__(j, blocks[k]), lambda: blocks.insert(j, bytes(512))))()
    save(f'mut-blocks-{i:03}.tar.gz', member(b''.join(blocks)))
# Gzip framing: random members, levels, strategies, flushes and empty blocks.
for i in range(100):
    data, out, at = R.choice((BODY, RICH, FAR)), b'', 0
    while at < len(data):
        n = R.randrange(1, 60000)
        c, part = zlib.compressobj(R.randrange(10), zlib.DEFLATED, -R.randrange(9, 16), R.randrange(1, 10), R.choice((0, 1, 2, 3, 4))), data[at:at + n]
        at, raw = at + n, NUL * R.choice((0, 0, 0, 1, 3))
        while part:
            k = R.randrange(1, 30000)
            raw, part = raw + c.compress(part[:k]) + R.choice((b'', c.flush(R.choice((zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH))))), part[k:]
        out += member(data[at - n:at], raw=raw + c.flush())
    save(f'mut-framing-{i:03}.tar.gz', out)
print(len(written), 'layers')
