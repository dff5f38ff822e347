/* SPDX-License-Identifier: BSD-3-Clause */

/* The headers of a WAL, of the file and of each frame.
 * Source: https://www.sqlite.org/fileformat2.html, "The Write-Ahead Log".
 */

#ifndef NBDEDUP_WAL_FORMAT_H
#define NBDEDUP_WAL_FORMAT_H

#define WAL_HEADER_BYTES 32
#define FRAME_HEADER_BYTES 24

#endif /* NBDEDUP_WAL_FORMAT_H */
