/* SPDX-License-Identifier: BSD-3-Clause */

/* Disk images as files: what import reads and export writes. */

#ifndef NBDEDUP_IMAGE_H
#define NBDEDUP_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

struct input {
  const char *name;             /* not owned; "standard input" for "-" */
  int fd;                       /* owned */
  bool is_stream;               /* read in order, length unknown */
  bool is_sparse;               /* SEEK_DATA works */
  uint64_t size;                /* bytes; a stream's: read so far */
  uint64_t data_end;            /* see input_is_hole */
  uint8_t *head;                /* owned; what a stream's probe read */
  uint32_t head_len, head_used;
};

/* All of these report failures; -1. */
extern int input_open (struct input *input, const char *file);

/* 'format' NULL: refuse what looks like anything but raw.  Else refuse what
 * is not "raw".
 */
extern int input_check_format (struct input *input, const char *format);

/* Are 'len' bytes at 'offset' in a hole?  Offsets must not decrease. */
extern bool input_is_hole (struct input *input, uint64_t offset, uint32_t len);

/* Read at 'offset' (of a stream: the next bytes).  Returns less than 'len'
 * at the end only.
 */
extern int64_t input_read (struct input *input, uint8_t *buf, uint32_t len,
                           uint64_t offset);
extern void input_close (struct input *input);

struct output {
  const char *name;             /* not owned; "standard output" for "-" */
  const char *file;             /* not owned; NULL: "-" */
  int fd;                       /* owned */
  bool is_stream;               /* written in order, zeroes too */
  bool is_device;               /* has old content where we skip */
  bool is_new;                  /* did not exist: removed if we fail */
  uint8_t *zeroes;              /* owned */
};

/* Open for 'size' bytes, and empty it.  'pool' is the pool's directory,
 * whose files are refused.
 */
extern int output_open (struct output *output, const char *file,
                        const char *pool, uint64_t size);
extern int output_write (struct output *output, const uint8_t *buf,
                         uint32_t len, uint64_t offset);
extern int output_zero (struct output *output, uint32_t len, uint64_t offset);

/* Make it durable and close it; 'failed': remove it if we made it. */
extern int output_close (struct output *output, bool failed);

#endif /* NBDEDUP_IMAGE_H */
