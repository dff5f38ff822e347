# SPDX-License-Identifier: BSD-3-Clause
"""The kinds of damage that damage-model does to the files of a pool.

Each kind is a function of (file, rng, older, other): it changes the file in
place, as a disk would, and returns a text that says where, or None if it
found nothing to change.  'older' and 'other' have the file from an earlier
moment of the same pool, and from another pool.
"""

import os
import shutil

FILES = ["pool.db", "pool.db-wal", "journal", "records", "lock",
         "pool.db.copy"]
SECTORS = [512, 4096, 8192]


def used_sectors(f, size, sector):
    """The numbers of sectors that are not all zero."""
    zero, out, at = bytes(sector), [], 0
    while at < size:
        try:
            start = os.lseek(f, at, os.SEEK_DATA)
            end = os.lseek(f, start, os.SEEK_HOLE)
        except OSError:
            break
        at = max(at, start // sector * sector)
        while at < end:
            data = os.pread(f, sector, at)
            if data != zero[:len(data)]:
                out.append(at // sector)
            at += sector
    return out


def write_at(f, data, offset):
    if os.pread(f, len(data), offset) == data:
        return False
    os.pwrite(f, data, offset)
    return True


class Target:
    """A file to be damaged."""

    def __init__(self, path, rng):
        self.f = os.open(path, os.O_RDWR)
        self.size = os.fstat(self.f).st_size
        self.rng = rng

    def sector(self, sector):
        """The offset of a random sector, preferably one with data."""
        used = used_sectors(self.f, self.size, sector)
        if used and self.rng.random() < 0.9:
            return self.rng.choice(used) * sector
        return self.rng.randrange(max(self.size // sector, 1)) * sector


def damage_bit(t):
    offset = min(t.sector(512) + t.rng.randrange(512), t.size - 1)
    bit = 1 << t.rng.randrange(8)
    byte = os.pread(t.f, 1, offset)[0]
    write_at(t.f, bytes([byte ^ bit]), offset)
    return "%d" % offset


def damage_zero(t):
    n = t.rng.choice([512, 4096])
    offset = t.sector(n)
    n = min(n, t.size - offset)
    return "%d+%d" % (offset, n) if write_at(t.f, bytes(n), offset) else None


def two_sectors(t):
    n = t.rng.choice(SECTORS)
    a, b = t.sector(n), t.sector(n)
    return n, a, b, os.pread(t.f, n, a), os.pread(t.f, n, b)


def damage_swap(t):
    n, a, b, x, y = two_sectors(t)
    if len(x) != n or len(y) != n or x == y:
        return None
    write_at(t.f, y, a)
    write_at(t.f, x, b)
    return "%d<>%d+%d" % (a, b, n)


def damage_dup(t):
    n, a, b, x, y = two_sectors(t)
    if len(x) != n or len(y) != n or x == y:
        return None
    write_at(t.f, x, b)
    return "%d>%d+%d" % (a, b, n)


def damage_truncate(t):
    n = t.rng.choice([0, t.rng.randrange(t.size), t.sector(512),
                      t.size - min(t.size, 512)])
    os.ftruncate(t.f, n)
    return "%d/%d" % (n, t.size)


IN_PLACE = {"bit": damage_bit, "zero": damage_zero, "swap": damage_swap,
            "dup": damage_dup, "truncate": damage_truncate}
KINDS = list(IN_PLACE) + ["delete", "older", "other"]


def replace(path, source):
    """Replace the content of a file, which keeps its inode."""
    if not os.path.exists(source):
        return None
    if os.path.exists(path):
        with open(source, "rb") as a, open(path, "rb") as b:
            if a.read() == b.read():
                return None
        with open(source, "rb") as a, open(path, "r+b") as b:
            b.truncate(0)
            shutil.copyfileobj(a, b)
    else:
        shutil.copyfile(source, path)
    return "all"


def apply(kind, path, rng, older, other):
    """Apply a damage.  Returns its place, or None if there is nothing to do."""
    name = os.path.basename(path)
    if kind in ("older", "other"):
        return replace(path, os.path.join(older if kind == "older" else other,
                                          name))
    if not os.path.exists(path):
        return None
    if kind == "delete":
        os.unlink(path)
        return "all"
    for _ in range(20):
        t = Target(path, rng)
        try:
            where = IN_PLACE[kind](t) if t.size else None
        finally:
            os.close(t.f)
        if where is not None or t.size == 0:
            return where
    return None
