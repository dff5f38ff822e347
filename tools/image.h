/* SPDX-License-Identifier: BSD-3-Clause */

/* Disk images: the sources and targets of import and export.
 *
 * A volume is an image, too (image-volume.c), so both commands copy one image
 * to another (copy.c).  The others are files, devices and streams
 * (image-file.c), exports of an NBD server (image-nbd.c), and files in one of
 * QEMU's formats, through qemu-nbd (image-qemu.c).
 *
 * Errors: -1 or NULL, and the text in image_error (), without a leading
 * "import:".  Any number of threads may call read, write and zero at once, on
 * an image that is not a stream.
 */

#ifndef NBDEDUP_IMAGE_H
#define NBDEDUP_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include <sys/stat.h>

#include "nbdedup.h"

struct image;
struct options;

/* Functions that an image never needs (as only a source or target) are NULL. */
struct image_ops {
  /* Returns less than 'len' at the end of the image only.  Of a stream: the
   * next bytes.
   */
  int64_t (*read) (struct image *image, uint8_t *buf, uint32_t len,
                   uint64_t offset);
  int (*write) (struct image *image, const uint8_t *buf, uint32_t len,
                uint64_t offset);
  int (*zero) (struct image *image, uint64_t len, uint64_t offset);

  /* Call image_add_extent for the extents from 'offset' on, at most 'len'
   * bytes, at least one extent.  NULL: all is data.
   */
  int (*extents) (struct image *image, uint64_t len, uint64_t offset);

  /* Make all requests fail soon; may be called while they run. */
  void (*cancel) (struct image *image);

  /* Close and free.  Without 'failed' a target is complete and durable
   * when this returns 0; with 'failed' this removes a new target.
   */
  int (*close) (struct image *image, bool failed);
};

#define IMAGE_EXTENTS_MAX 1024

struct image_extent {
  uint64_t end;
  bool hole;
};

struct image {
  const struct image_ops *ops;
  char *name;     /* owned; for messages */
  uint64_t size;  /* bytes; of a stream: those read so far */
  bool is_stream; /* in order only; a source's end is unknown */

  /* A target's. */
  bool starts_zero;   /* reads as zeroes where not written */
  bool stays_partial; /* a failed copy destroys the old content */
  uint32_t granule;   /* shorter runs of zeroes are written as data */

  uint32_t align;     /* extents are joined to units of this */
  unsigned in_flight; /* useful number of parallel requests */

  /* The last result of extents. */
  struct image_extent extents[IMAGE_EXTENTS_MAX];
  unsigned nr_extents, next_extent;
};

/* The reason of the last failure in this thread.  image_fail returns -1. */
extern const char *image_error (void);
extern int image_fail (const char *fmt, ...)
  __attribute__ ((format (printf, 1, 2)));

/* Allocate 'bytes' with an image at the start, and fill in the common part. */
extern void *
image_new (size_t bytes, const struct image_ops *ops, const char *name);

/* Free the image; its allocator has freed all else that the image owned. */
extern void image_free (struct image *image);

/* Add an extent of one kind up to 'end'.  Returns 1 when there is no more room.
 */
extern int image_add_extent (struct image *image, uint64_t end, bool hole);

/* The extent that 'offset' is in: its end and kind.  Offsets may go back
 * within an extent only.  Not for several threads at once.
 */
extern int
image_extent (struct image *image, uint64_t offset, uint64_t *end, bool *hole);

/* Does nothing for NULL. */
extern int image_close (struct image *image, bool failed);

/*----------------------------------------------------------------------
 * Kinds of images
 */

/* "nbd://", "nbd+unix://" ... */
extern bool image_is_uri (const char *file);

/* Open a regular file or a block device for reading, and no other kind: opening
 * a FIFO or a tape has side effects.
 */
extern int image_file_open (const char *file, struct stat *st);

/* "-": standard input. */
extern struct image *image_file_source (const char *file);
extern struct image *image_file_target (const char *file, uint64_t size);

/* The beginning of a source that is a file or a stream, at most 'len' bytes;
 * bytes from a stream are kept for read.
 */
extern int64_t
image_file_head (struct image *image, uint8_t *buf, uint32_t len);

/* Its descriptor, which stays the image's. */
extern int image_file_fd (const struct image *image);

/* 'uri', or (with NULL) the server behind socket 'fd', which the image then
 * owns.  'name' is for messages.
 */
extern struct image *
image_nbd_source (const char *uri, int fd, const char *name);
extern struct image *
image_nbd_target (const char *uri, int fd, const char *name, uint64_t size);

/* A URI in its parts, and a connection to its server (owned by the caller),
 * from which nothing has been read yet.
 */
struct image_uri;
extern struct image_uri *image_uri_parse (const char *uri);
extern void image_uri_free (struct image_uri *uri);
extern const char *image_uri_export (const struct image_uri *uri);
extern int image_uri_connect (const struct image_uri *uri);

/* 'format' as QEMU names it.  *is_unreadable: the file is not in it. */
extern struct image *image_qemu_source (const char *file, const char *format,
                                        bool allow_backing,
                                        bool *is_unreadable);
extern struct image *
image_qemu_target (const char *file, const char *format, uint64_t size);

/* The volume stays open: close it after the image. */
extern struct image *
image_volume_new (struct nbdedup_handle *remote, const char *name);

/* A target that passes written data to 'engine' (not owned), which was made
 * with 'settings'.
 */
extern struct image *
image_estimate_new (struct nbdedup_estimate *engine,
                    const struct nbdedup_estimate_settings *settings);

/* A target that offers to 'client' the content that 'finder' finds (neither is
 * owned).
 */
extern struct image *
image_finder_new (struct nbdedup_finder *finder, struct nbdedup_client *client);

/*----------------------------------------------------------------------
 * image-open.c: open the image that the user named
 */

/* Exit for wrong usage if 'file' cannot be read, or written, in 'format' (NULL:
 * not given), whatever it is.
 */
extern void image_check_source (const struct options *opts, const char *file,
                                const char *format);
extern void image_check_target (const struct options *opts, const char *file,
                                const char *format);

/* 'format' NULL: detect it; *detected (owned by the caller) is then the
 * format if it is not raw, else NULL.  'allow_backing': the image may consist
 * of several files, or have backing files.
 */
extern struct image *image_open_source (const char *file, const char *format,
                                        bool allow_backing, char **detected);

/* Open a target for 'size' bytes.  Files in 'pool', the pool's directory, are
 * refused.  'format' NULL: raw.
 */
extern struct image *image_open_target (const char *file, const char *format,
                                        const char *pool, uint64_t size);

#endif /* NBDEDUP_IMAGE_H */
