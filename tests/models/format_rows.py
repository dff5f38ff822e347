# SPDX-License-Identifier: BSD-3-Clause
"""The packed rows of tables record and ddt, for format-reader.py."""

from format_database import need, u16

PACKED = 256


def varint(data, off):
    v = shift = 0
    more = True
    while more:
        need(off < len(data) and shift < 70, "a number is cut short")
        v |= (data[off] & 127) << shift
        off, shift, more = off + 1, shift + 7, data[off] & 128
    need(v < 1 << 64, "a number has more than 64 bits")
    return v, off


def record_row_is_packed(data):
    return len(data) >= 2 and u16(data, 0) == PACKED


def record_row(data):
    """A packed row of table record as entries without packing."""
    out, off = b"", 2
    sector, slot, kind, flags, domain, psize = -1, -1, 0, 1, 0, 0

    def take(n):
        nonlocal off
        need(off + n <= len(data), "record: packed row is cut short")
        off += n
        return data[off - n:off]

    def number(n):
        return int.from_bytes(take(n), "little")

    need(off < len(data), "record: packed row without entries")
    while off < len(data):
        has = number(1)
        sector = number(1) if has & 1 else sector + 1
        slot = number(2) if has & 2 else slot + 1 & 65535
        kind = number(1) if has & 4 else kind
        flags = number(2) if has & 8 else flags
        need(sector < 256 and not flags & 2, "record: packed entry")
        count = 1
        if has & 16:
            count, off = varint(data, off)
        if has & 32:
            domain, off = varint(data, off)
        psize = number(has >> 6) if has >> 6 else psize
        need(count < 1 << 48, "record: packed count")
        out += (sector.to_bytes(2, "little") + slot.to_bytes(2, "little") +
                bytes([kind]) + psize.to_bytes(3, "little") +
                count.to_bytes(6, "little") +
                (flags | (2 if domain else 0)).to_bytes(2, "little") +
                take(40))
        if domain:
            out += bytes([12, 0, 1, 0, 8, 0]) + domain.to_bytes(8, "little")
    return out


def index_row_is_packed(data):
    return len(data) % 11 != 0


def index_row(data):
    """A packed row of table ddt as entries of 11 bytes."""
    out, off, prefix = b"", 0, 0
    while off < len(data) and (off < len(data) - 1 or data[off]):
        more, off = varint(data, off)
        addr, off = varint(data, off)
        prefix += more
        need(prefix < 1 << 47 and addr < 1 << 41, "hash index: packed entry")
        out += ((prefix << 1 | addr & 1).to_bytes(6, "little") +
                (addr >> 1).to_bytes(5, "little"))
    return out
