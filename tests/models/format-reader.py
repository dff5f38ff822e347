#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A second reader of pools, written from nbdedup-format(5) alone.

    format-reader.py [--no-page-checksums] POOL [VOLUME FILE]...

It opens nothing for writing and shares no code with lib/.  It verifies
every structure of the pool that the page describes, follows the journal of
a pool whose last session was killed, prints its results as one JSON
document, and writes the content of each VOLUME to FILE ("-": standard
output, and no JSON).  No process may have the pool open.  Exit status: 0, or
1 and one line that says what is wrong.

--no-page-checksums does not verify the checksums of pool.db's pages, for tests
that damage the contents of pages.

It uses Python's standard library, and the shared libraries that define the
format: liblz4, libzstd, libxxhash, libcrypto (AES).
"""

import collections
import ctypes
import json
import os
import re
import struct
import sys

from format_database import (
    Bad, Database, need, u16, u32, u64, xxh3)
from format_digest import Digest
from format_rows import (
    index_row, index_row_is_packed, record_row, record_row_is_packed)

SEGMENT_BYTES = 4 << 20
STORE_HEADER_BYTES = 16384
RING_START = 8192
RING_MIN, RING_MAX = 256 << 10, 64 << 20
BODY_MAX = 4 << 20
GROUP_SECTORS = 256
LEAF_BLOCKS = 64
DELTA_LEAVES = 64
CODECS = {0: "none", 1: "lz4", 2: "zstd"}
INHERIT, HOLE, POINTER, LOST = 0, 1, 2, 3
INDEXED, EXTENDED, COPY = 1, 2, 4


# ---------------------------------------------------------------------
# The libraries

lz4 = ctypes.CDLL("liblz4.so.1")
lz4.LZ4_decompress_safe.argtypes = [ctypes.c_char_p, ctypes.c_char_p,
                                    ctypes.c_int, ctypes.c_int]
zstd = ctypes.CDLL("libzstd.so.1")
zstd.ZSTD_decompress.restype = ctypes.c_size_t
zstd.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t,
                                 ctypes.c_char_p, ctypes.c_size_t]
zstd.ZSTD_findFrameCompressedSize.restype = ctypes.c_size_t
zstd.ZSTD_findFrameCompressedSize.argtypes = [ctypes.c_char_p,
                                              ctypes.c_size_t]


def decompress(codec, stored, lsize):
    if codec == 0:
        need(len(stored) == lsize, "codec none:", len(stored), "bytes for",
             lsize)
        return stored
    out = ctypes.create_string_buffer(lsize)
    if codec == 1:
        n = lz4.LZ4_decompress_safe(stored, out, len(stored), lsize)
    else:
        need(zstd.ZSTD_findFrameCompressedSize(stored, len(stored)) ==
             len(stored), "codec zstd: not exactly one frame")
        n = zstd.ZSTD_decompress(out, lsize, stored, len(stored))
    need(n == lsize, "codec", CODECS[codec] + ": not", lsize, "bytes")
    return out.raw


# ---------------------------------------------------------------------
# Headers with two copies

def header(data, magic, distance, rank, what):
    """Return the valid, newer copy."""
    best = None
    for off in (0, distance):
        h = bytes(data[off:off + 512])
        if len(h) < 512 or h[:8] != magic or u64(h, 504) != xxh3(h[:504]):
            continue
        need(u32(h, 8) == 1, what + ": format version", u32(h, 8))
        need(u64(h, 16) == 0, what + ": unknown incompatible feature")
        if best is None or rank(h) > rank(best):
            best = h
    need(best is not None, what + ": no valid copy of the header")
    return best


# ---------------------------------------------------------------------
# Structures

class Pointer:
    def __init__(self, raw, lsize):
        w = u64(raw, 0)
        self.addr = w & (1 << 40) - 1
        self.psize = (w >> 40 & 0xfffff) + 1
        self.codec = w >> 60
        self.cksum = u64(raw, 8)
        need(self.addr > 0, "a pointer has address 0")
        need(self.codec in CODECS, "a pointer has codec", self.codec)
        need(self.psize <= lsize, "a pointer's psize is over the block's")
        need(self.codec != 0 or self.psize == lsize,
             "a pointer without codec has psize", self.psize)


def read_leaf(data):
    """{index in the leaf: None (a hole), LOST or 16 packed bytes}"""
    need(len(data) >= 16, "a leaf of", len(data), "bytes")
    out, used = {}, 16
    for i in range(LEAF_BLOCKS):
        s = data[i // 4] >> 2 * (i % 4) & 3
        if s == HOLE:
            out[i] = None
        elif s == LOST:
            out[i] = LOST
        elif s == POINTER:
            need(used + 16 <= len(data), "a leaf that is cut short")
            out[i] = data[used:used + 16]
            used += 16
    need(used == len(data), "a leaf that is too long")
    need(out, "a leaf without anything in it")
    return out


def read_deltas(data):
    """[(block in the area, 16 packed bytes)]"""
    need(0 < len(data) <= 110 * 18 and len(data) % 18 == 0,
         "deltas of", len(data), "bytes")
    out = [(u16(data, i), data[i + 2:i + 18])
           for i in range(0, len(data), 18)]
    need(all(a[0] < b[0] for a, b in zip(out, out[1:])) and
         out[-1][0] < DELTA_LEAVES * LEAF_BLOCKS, "deltas are out of order")
    return out


class Record:
    domain = 0

    def check(self):
        need(4096 <= self.lsize <= 1 << 20, "record", self.addr, "lsize")
        need(self.psize <= self.lsize, "record", self.addr, "psize")
        need(self.codec in CODECS, "record", self.addr, "codec")
        need(self.codec or self.psize == self.lsize, "record", self.addr,
             "is not compressed and has psize", self.psize)

    def same_as(self, p, addr=None):
        return (self.addr, self.psize, self.codec, self.cksum) == \
            (addr or p.addr, p.psize, p.codec, p.cksum)


def read_counts(data):
    """{sector in the group: reference count, or -1: the record is dead}"""
    out, off = {}, 0
    while off < len(data):
        sector, v, shift = data[off], 0, 0
        need(not out or sector > max(out), "counts: order")
        more = True
        while more:
            off += 1
            need(off < len(data) and shift < 49, "counts: damaged")
            v |= (data[off] & 127) << shift
            shift, more = shift + 7, data[off] & 128
        out[sector], off = v - 1, off + 1
    need(out and max(out.values()) < 1 << 48, "counts: damaged")
    return out


def read_group(group, data, counts):
    out, off = [], 0
    new = read_counts(counts) if counts is not None else {}
    if record_row_is_packed(data):
        data = record_row(data)
    while off < len(data):
        need(len(data) - off >= 56, "group", group, "is cut short")
        e = data[off:off + 56]
        r = Record()
        need(u16(e, 0) < GROUP_SECTORS, "group", group, "sector")
        r.addr = group * GROUP_SECTORS + u16(e, 0)
        r.slot = u16(e, 2)
        r.codec = e[4] & 15
        r.lsize = 1 << (e[4] >> 4) + 9
        r.psize = int.from_bytes(e[5:8], "little") + 1
        r.refcount = int.from_bytes(e[8:14], "little")
        r.flags = u16(e, 14)
        r.cksum = u64(e, 16)
        r.digest = e[24:56]
        off += 56
        if r.flags & EXTENDED:
            n = u16(data, off)
            ext = data[off + 2:off + 2 + n]
            need(len(ext) == n, "group", group, "extension is cut short")
            off += 2 + n
            while ext:
                kind, size = struct.unpack_from("<2H", ext)
                if kind == 1:
                    r.domain = int.from_bytes(ext[4:4 + size], "little")
                ext = ext[4 + (size + 1 & ~1):]
        r.check()
        need(not out or out[-1].addr < r.addr, "group", group, "order")
        r.refcount = new.pop(r.addr % GROUP_SECTORS, r.refcount)
        out.append(r)
    out = [r for r in out if r.refcount >= 0]   # without dead ones
    need(out, "group", group, "has no record")
    need(not new, "group", group, "has counts of no record")
    return out


class Segment:
    def __init__(self, number, sector, blob):
        self.sectors = SEGMENT_BYTES // sector
        self.chunk_sectors = max(4096 // sector, 1)
        self.spc = self.chunk_sectors * sector // 64
        what = "segment %d:" % number
        need(len(blob) >= 16, what, "cut short")
        need(u64(blob, 8) == xxh3(blob[:8] + blob[16:], number),
             what, "wrong checksum")
        n = u16(blob, 2)
        need(u16(blob, 0) == self.sectors and u32(blob, 4) == 0, what,
             "header")
        nbits = self.sectors // 8
        need(len(blob) == 16 + nbits + 2 * n + n * self.spc // 8, what,
             "length")
        self.bits = int.from_bytes(blob[16:16 + nbits], "little")
        self.chunks = struct.unpack_from("<%dH" % n, blob, 16 + nbits)
        self.slots = int.from_bytes(blob[16 + nbits + 2 * n:], "little")
        for c in self.chunks:
            need(c == 0xffff or (c % self.chunk_sectors == 0 and
                                 c + self.chunk_sectors <= self.sectors),
                 what, "a chunk is out of place")

    def largest_run(self):
        return max(map(len, re.findall(
            "0+", format(self.bits, "0%db" % self.sectors))), default=0)

    def nr_free(self):
        return self.sectors - bin(self.bits).count("1")


# ---------------------------------------------------------------------
# The journal

class Batch:
    """The fields of a header or trailer at this place."""

    def __init__(self, journal, at, uuid, ring_end):
        h = journal[at:at + 104]
        self.trailer = h[:4] == b"NBJT"
        self.valid = (
            len(h) == 104 and (self.trailer or h[:4] == b"NBJB") and
            u64(h, 88) == xxh3(h[:88]) and h[8:24] == uuid)
        self.moved = False
        if not self.valid:
            return
        self.kind, self.len, self.list_len = u32(h, 4), u32(h, 64), u32(h, 68)
        self.epoch, self.seq, self.durable, self.folded, self.pos = \
            struct.unpack_from("<5Q", h, 24)
        self.settled = u64(h, 80)
        data = (96 + self.len + 511) & ~511
        self.size = data + ((104 + self.list_len + 511) & ~511)
        self.valid = self.seq > 0 and self.settled <= self.seq
        if self.kind == 1:
            self.valid &= (self.len <= BODY_MAX and
                           self.list_len <= BODY_MAX and
                           RING_START <= self.pos and
                           self.pos + self.size + 512 <= ring_end)
        else:
            self.valid &= (self.kind in (2, 3) and not self.trailer and
                           self.len == self.list_len == 0)
            self.size = 512
        self.at = at
        self.moved = self.valid and \
            at != self.pos + (data if self.trailer else 0)
        self.valid &= not self.moved
        if self.valid:
            self.body = journal[self.pos + 96:self.pos + 96 + self.len]
            self.good_body = (len(self.body) == self.len and
                              u64(h, 72) == xxh3(self.body))

    def list(self, journal, uuid, ring_end):
        """The list to use in place of the body, or None."""
        at = self.pos + self.size - ((104 + self.list_len + 511) & ~511)
        t = Batch(journal, at, uuid, ring_end)
        out = journal[at + 104:at + 104 + self.list_len]
        if t.valid and t.trailer and (t.epoch, t.seq, t.list_len) == \
                (self.epoch, self.seq, self.list_len) and \
                u64(journal, at + 96) == xxh3(out):
            return out
        return None


def scan(journal, uuid, ring_end, moved=False):
    """Valid headers and trailers, or those that are only in a wrong place."""
    pos = RING_START
    while pos < ring_end:
        b = Batch(journal, pos, uuid, ring_end)
        pos += b.size if b.valid and not b.trailer and b.good_body else 512
        if b.moved if moved else b.valid:
            yield b


def read_journal(journal, uuid, ring_end, state):
    """Batches that pool.db does not have, in order: [(body, trust)], where
    trust is "settled", "suspect" or, with the list for a body, "damaged".
    """
    epoch = durable = folded = settled = 0
    for b in scan(journal, uuid, ring_end):
        epoch = max(epoch, b.epoch)
        durable = max(durable, b.durable)
        folded = max(folded, b.folded)
        if b.epoch == state["epoch"]:
            settled = max(settled, b.settled)
    begin = state["journal_position"] or RING_START
    last, end = max([(b.seq, b.pos + b.size)
                     for b in scan(journal, uuid, ring_end)
                     if b.kind == 1 and b.epoch == state["epoch"]] +
                    [(0, 0)])
    for b in scan(journal, uuid, ring_end, moved=True):
        live = begin <= b.at < end if begin <= end else \
            not end <= b.at < begin
        if b.epoch == state["epoch"] and (live or b.durable <= last):
            durable = max(durable, b.durable)
    need(epoch <= state["epoch"], "journal: is from a later session")
    need(folded <= state["folded"], "journal: pool.db is older")

    seq, pos = state["folded"], state["journal_position"] or RING_START
    need(pos >= RING_START and pos % 512 == 0 and pos <= ring_end - 512,
         "journal: pool.db names position", pos)
    out, nr_wraps, wrapped = [], 0, False
    while True:
        b = Batch(journal, pos, uuid, ring_end)
        found = b.valid and not b.trailer and b.kind != 3 and \
            b.epoch == state["epoch"] and b.seq == seq + 1
        if found and b.kind == 2 and not wrapped:
            wrapped, pos = True, RING_START
            continue
        body, trust = None, "settled"
        if found and b.kind == 1 and b.good_body:
            body = b.body
            if seq + 1 > max(durable, settled):
                trust = "suspect"
        elif seq >= durable:
            break
        else:
            for b in scan(journal, uuid, ring_end):
                if b.kind == 1 and (b.epoch, b.seq) == \
                        (state["epoch"], seq + 1):
                    body = b.body
                    if not b.good_body:
                        body = b.list(journal, uuid, ring_end)
                        trust = "damaged"
                    break
            need(body is not None, "journal: batch", seq + 1, "is damaged")
        nr_wraps += wrapped
        wrapped = False
        seq = b.seq
        pos = b.pos + b.size
        out.append((body, trust))
    return out, nr_wraps


def entries(body):
    off = 0
    while off < len(body):
        need(len(body) - off >= 8, "journal: entry cut short")
        n = u32(body, off + 4)
        need(n >= 8 and n % 8 == 0 and off + n <= len(body),
             "journal: entry of", n, "bytes")
        yield body[off:off + n]
        off += n


# ---------------------------------------------------------------------
# The pool

class Pool:
    def __init__(self, path, page_checksums):
        self.path = path
        self.db = Database(os.path.join(path, "pool.db"), page_checksums)
        s = self.state = self.db.state
        self.uuid, self.sector = s["uuid"], s["sector_bytes"]
        need(len(self.uuid) == 16, "pool.db: UUID")
        need(s["features_incompat"] & ~15 == 0, "pool.db: unknown feature")
        need(s["features_incompat"] & 4 or not self.has_packed_rows(),
             "feature packed")
        need(s["features_incompat"] & 1 or not self.db.counts,
             "feature counts")
        need(s["features_incompat"] & 8 or not self.db.deltas,
             "feature deltas")
        need(self.sector in (512, 1024, 2048, 4096, 8192), "pool.db: sector",
             self.sector)
        self.per_segment = SEGMENT_BYTES // self.sector
        self.stats = {"wal_pages": self.db.wal_pages, "batches": 0,
                      "wraps": 0, "suspect": 0, "lost": 0, "carried": 0,
                      "damaged": 0,
                      "replayed_records": 0, "replayed_pointers": 0,
                      "replayed_holes": 0}
        self.data = {}          # addr: stored bytes from the journal
        self.open_records()
        self.open_journal()

    # -- files

    def check_epoch(self, what, epoch):
        s = self.state
        need(epoch == s["epoch"] or
             (s["opening"] and epoch + 1 == s["epoch"]),
             what + ": session", epoch, "and not", s["epoch"])

    def has_packed_rows(self):
        return any(record_row_is_packed(data) for _, data in self.db.groups) \
            or any(index_row_is_packed(data) for _, data in self.db.index)

    def open_records(self):
        self.records_file = open(os.path.join(self.path, "records"), "rb")
        h = header(self.records_file.read(STORE_HEADER_BYTES), b"NBDDUPRC",
                   8192, lambda h: u64(h, 56), "records")
        need(h[40:56] == self.uuid and u32(h, 12) == self.sector,
             "records: belongs to another pool")
        self.hash = Digest(self.state["hash"], self.state["features_incompat"],
                           self.db.hash_key, h)
        self.check_epoch("records", u64(h, 56))
        self.records_len = self.records_file.seek(0, os.SEEK_END)

    def open_journal(self):
        self.journal = open(os.path.join(self.path, "journal"), "rb").read()
        h = header(self.journal, b"NBDDUPJR", 4096,
                   lambda h: (u64(h, 56), u64(h, 64)), "journal")
        self.ring_end = u64(h, 64)
        need(h[40:56] == self.uuid, "journal: belongs to another pool")
        need(RING_MIN <= self.ring_end <= RING_MAX and
             self.ring_end % 512 == 0 and
             self.ring_end <= len(self.journal), "journal: ring_end",
             self.ring_end)
        self.check_epoch("journal", u64(h, 56))

    def read_records(self, offset, n):
        self.records_file.seek(offset)
        data = self.records_file.read(n)
        need(len(data) == n, "records: ends before", offset + n)
        return data

    def stored(self, p):
        """The verified stored bytes of a pointer or record."""
        data = self.data.get(p.addr)
        if data is None:
            data = self.read_records(p.addr * self.sector, p.psize)
        need(xxh3(data) == p.cksum, "record at", p.addr, "is damaged")
        return data

    def digest(self, record, block):
        return self.hash(struct.pack("<Q", record.domain) + block
                         if record.domain else block)

    # -- what pool.db says

    def load(self):
        self.records = {}
        for group, data in self.db.groups:
            for r in read_group(group, data, self.db.counts.pop(group, None)):
                self.records[r.addr] = r
        need(not self.db.counts, "counts of groups without records")
        self.layers, keys = {}, {}
        for (ident, branch, seq, parent, overlap, block_size, flags,
             pointers, blocks) in self.db.layers:
            need((branch, seq) not in keys, "layer", ident, "is not alone")
            need(4096 <= block_size <= 1 << 20 and
                 block_size & block_size - 1 == 0 and
                 block_size >= self.sector, "layer", ident, "block size")
            keys[branch, seq] = ident
            self.layers[ident] = {
                "parent": parent, "overlap": overlap, "lsize": block_size,
                "dying": flags & 1, "pointers": pointers, "blocks": blocks,
                "map": {}}
        for ident, layer in self.layers.items():
            parent = layer["parent"]
            need(parent is None or layer["dying"] or
                 parent in self.layers and not self.layers[parent]["dying"]
                 and self.layers[parent]["lsize"] == layer["lsize"],
                 "layer", ident, "has no parent", parent)
        deltas = {}
        for branch, seq, area, data in self.db.deltas:
            for block, raw in read_deltas(data):
                leaf = area * DELTA_LEAVES + block // LEAF_BLOCKS
                deltas.setdefault((branch, seq, leaf), {})[
                    block % LEAF_BLOCKS] = raw
        for branch, seq, leaf, data in self.db.leaves:
            need((branch, seq) in keys, "leaf", leaf, "of no layer")
            layer = self.layers[keys[branch, seq]]
            blocks = read_leaf(data)
            for i, raw in deltas.pop((branch, seq, leaf), {}).items():
                need(blocks.get(i) is not None,
                     "a delta of leaf", leaf, "is of no pointer")
                blocks[i] = raw
            for i, raw in blocks.items():
                need(raw or layer["parent"] or layer["dying"], "leaf",
                     leaf, "has a hole")
                layer["map"][leaf * LEAF_BLOCKS + i] = \
                    raw if raw in (None, LOST) else \
                    Pointer(raw, layer["lsize"])
        need(not deltas, "deltas of leaves without a row:", list(deltas))

    def check_counts(self):
        s, counts = self.state, {}
        for ident, layer in self.layers.items():
            found = 0
            for block, p in layer["map"].items():
                if p in (None, LOST):
                    continue
                found += 1
                r = self.records.get(p.addr)
                need(r and r.same_as(p) and r.lsize == layer["lsize"],
                     "layer", ident, "block", block, "points to no record")
                counts[p.addr] = counts.get(p.addr, 0) + 1
            need(found == layer["pointers"], "layer", ident, "has", found,
                 "pointers, not", layer["pointers"])
        nr_copies = self.check_copies(counts)
        for addr, r in self.records.items():
            need(r.refcount == counts.get(addr, 0), "record at", addr, "has",
                 counts.get(addr, 0), "references, not", r.refcount)
        live = [r for r in self.records.values() if r.refcount]
        need(self.db.limbo == {a for a, r in self.records.items()
                               if r.refcount == 0}, "limbo")
        need(sum(1 for r in live if r.flags & COPY) == nr_copies,
             "there are more copies than table copy names")
        need(s["records"] == len(live) - nr_copies, "state: records")
        need(s["record_bytes"] == sum(r.lsize for r in live
                                      if not r.flags & COPY),
             "state: record_bytes")
        need(s["stored_sectors"] == sum(map(self.nr_sectors, live)),
             "state: stored_sectors")

    def check_copies(self, counts):
        """Table copy refers to copies, which must agree with primaries."""
        total, nr, sectors = u64(self.db.copies.pop(0, bytes(8)), 0), 0, 0
        for addr, data in self.db.copies.items():
            p, places = self.records.get(addr), {addr // self.per_segment}
            need(p and not p.flags & COPY and len(data) in (8, 16),
                 "copies of", addr)
            for copy in struct.unpack("<%dQ" % (len(data) // 8), data):
                r = self.records.get(copy)
                need(r and r.flags & (COPY | INDEXED) == COPY and
                     r.same_as(p, copy) and (r.lsize, r.digest, r.domain) ==
                     (p.lsize, p.digest, p.domain) and copy not in counts and
                     copy // self.per_segment not in places,
                     "copies of", addr, "the one at", copy)
                places.add(copy // self.per_segment)
                counts[copy] = 1
                nr += 1
                sectors += self.nr_sectors(r)
        need(total == sectors, "copies: not", total, "sectors but", sectors)
        return nr

    def nr_sectors(self, r):
        return -(-r.psize // self.sector)

    def check_space(self):
        """Segment maps: exactly records, chunks and the header in use."""
        self.segments = {}
        for number, nr_free, run, blob in self.db.segments:
            seg = Segment(number, self.sector, blob)
            need(seg.nr_free() == nr_free and seg.largest_run() == run,
                 "segment", number, "free space")
            need((number + 1) * SEGMENT_BYTES <= self.records_len,
                 "records: segment", number, "is past its end")
            self.segments[number] = seg
        used, slots = {}, {}

        def take(number, first, n):
            run = ((1 << n) - 1) << first
            bits = used.setdefault(
                number, (1 << STORE_HEADER_BYTES // self.sector) - 1
                if number == 0 else 0)
            need(first + n <= self.per_segment and not bits & run,
                 "segment", number, "sector", first, "is used twice")
            used[number] = bits | run

        for number, seg in self.segments.items():
            for i, c in enumerate(seg.chunks):
                if c == 0xffff:
                    bits = (1 << seg.spc) - 1
                else:
                    bits = 1
                    take(number, c, seg.chunk_sectors)
                    self.check_chunk(number, i, seg)
                slots[number] = slots.get(number, 0) | bits << i * seg.spc
        nr_slots = {}
        for r in self.records.values():
            number, first = divmod(r.addr, self.per_segment)
            need(number in self.segments, "segment", number, "has no row")
            take(number, first, self.nr_sectors(r))
            bit = 1 << r.slot
            need(not slots.get(number, 0) & bit, "slot", r.slot, "twice")
            slots[number] = slots.get(number, 0) | bit
            nr_slots[number] = 1
        for number, seg in self.segments.items():
            need(seg.bits == used.get(number, 0), "segment", number,
                 "sectors in use")
            need(seg.slots == slots.get(number, 0), "segment", number,
                 "slots in use")
            need(number in nr_slots, "segment", number, "is empty")

    def check_chunk(self, number, index, seg):
        addr = number * self.per_segment + seg.chunks[index]
        h = self.read_records(addr * self.sector, 64)
        need(h[:8] == b"NBDCHUNK" and h[8:24] == self.uuid and
             u64(h, 24) == addr and u32(h, 32) == index and
             u32(h, 36) == self.sector and u64(h, 56) == xxh3(h[:56]),
             "segment", number, "chunk", index, "header")

    def check_record(self, r):
        block = decompress(r.codec, self.stored(r), r.lsize)
        need(self.digest(r, block) == r.digest, "record at", r.addr,
             "has another digest")
        need(any(block), "record at", r.addr, "is all zeroes")
        need(r.domain == 0 or r.domain in self.db.domains, "record at",
             r.addr, "has no domain", r.domain)

    def check_slot(self, r):
        number, first = divmod(r.addr, self.per_segment)
        seg = self.segments[number]
        chunk, slot = divmod(r.slot, seg.spc)
        need(chunk < len(seg.chunks) and slot > 0 and
             seg.chunks[chunk] != 0xffff, "record at", r.addr, "slot")
        offset = (number * self.per_segment + seg.chunks[chunk]) * \
            self.sector + 64 * slot
        s = self.read_records(offset, 64)
        need(u32(s, 60) == xxh3(s[:60], offset ^ u64(self.uuid, 0)) &
             0xffffffff, "slot of the record at", r.addr, "checksum")
        need(u16(s, 0) == first and s[2] & 15 == r.codec and
             1 << (s[2] >> 4) + 9 == r.lsize and u32(s, 4) == r.psize and
             u64(s, 8) == r.cksum and s[16:48] == r.digest and
             u64(s, 48) <= self.state["fold"] and u32(s, 56) == r.domain,
             "slot of the record at", r.addr, "describes another")

    def check_index(self):
        sums = collections.Counter()    # of each entry, over all runs
        ends = [key for key, _ in self.db.index[1:]] + [1 << 63]
        for (key, data), end in zip(self.db.index, ends):
            need(key >= 0, "hash index: row", key)
            if index_row_is_packed(data):
                data = index_row(data)
            last = (-1, 0)
            for e in (data[off:off + 11] for off in range(0, len(data), 11)):
                word = int.from_bytes(e[:6], "little")
                at = word >> 1, int.from_bytes(e[6:], "little")
                need(last < at and
                     key <= (key >> 56 << 56 | at[0] << 9) < end,
                     "hash index: order")
                last = at
                sums[at] += -1 if word & 1 else 1
        found, stale = set(), 0
        for (prefix, addr), total in sums.items():
            r = self.records.get(addr)
            if total > 0 and r and \
                    int.from_bytes(r.digest[:6], "big") >> 1 == prefix:
                found.add(addr)
            stale += total != (addr in found)
        need(sum(sums.values()) == self.state["index_entries"],
             "state: index_entries")
        self.stats["stale_index_entries"] = stale
        self.stats["missing_index_entries"] = sum(
            1 for a, r in self.records.items()
            if r.flags & INDEXED and a not in found)

    def check_volumes(self):
        named, parents = set(), {
            layer["parent"] for layer in self.layers.values()
            if not layer["dying"]}
        ids = {v[-1] for v in self.db.volumes}
        self.check_snapshots(ids, named)
        for name, ident, size, flags, domain, compress, dedup, origin, _ in \
                self.db.volumes:
            need(re.fullmatch("[A-Za-z0-9._-]{1,255}", name), "volume name")
            self.check_named("volume " + name, ident, named)
            need(ident not in parents, "volume", name, "shares its layer")
            need(size % 512 == 0, "volume", name, "size", size)
            need(domain == 0 or domain in self.db.domains, "volume", name,
                 "domain")
            need(re.fullmatch("none|lz4|zstd(-[1-9][0-9]?)?", compress),
                 "volume", name, "compress")
            need(dedup in ("on", "off", "verify"), "volume", name, "dedup")
            need(origin is None or origin in self.origins, "volume", name,
                 "has no origin", origin)
            layer = self.layers[ident]
            blocks = -(-size // layer["lsize"])
            need(flags & 1 or all(b < blocks for b in layer["map"]),
                 "volume", name, "has blocks past its end")

    def check_snapshots(self, volumes, named):
        """Includes destroyed snapshots that are the origin of clones."""
        self.origins = {s[0] for s in self.db.snapshots}
        for ident, volume, name, layer, size, origin in self.db.snapshots:
            part = "[A-Za-z0-9._-]{1,255}"
            need(size % 512 == 0, "snapshot", ident, "size", size)
            need(origin is None or origin in self.origins, "snapshot", ident,
                 "has no origin", origin)
            if volume is None:
                need(re.fullmatch(part + "@" + part, name), "snapshot", ident,
                     "name")
                need(layer is None or layer in self.layers, "snapshot", ident,
                     "has no layer")
            else:
                need(re.fullmatch(part, name), "snapshot", ident, "name")
                need(volume in volumes, "snapshot", ident, "has no volume")
                self.check_named("snapshot " + name, layer, named)
        need(named.isdisjoint(s[3] for s in self.db.snapshots if not s[1]),
             "a destroyed snapshot has another one's layer")

    def check_named(self, what, ident, named):
        need(ident in self.layers and not self.layers[ident]["dying"], what,
             "has no layer")
        need(ident not in named, what, "shares its layer")
        named.add(ident)
        blocks, layer = set(), self.layers[ident]
        above = layer
        while above:
            blocks |= above["map"].keys()
            above = self.layers.get(above["parent"])
        found = sum(self.find(ident, b) not in (None, LOST)
                    for b in blocks)
        need(found == layer["blocks"], what, "has", found, "blocks, not",
             layer["blocks"])

    # -- the history

    def check_samples(self):
        next_id = self.state["next_id"]
        for ident, golden, time, codec, length, _, data in self.db.samples:
            what = "drift sample %d:" % ident
            need(1 <= ident < next_id and 1 <= golden < next_id, what,
                 "of snapshot", golden, "ids end at", next_id)
            need(codec in CODECS and 1 <= length <= 1 << 28, what, "codec",
                 codec, "length", length)
            document = json.loads(decompress(codec, data, length))
            need(isinstance(document, dict) and
                 isinstance(document.get("golden"), str) and
                 document.get("time") == time, what, "not a document of", time)
        self.stats["samples"] = len(self.db.samples)

    # -- what the journal adds

    def replay(self):
        batches, self.stats["wraps"] = read_journal(
            self.journal, self.uuid, self.ring_end, self.state)
        self.lost = set()
        self.stats["batches"] = len(batches)
        for body, trust in batches:
            suspect = trust == "suspect"
            self.stats["suspect"] += suspect
            self.stats["damaged"] += trust == "damaged"
            for e in entries(body):
                need(e[0] in (1, 2, 3, 4), "journal: entry of type", e[0])
                (self.replay_record if e[0] == 1 else
                 self.replay_map)(e, suspect)

    def replay_record(self, e, suspect):
        r = Record()
        need(len(e) >= 80, "journal: record entry of", len(e), "bytes")
        r.slot, r.flags = u16(e, 2), u16(e, 78)
        r.addr, chunk, r.cksum, r.domain = struct.unpack_from("<4Q", e, 8)
        r.digest, r.psize = e[40:72], u32(e, 72)
        r.codec, r.lsize, r.refcount = e[76], 1 << e[77] + 9, 0
        r.check()
        number = r.addr // self.per_segment
        need(chunk // self.per_segment == number, "journal: chunk", chunk)
        if e[1] & 1:
            need(len(e) - 80 >= r.psize, "journal: record lacks its data")
            self.data[r.addr] = e[80:80 + r.psize]
            self.stats["carried"] += 1
        elif suspect:
            self.records_file.seek(r.addr * self.sector)
            if xxh3(self.records_file.read(r.psize)) != r.cksum:
                self.lost.add(r.addr)
                self.stats["lost"] += 1
                return
        seg = self.segments.get(number)
        n, first = self.nr_sectors(r), r.addr % self.per_segment
        need(first + n <= self.per_segment and
             (seg is None or not seg.bits >> first & (1 << n) - 1) and
             r.addr not in self.records, "journal: the record at", r.addr,
             "is not in free space")
        self.records[r.addr] = r
        self.stats["replayed_records"] += 1

    def replay_map(self, e, suspect):
        need(len(e) >= 24, "journal: entry cut short")
        ident, block = struct.unpack_from("<2Q", e, 8)
        need(ident in self.layers, "journal: layer", ident, "is missing")
        layer = self.layers[ident]
        if e[0] == 4:
            for b in range(block, block + u64(e, 24)):
                layer["map"][b] = LOST
            return
        if e[0] == 3:
            # Not one by one: a trim may have a thousand million blocks.
            end = block + u64(e, 24)
            if layer["parent"]:
                for b in range(block, end):
                    layer["map"][b] = None
            else:
                layer["map"] = {b: p for b, p in layer["map"].items()
                                if not block <= b < end}
            self.stats["replayed_holes"] += 1
            return
        need(len(e) >= 24 + 16 * u16(e, 2), "journal: pointers cut short")
        for i in range(u16(e, 2)):
            p = Pointer(e[24 + 16 * i:40 + 16 * i], layer["lsize"])
            if p.addr in self.lost:
                continue
            r = self.records.get(p.addr)
            if r is None and self.stats["damaged"] > 0:
                layer["map"][block + i] = LOST
                continue
            need(r and r.same_as(p), "journal: layer", ident, "block",
                 block + i, "points to no record")
            layer["map"][block + i] = p
            self.stats["replayed_pointers"] += 1

    # -- reading

    def find(self, ident, block):
        """The pointer of a block, None for a hole."""
        while True:
            layer = self.layers[ident]
            if block in layer["map"]:
                return layer["map"][block]
            if layer["parent"] is None or block >= layer["overlap"]:
                return None
            ident = layer["parent"]

    def write_volume(self, name, out):
        for n, ident, size, flags in self.db.names():
            if n == name:
                break
        else:
            raise Bad("there is no volume", name)
        lsize = self.layers[ident]["lsize"]
        for block in range(-(-size // lsize)):
            p = self.find(ident, block)
            need(p != LOST, "volume", name, "block", block, "is lost")
            data = bytes(lsize) if p is None else \
                decompress(p.codec, self.stored(p), lsize)
            end = min(lsize, size - block * lsize)
            need(flags & 1 or not any(data[end:]), "volume", name,
                 "is not zero past its end")
            out.write(data[:end])

    def verify(self):
        self.load()
        self.check_counts()
        self.check_space()
        self.check_volumes()
        self.check_index()
        self.check_samples()
        for r in list(self.records.values()):
            self.check_record(r)
            self.check_slot(r)
        self.stats["records"] = len(self.records)
        self.stats["deltas"] = sum(
            len(data) // 18 for _, _, _, data in self.db.deltas)
        self.replay()


def main(args):
    page_checksums = args[:1] != ["--no-page-checksums"]
    if not page_checksums:
        args = args[1:]
    if len(args) % 2 != 1 or args[0].startswith("-"):
        sys.exit(__doc__)
    pool = Pool(args[0], page_checksums)
    pool.verify()
    quiet = False
    for name, path in zip(args[1::2], args[2::2]):
        if path == "-":
            quiet = True
            pool.write_volume(name, sys.stdout.buffer)
        else:
            with open(path, "wb") as f:
                pool.write_volume(name, f)
    if not quiet:
        print(json.dumps(pool.stats))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (Bad, OSError, struct.error, IndexError, ValueError) as e:
        sys.exit("format-reader: %s" % " ".join(map(str, e.args)))
