# SPDX-License-Identifier: BSD-3-Clause
"""The lines of "make bench": what fio sends, and to what kind of volume.

The default line writes new, random data to a volume of 16 KiB blocks.
"""

import dataclasses

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
UNITS = {"k": KIB, "m": MIB, "g": GIB}

COMMON = ("file", "nbdedup", "qcow2")
# These compare settings of nbdedup with each other.
OWN = ("file", "nbdedup")
# These compare a pool that was just filled with one that has been in use.
AGED = OWN + ("nbdedup-aged",)


def parse_size(text):
    text = text.lower()
    if text[-1:] in UNITS:
        return int(text[:-1]) * UNITS[text[-1]]
    return int(text)


def name_size(size):
    return f"{size // MIB}m" if size >= MIB else f"{size // KIB}k"


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of the benchmark.

    before: "fill" the volume; "twin": the same data is in another volume;
    "clone": the volume is a clone of a filled one (an overlay of qcow2).
    half: measure the latency at half of the rate, too.
    hashed: the share of the written blocks that needs a hash; new: the share
    that needs the codec as well.
    """

    name: str
    group: str
    fio: dict = dataclasses.field(default_factory=dict)
    block: int = 16 * KIB
    before: str = None
    servers: tuple = COMMON
    volume: tuple = ()          # options of "nbdedup create"
    pool: tuple = ()            # of "nbdedup set"
    keys: tuple = ()            # of the plugin
    file_keys: tuple = ()       # of nbdkit file
    codec: str = "lz4"
    hashed: float = 1.0
    new: float = 1.0
    cold: bool = False
    half: bool = False
    quick: bool = False

    @property
    def request(self):
        return parse_size(self.fio["bs"])

    @property
    def jobs(self):
        return self.fio.get("numjobs", 1)

    @property
    def writes(self):
        """The share of the requests that write."""
        if self.fio["rw"] == "randrw":
            return 1 - self.fio["rwmixread"] / 100
        return 0.0 if "read" in self.fio["rw"] else 1.0

    @property
    def compressible(self):
        """How many percent of the data are zeroes."""
        return self.fio.get("buffer_compress_percentage", 0)


def requests(rw, bs, depth=16, **others):
    return dict(rw=rw, bs=bs, iodepth=depth, **others)


def half_compressible(rw, bs, depth=16):
    return requests(rw, bs, depth, buffer_compress_percentage=50,
                    buffer_compress_chunk=4096)


def request_sizes():
    for bs in ("4k", "8k", "16k", "128k", "1m"):
        block = min(parse_size(bs), 16 * KIB)
        quick = bs in ("4k", "16k")
        yield Line(f"randwrite-{bs}", "requests", requests("randwrite", bs),
                   block, half=True, quick=quick)
        yield Line(f"randread-{bs}", "requests", requests("randread", bs),
                   block, "fill", half=True, quick=quick)
    for bs in ("128k", "1m"):
        yield Line(f"seqread-{bs}", "requests", requests("read", bs, 4),
                   before="fill")
    yield Line("seqwrite-1m-new", "requests", requests("write", "1m", 4))
    yield Line("randwrite-4k-on-16k", "requests",
               requests("randwrite", "4k"), before="fill", half=True,
               quick=True)
    for bs in ("4k", "16k"):
        yield Line(f"write-flush-{bs}", "requests",
                   requests("randwrite", bs, 1, fsync=1), parse_size(bs),
                   quick=bs == "4k")


def cold_reads():
    for bs in ("4k", "16k"):
        for threads in ("parallel", "auto"):
            yield Line(f"randread-{bs}-cold-{threads}", "cold reads",
                       requests("randread", bs), parse_size(bs), "fill",
                       COMMON if threads == "parallel" else OWN,
                       keys=(f"threads={threads}",), cold=True,
                       quick=(bs, threads) == ("4k", "parallel"))


def mixes():
    for jobs in (2, 4, 8, 16):
        for depth in (2, 4, 8, 16):
            yield Line(f"mix-128k-{jobs}x{depth}", "mix",
                       requests("randrw", "128k", depth, rwmixread=70,
                                numjobs=jobs), before="fill",
                       half=jobs == depth, quick=jobs == depth == 8)


def duplicates():
    yield Line("seqwrite-128k-new", "duplicates",
               requests("write", "128k", 4),
               servers=COMMON + ("qcow2-compressed",), quick=True)
    for percent in (30, 90):
        yield Line(f"seqwrite-128k-{percent}-duplicate", "duplicates",
                   requests("write", "128k", 4, dedupe_percentage=percent),
                   new=1 - percent / 100)
    yield Line("seqwrite-128k-duplicate", "duplicates",
               requests("write", "128k", 1), before="twin", new=0.0,
               quick=True)
    yield Line("seqwrite-128k-zero", "duplicates",
               requests("write", "128k", 4, zero_buffers=1), hashed=0.0,
               new=0.0)
    yield Line("randwrite-16k-mix", "duplicates",
               requests("randwrite", "16k", dedupe_percentage=30,
                        buffer_compress_percentage=30), new=0.7)


def settings():
    for dedup in ("off", "verify"):
        yield Line(f"randwrite-16k-dedup-{dedup}", "settings",
                   requests("randwrite", "16k"), servers=OWN,
                   volume=("--dedup", dedup), quick=dedup == "off")
    yield Line("seqwrite-128k-duplicate-verify", "settings",
               requests("write", "128k", 1), before="twin", new=0.0,
               servers=OWN, volume=("--dedup", "verify"))
    for cache in ("metadata", "none"):
        for rw, before in (("randwrite", None), ("randread", "fill")):
            yield Line(f"{rw}-16k-primarycache-{cache}", "settings",
                       requests(rw, "16k"), before=before, servers=OWN,
                       keys=(f"primarycache={cache}",),
                       file_keys=("cache=none",))
    for bs in ("4k", "16k"):
        yield Line(f"randwrite-{bs}-metadata-copy-off", "settings",
                   requests("randwrite", bs), parse_size(bs), servers=OWN,
                   pool=("metadata-copy=off",))


def codecs():
    for codec in ("none", "lz4", "zstd", "zstd-9"):
        servers = OWN
        if codec in ("lz4", "zstd"):
            servers = COMMON + ("qcow2-compressed",)
        kind = dict(servers=servers, codec=codec,
                    volume=("--compress", codec))
        yield Line(f"seqwrite-128k-{codec}", "codecs",
                   half_compressible("write", "128k", 4), **kind,
                   quick=codec == "zstd")
        yield Line(f"randread-16k-{codec}", "codecs",
                   half_compressible("randread", "16k"), before="fill",
                   **kind)


def block_sizes():
    for size in (4, 8, 16, 32, 64, 128):
        yield Line(f"seqwrite-128k-block-{size}k", "block sizes",
                   requests("write", "128k", 4), size * KIB, servers=OWN)
        yield Line(f"randread-128k-block-{size}k", "block sizes",
                   requests("randread", "128k"), size * KIB, "fill", OWN)


def clones():
    servers = ("file", "nbdedup", "qcow2-overlay")
    for rw, bs in (("randwrite", "4k"), ("randwrite", "16k"),
                   ("randread", "16k")):
        yield Line(f"clone-{rw}-{bs}", "clones", requests(rw, bs),
                   parse_size(bs), "clone", servers,
                   quick=(rw, bs) == ("randwrite", "16k"))


def aged():
    for rw, bs in (("randwrite", "16k"), ("randread", "16k"),
                   ("read", "128k")):
        quick = rw == "randwrite"
        yield Line(f"aged-{rw}-{bs}", "aged",
                   requests(rw, bs, 4 if rw == "read" else 16),
                   before="fill", servers=AGED, half=bs == "16k",
                   quick=quick)


def all_lines():
    return [line for lines in (request_sizes, cold_reads, mixes, duplicates,
                               settings, codecs, block_sizes, clones, aged)
            for line in lines()]
