/* SPDX-License-Identifier: BSD-3-Clause */

/* See cksum-chain.h. */

#ifdef HAVE_CONFIG_H
#include <config.h>
#endif

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fullio.h"
#include "vfs/cksum-chain.h"
#include "vfs/cksum-int.h"

/* SQLite's file format: big-endian, except for the words of the checksum, whose
 * order is in the lowest bit of the magic number.
 */
#define WAL_MAGIC UINT32_C (0x377f0682)
#define WAL_FORMAT 3007000

struct frame_walk {
  const int *fds;
  struct cksum_chain *c;
  bool big_endian;
  uint32_t sum[2];   /* up to the last frame that fitted */
  uint64_t nr;       /* frames that fitted */
  uint64_t bad[2];   /* up to that frame */
  uint8_t *frame[2]; /* owned */
};

static uint32_t
get_be (const uint8_t *p)
{
  uint32_t v;

  memcpy (&v, p, sizeof v);
  return be32toh (v);
}

static void
add_words (bool big_endian, const uint8_t *p, size_t len, uint32_t sum[2])
{
  uint32_t v[2];
  size_t i;

  for (i = 0; i < len; i += sizeof v) {
    memcpy (v, p + i, sizeof v);
    if (big_endian) {
      v[0] = be32toh (v[0]);
      v[1] = be32toh (v[1]);
    }
    else {
      v[0] = le32toh (v[0]);
      v[1] = le32toh (v[1]);
    }
    sum[0] += v[0] + sum[1];
    sum[1] += v[1] + sum[0];
  }
}

static bool
begin (struct frame_walk *w, const uint8_t *header)
{
  uint32_t magic = get_be (header);

  memset (w->sum, 0, sizeof w->sum);
  w->nr = 0;
  w->big_endian = magic & 1;
  w->c->page_size = get_be (header + 8);
  if ((magic & ~UINT32_C (1)) != WAL_MAGIC ||
      get_be (header + 4) != WAL_FORMAT || !is_page_size (w->c->page_size))
    return false;
  add_words (w->big_endian, header, 24, w->sum);
  return w->sum[0] == get_be (header + 24) && w->sum[1] == get_be (header + 28);
}

/* True if the next frame of file i continues the chain. */
static bool
fits (struct frame_walk *w, unsigned i, uint32_t sum[2])
{
  uint32_t size = w->c->page_size;
  uint8_t *frame = w->frame[i];

  if (w->fds[i] == -1 ||
      full_pread (w->fds[i], frame, FRAME_HEADER_BYTES + size,
                  cksum_frame_offset (w->nr, size)) !=
        (int64_t) (FRAME_HEADER_BYTES + size) ||
      memcmp (frame + 8, w->c->header + 16, 8) != 0 || get_be (frame) == 0)
    return false;
  memcpy (sum, w->sum, sizeof w->sum);
  add_words (w->big_endian, frame, 8, sum);
  add_words (w->big_endian, frame + FRAME_HEADER_BYTES, size, sum);
  return sum[0] == get_be (frame + 16) && sum[1] == get_be (frame + 20);
}

/* Returns the next frame; NULL: neither file has one that fits.  'good' says
 * which files have it.
 */
static const uint8_t *
next_frame (struct frame_walk *w, bool good[2])
{
  uint32_t sum[2][2];
  unsigned i;

  for (i = 0; i < 2; ++i)
    good[i] = fits (w, i, sum[i]);
  if (!good[0] && !good[1])
    return NULL;
  i = good[0] ? 0 : 1;
  memcpy (w->sum, sum[i], sizeof w->sum);
  w->nr++;
  return w->frame[i];
}

static int
alloc_frames (struct frame_walk *w, uint8_t *room)
{
  if (room == NULL)
    return nbdedup_fail (ENOMEM, "no memory");
  w->frame[0] = room;
  w->frame[1] = room + FRAME_HEADER_BYTES + PAGE_SIZE_MAX;
  return 0;
}

#define FRAMES_ROOM (2 * (FRAME_HEADER_BYTES + PAGE_SIZE_MAX))

static bool
has_header (int fd, const uint8_t *header)
{
  uint8_t found[WAL_HEADER_BYTES];

  return fd != -1 && full_pread (fd, found, sizeof found, 0) == sizeof found &&
    memcmp (found, header, sizeof found) == 0;
}

int
cksum_chain_read (const int fds[2], unsigned which, struct cksum_chain *c,
                  void (*fn) (void *opaque, uint32_t number,
                              const uint8_t *page, uint32_t page_size,
                              bool commit),
                  void *opaque)
{
  CLEANUP_FREE uint8_t *room = malloc (FRAMES_ROOM);
  struct frame_walk w = { .fds = fds, .c = c };
  const uint8_t *frame;
  bool good[2];

  if (alloc_frames (&w, room) == -1)
    return -1;
  memset (c, 0, sizeof *c);
  if (fds[which] == -1 ||
      full_pread (fds[which], c->header, sizeof c->header, 0) !=
        sizeof c->header ||
      !begin (&w, c->header))
    return 0;
  w.bad[0] = c->bad[0] = !has_header (fds[0], c->header);
  w.bad[1] = c->bad[1] = !has_header (fds[1], c->header);
  while ((frame = next_frame (&w, good)) != NULL) {
    w.bad[0] += !good[0];
    w.bad[1] += !good[1];
    fn (opaque, get_be (frame), frame + FRAME_HEADER_BYTES, c->page_size,
        get_be (frame + 4) != 0);
    if (get_be (frame + 4) != 0) {
      c->nr_frames = w.nr;
      memcpy (c->bad, w.bad, sizeof c->bad);
    }
  }
  return 1;
}

int
cksum_chain_repair (const int fds[2], unsigned which,
                    const struct cksum_chain *c)
{
  CLEANUP_FREE uint8_t *room = malloc (FRAMES_ROOM);
  struct cksum_chain copy = *c;
  struct frame_walk w = { .fds = fds, .c = &copy };
  const uint8_t *frame;
  bool good[2];

  if (room == NULL || alloc_frames (&w, room) == -1)
    return -1;
  if (c->bad[which] == 0)
    return 0;
  begin (&w, c->header);
  while (w.nr < c->nr_frames) {
    frame = next_frame (&w, good);
    if (frame == NULL) { /* cksum_chain_read has read it */
      errno = EIO;
      return -1;
    }
    if (!good[which] &&
        full_pwrite (fds[which], frame, FRAME_HEADER_BYTES + c->page_size,
                     cksum_frame_offset (w.nr - 1, c->page_size)) == -1)
      return -1;
  }
  /* Write the header last.  Until then an older WAL is unchanged, or has lost
   * its frames; the other file has the whole chain.
   */
  if (!has_header (fds[which], c->header) &&
      full_pwrite (fds[which], c->header, sizeof c->header, 0) == -1)
    return -1;
  return full_datasync (fds[which]);
}

bool
cksum_chain_db_page (int fd, uint32_t page_size, uint64_t number, uint8_t *page)
{
  uint64_t offset = (number - 1) * page_size;

  return fd != -1 &&
    full_pread (fd, page, page_size, offset) == (int64_t) page_size &&
    cksum_page_is_good (page, page_size, offset);
}

uint32_t
cksum_chain_db_page_size (const uint8_t *page)
{
  return cksum_parse_db_header (page);
}
