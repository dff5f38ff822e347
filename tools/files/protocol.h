/* SPDX-License-Identifier: BSD-3-Clause */

/* Between "nbdedup drift --files" and its helper nbdedup-files, over a socket
 * pair (the helper's descriptor FILES_FD), in this machine's byte order.
 *
 * The helper reads FILES_RANGES first, which it opens by this name: pairs of
 * first byte and length (uint64_t), ascending, apart from each other, and
 * multiples of 512: the parts of the image whose owners are asked for.  Then it
 * sends messages, each a struct files_message and 'len' bytes:
 *
 *   READ      asks for 'b' bytes of the image at 'a', at most FILES_READ_MAX.
 *             The parent answers with a READ whose 'len' bytes are the data, or
 *             0 if they cannot be read.
 *   OWNER     a path, or a pseudo-path such as "<journal>"
 *   EXTENT    'b' bytes of the image at 'a' are of the last OWNER.  Extents do
 *             not overlap, and lie in the ranges.
 *   PACKAGE   the name of a package; its list of files follows.  Or 'a' > 0 and
 *             no name: the package is that of the golden image's PACKAGE number
 *             'a', with the same list
 *   FILES     the next part of this list
 *   MAP       the next bytes of the map (golden-map.h), if the parent wants one
 *   NOTE      a line for the user
 *   DONE      this was all; without it the parent trusts nothing of the rest
 */

#ifndef NBDEDUP_FILES_PROTOCOL_H
#define NBDEDUP_FILES_PROTOCOL_H

#include <stdint.h>

#define FILES_FD 4 /* CHILD_FD of child.h */
#define FILES_RANGES "/nbdedup-ranges"
#define FILES_CHANGED "/nbdedup-changed"
#define FILES_GOLDEN "/nbdedup-golden"
#define FILES_READ_MAX (UINT32_C (1) << 20)
#define FILES_TEXT_MAX (UINT32_C (64) << 10) /* 'len' of the helper's */

/* argv[2]: the image is a golden image, whose map the parent wants; or it is a
 * clone, and FILES_GOLDEN is the map of its golden image, FILES_CHANGED the
 * bytes that are not the golden image's, as FILES_RANGES has them.
 */
#define FILES_MAKE_MAP "map"
#define FILES_USE_MAP "clone"

struct byte_range {
  uint64_t offset, len;
};

enum files_type {
  FILES_READ = 1,
  FILES_OWNER,
  FILES_EXTENT,
  FILES_PACKAGE,
  FILES_FILES,
  FILES_NOTE,
  FILES_DONE,
  FILES_MAP,
};

struct files_message {
  uint32_t type, len;
  uint64_t a, b;
};

/* Content that no file owns. */
#define PSEUDO_JOURNAL "<journal>"
#define PSEUDO_METADATA "<metadata>"
#define PSEUDO_SWAP "<swap>"
#define PSEUDO_FREE "<free space>"
#define PSEUDO_ENCRYPTED "<encrypted>"
#define PSEUDO_UNKNOWN "<unknown>"
#define PSEUDO_OUTSIDE "<outside of file systems>"

#endif /* NBDEDUP_FILES_PROTOCOL_H */
