# SPDX-License-Identifier: BSD-3-Clause
"""Why nbdedup is slower than a peer: a text for each kind of line.

The first entry whose patterns match a line and a peer is the reason.  The page
shows it only where nbdedup is slower, so a text may be more general than the
lines that show it.
"""

import fnmatch

# line, peer, why
WHY = (
    ("seqwrite-128k-zero", "*",
     "Blocks of zeroes are compared with zeroes, and become holes; the rest of "
     "the time is the transfer to the server, and the map."),
    ("write-flush-*", "*",
     "A flush hashes and compresses the block before it syncs the journal, "
     "which has the block and its pointer in one batch."),
    ("*-on-16k", "*",
     "A write smaller than a block makes nbdedup read, verify and expand the "
     "old block, and hash, compress and store the new one: four times the "
     "bytes that the client sent. A plain file, and qcow2 once it has a "
     "cluster, overwrite 4 KiB in place."),
    ("*-cold-auto", "*",
     "With nbdkit before 1.34 `threads=auto` answers the requests of a "
     "connection one after the other, so the disk has one read at a time. "
     "`threads=parallel` does not."),
    ("*-cold-*", "*",
     "A cold block costs a read of its map, and one of its record; a plain "
     "file's map is in memory, or next to it in the file system's tree."),
    ("mix-*", "qcow2*",
     "qemu-nbd writes 128 KiB as they come. nbdedup hashes and compresses "
     "eight blocks for each such write, on the processors that its reads "
     "need as well."),
    ("mix-*", "*",
     "Reads verify each block, and writes hash and compress them, on the "
     "processors on which the client runs as well; nbdkit file only copies."),
    ("*-dedup-off", "*",
     "Without dedup no index is searched, but each block is still hashed, for "
     "`drift`, `rewrite` and `scrub`, and passes through memory, the codec "
     "and the map."),
    ("*-verify", "*",
     "`dedup=verify` reads the stored block, expands it and compares it, "
     "whenever a digest is found."),
    ("*-primarycache-none", "*",
     "Nothing is kept: each request reads its map and its entries of the "
     "table again, with nbdkit before 1.34 one request of a connection after "
     "the other."),
    ("randread-*-primarycache-metadata", "*",
     "No record stays in memory or in the page cache: each block is looked "
     "up in the volume's map, read from the disk, and verified, with nbdkit "
     "before 1.34 one request of a connection after the other."),
    ("seqwrite-*-zstd*", "*",
     "zstd takes more time for each byte than LZ4, and stores less; the hash "
     "comes on top."),
    ("seqwrite-*-none", "*",
     "Without a codec each block is still hashed, looked up and placed."),
    ("clone-randread-*", "*",
     "Each block is looked up in the map of the clone, then in its origin's, "
     "and verified; a plain file, and the file below an overlay, are read as "
     "they are."),
    ("clone-*", "qcow2-overlay",
     "The overlay does not hash or compress what it copies."),
    ("import-*", "*",
     "An import hashes all of the image, and compresses what is new; nbdcopy "
     "only copies it."),
    ("image-in", "qcow2*",
     "qemu-img neither hashes what it copies, nor looks for it elsewhere."),
    ("image-in", "*",
     "An import hashes all of the image, and compresses what is new; nbdcopy "
     "only copies it."),
    ("image-out", "*",
     "An export verifies and expands every record."),
    ("checkout", "*",
     "Many small files are many small writes: each one hashes and compresses "
     "all of its block."),
    ("randread-*", "*",
     "Each block is looked up in the volume's map, read by an address of its "
     "own, verified and expanded; a plain file, and clusters of qcow2, are "
     "read as they are. With nbdkit before 1.34 the requests of a connection "
     "also run one after the other."),
    ("seqread-*", "*",
     "Each block is looked up, and its bytes are summed up with XXH3 before "
     "they are sent; a plain file, and clusters of qcow2, are only copied. "
     "Blocks that do not lie side by side are one read each."),
    ("*", "qcow2*",
     "qcow2 writes its clusters as they come: it neither hashes nor "
     "compresses, and stores every duplicate again."),
    ("*", "*",
     "nbdkit file only copies to the page cache. nbdedup copies as well, then "
     "hashes, compresses and places each block, and keeps its map."),
)


def why(line, peer):
    return next(text for of, than, text in WHY
                if fnmatch.fnmatch(line, of) and fnmatch.fnmatch(peer, than))
