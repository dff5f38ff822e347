# SPDX-License-Identifier: BSD-3-Clause
"""pool.db as format-reader.py reads it: pages, WAL and tables."""

import ctypes
import sqlite3
import struct
import tempfile


class Bad(Exception):
    """The pool is not as the page says."""


def need(condition, *what):
    if not condition:
        raise Bad(" ".join(str(w) for w in what))


xxhash = ctypes.CDLL("libxxhash.so.0")
xxhash.XXH3_64bits.restype = ctypes.c_uint64
xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
xxhash.XXH3_64bits_withSeed.restype = ctypes.c_uint64
xxhash.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t,
                                        ctypes.c_uint64]


def xxh3(data, seed=None):
    data = bytes(data)
    if seed is None:
        return xxhash.XXH3_64bits(data, len(data))
    return xxhash.XXH3_64bits_withSeed(data, len(data), seed & (2**64 - 1))


def u16(b, o):
    return struct.unpack_from("<H", b, o)[0]


def u32(b, o):
    return struct.unpack_from("<I", b, o)[0]


def u64(b, o):
    return struct.unpack_from("<Q", b, o)[0]


# ---------------------------------------------------------------------
# pool.db and its WAL, as files of SQLite

def wal_frames(wal, page_size):
    """The committed frames: {page number: page}, and the size in pages."""
    magic, version, size, _, salt1, salt2, sum1, sum2 = \
        struct.unpack_from(">8I", wal, 0)
    need(magic in (0x377f0682, 0x377f0683), "pool.db-wal: no magic")
    order = "<" if magic == 0x377f0682 else ">"
    need(size == page_size, "pool.db-wal: another page size")

    def checksum(data, s0, s1):
        for x0, x1 in struct.iter_unpack(order + "2I", data):
            s0 = (s0 + x0 + s1) & 0xffffffff
            s1 = (s1 + x1 + s0) & 0xffffffff
        return s0, s1

    s = checksum(wal[:24], 0, 0)
    if s != (sum1, sum2):
        return {}, None
    pages, pending, nr_pages = {}, {}, None
    for off in range(32, len(wal) - 24 - page_size + 1, 24 + page_size):
        number, commit, f1, f2, c1, c2 = struct.unpack_from(">6I", wal, off)
        page = wal[off + 24:off + 24 + page_size]
        s = checksum(wal[off:off + 8], *s)
        s = checksum(page, *s)
        if number == 0 or (f1, f2) != (salt1, salt2) or s != (c1, c2):
            break
        pending[number] = page
        if commit:
            pages.update(pending)
            pending, nr_pages = {}, commit
    return pages, nr_pages


def free_leaves(image, page_size):
    """Leaf pages of the freelist, whose contents are never read."""
    leaves, seen = set(), set()
    trunk = struct.unpack_from(">I", image, 32)[0]
    while trunk:
        need(trunk not in seen and trunk * page_size <= len(image),
             "pool.db: freelist")
        seen.add(trunk)
        off = (trunk - 1) * page_size
        trunk, n = struct.unpack_from(">2I", image, off)
        need(n <= (page_size - 8) // 4 - 2, "pool.db: freelist")
        leaves.update(struct.unpack_from(">%dI" % n, image, off + 8))
    return leaves


class Database:
    def __init__(self, path, page_checksums):
        raw = open(path, "rb").read()
        need(len(raw) >= 512 and raw[:16] == b"SQLite format 3\0",
             "pool.db: does not begin like a database")
        need(raw[68:72] == b"NBDD", "pool.db: application id")
        need(raw[20] == 8, "pool.db:", raw[20], "reserved bytes, not 8")
        version = struct.unpack_from(">I", raw, 60)[0]
        need(version == 1, "pool.db: format version", version)
        size = struct.unpack_from(">H", raw, 16)[0]
        size = 65536 if size == 1 else size
        pages, nr_pages = {}, None
        try:
            wal = open(path + "-wal", "rb").read()
        except FileNotFoundError:
            wal = b""
        # Without a header it is empty.
        if len(wal) >= 32 and any(wal[:32]):
            pages, nr_pages = wal_frames(wal, size)
        self.wal_pages = len(pages)

        image = bytearray(raw)
        for number, page in pages.items():
            end = number * size
            if len(image) < end:
                image.extend(bytes(end - len(image)))
            image[end - size:end] = page
        if nr_pages is not None:
            del image[nr_pages * size:]
        nr = struct.unpack_from(">I", image, 28)[0]
        need(len(image) >= nr * size, "pool.db: has less than", nr, "pages")
        del image[nr * size:]
        if page_checksums:
            skip = free_leaves(image, size) | set(pages)
            skip.add((1 << 30) // size + 1)     # SQLite's lock page
            for number in range(1, len(image) // size + 1):
                if number in skip:
                    continue
                off = (number - 1) * size
                page = raw[off:off + size]
                need(len(page) == size and
                     u64(page, size - 8) == xxh3(page[:-8], off),
                     "pool.db: page", number, "has a wrong checksum")
        with tempfile.NamedTemporaryFile(prefix="format-reader") as f:
            f.write(image)
            f.flush()
            self.db = sqlite3.connect(
                "file:%s?mode=ro&immutable=1" % f.name, uri=True)
            self.load()
            self.db.close()

    def rows(self, sql):
        try:
            return self.db.execute(sql).fetchall()
        except sqlite3.Error as e:
            raise Bad("pool.db:", e)

    def load(self):
        need(self.rows("PRAGMA integrity_check") == [("ok",)],
             "pool.db: SQLite finds it damaged")
        self.db.row_factory = sqlite3.Row
        state = self.rows("SELECT * FROM state")
        need(len(state) == 1, "pool.db: state has not one row")
        self.state = state[0]
        self.db.row_factory = None
        self.domains = dict(self.rows("SELECT id, name FROM domain"))
        self.hash_key = dict(self.rows(
            "SELECT name, value FROM property")).get("hash-key")
        self.layers = self.rows(
            "SELECT id, branch, seq, parent, overlap, block_size, flags,"
            " pointers, blocks FROM layer ORDER BY id")
        self.volumes = self.rows(
            "SELECT name, layer, size, flags, domain, compress, dedup,"
            " origin, id FROM volume ORDER BY name")
        self.snapshots = self.rows(
            "SELECT id, volume, name, layer, size, origin FROM snapshot")
        self.leaves = self.rows("SELECT branch, seq, leaf, data FROM leaf")
        self.groups = self.rows("SELECT grp, data FROM record ORDER BY grp")
        self.index = self.rows("SELECT key, entries FROM ddt ORDER BY key")
        self.segments = self.rows(
            "SELECT id, nr_free, largest_run, map FROM segment ORDER BY id")
        self.limbo = {a for a, in self.rows("SELECT addr FROM limbo")}
        self.copies = dict(self.new_rows("copy", "addr, data"))
        self.counts = dict(self.new_rows("count", "grp, data"))
        self.deltas = self.new_rows("delta", "branch, seq, area, data")
        self.samples = self.new_rows(
            "drift", "id, golden, time, codec, length, flags, data")

    def new_rows(self, table, columns):
        """By key.  Pools of the first versions lack the table."""
        return self.rows("SELECT %s FROM %s ORDER BY 1" % (columns, table)) \
            if self.rows("SELECT 1 FROM sqlite_schema WHERE name = '%s'" %
                         table) else []

    def names(self):
        """(name, layer, size, flags) of all volumes and snapshots."""
        ids = {v[-1]: v[0] for v in self.volumes}
        return [v[:4] for v in self.volumes] + [
            ("%s@%s" % (ids[volume], name), layer, size, 0)
            for _, volume, name, layer, size, _ in self.snapshots if volume]
