/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/bytes.h"
#include "base/fullio.h"
#include "base/owner.h"
#include "base/xxh3.h"
#include "disk/warm-file.h"

/* The header:
 *
 *   OFFSET  SIZE  FIELD
 *      0      8   magic "NBDWARM2"
 *      8     16   UUID of the pool
 *     24      8   seed of the sections' checksums: random
 *     32      8   epoch  )
 *     40      8   fold   ) of the filter; all 0: there is no filter
 *     48      8   entries)
 *     56      8   XXH3 of bytes 0 to 55
 *
 * A section:
 *
 *      0      4   type
 *      4      4   part
 *      8      8   length of the payload, a multiple of 8
 *     16      8   numbers in the part of the filter
 *     24    len   payload
 *  24+len     8   XXH3, with the seed, of all bytes before
 */
#define MAGIC UINT64_C (0x324d52415744424e)
#define HEADER_LEN 64u
#define SECTION_LEN 24u
#define CKSUM_LEN 8u
/* The filter's parts, and the lists. */
#define SECTIONS_MAX 80u
#define PIECE_BYTES 65536u
/* This much of the file system stays free, and so many times the file. */
#define FREE_BYTES (UINT64_C (64) << 20)
#define FREE_TIMES 4

struct warm_file {
  int fd; /* owned */
  uint8_t header[HEADER_LEN];
  struct warm_stamp stamp;
  uint64_t seed;
  struct warm_section sections[SECTIONS_MAX];
  unsigned nr;
};

struct warm_writer {
  int fd;                /* owned */
  char *path, *new_path; /* owned */
  uint8_t *buf;          /* owned; PIECE_BYTES */
  size_t nr_buf;         /* bytes in it, not written yet */
  uint64_t written;      /* bytes of the file before them */
  uint64_t seed;
  uint64_t left;      /* bytes of the payload not written yet */
  XXH3_state_t *hash; /* owned; of the section */
  bool failed;
};

/*----------------------------------------------------------------------
 * The header
 */

static void
header_pack (uint8_t buf[HEADER_LEN], const uint8_t uuid[UUID_LEN],
             uint64_t seed, const struct warm_stamp *stamp)
{
  put_le64 (buf, MAGIC);
  memcpy (buf + 8, uuid, UUID_LEN);
  put_le64 (buf + 24, seed);
  put_le64 (buf + 32, stamp->epoch);
  put_le64 (buf + 40, stamp->fold);
  put_le64 (buf + 48, stamp->index_entries);
  put_le64 (buf + 56, XXH3_64bits (buf, 56));
}

static bool
header_unpack (struct warm_file *f, const uint8_t uuid[UUID_LEN])
{
  const uint8_t *buf = f->header;

  if (get_le64 (buf) != MAGIC || memcmp (buf + 8, uuid, UUID_LEN) != 0 ||
      get_le64 (buf + 56) != XXH3_64bits (buf, 56))
    return false;
  f->seed = get_le64 (buf + 24);
  f->stamp = (struct warm_stamp) {
    .epoch = get_le64 (buf + 32),
    .fold = get_le64 (buf + 40),
    .index_entries = get_le64 (buf + 48),
  };
  return true;
}

/*----------------------------------------------------------------------
 * Reading
 */

/* The sections' places.  What is said here is proved by warm_file_read. */
static void
find_sections (struct warm_file *f, uint64_t size)
{
  uint8_t buf[SECTION_LEN];
  struct warm_section *s;
  uint64_t at = HEADER_LEN;

  while (f->nr < SECTIONS_MAX && size - at >= SECTION_LEN + CKSUM_LEN &&
         full_pread (f->fd, buf, sizeof buf, at) == sizeof buf) {
    s = &f->sections[f->nr];
    *s = (struct warm_section) {
      .type = get_le32 (buf),
      .part = get_le32 (buf + 4),
      .len = get_le64 (buf + 8),
      .nr = get_le64 (buf + 16),
      .offset = at + SECTION_LEN,
    };
    if (s->len % 8 != 0 || s->len > size - at - SECTION_LEN - CKSUM_LEN)
      return;
    at = s->offset + s->len + CKSUM_LEN;
    f->nr++;
  }
}

struct warm_file *
warm_file_open (const char *path, const uint8_t uuid[UUID_LEN])
{
  struct warm_file *f = calloc (1, sizeof *f);
  struct stat st;

  if (f == NULL)
    return NULL;
  /* Not a FIFO's other end, nor what a link leads to. */
  f->fd = open (path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (f->fd == -1 || fstat (f->fd, &st) == -1 || !S_ISREG (st.st_mode) ||
      full_pread (f->fd, f->header, HEADER_LEN, 0) != HEADER_LEN ||
      !header_unpack (f, uuid)) {
    warm_file_close (f);
    return NULL;
  }
  find_sections (f, (uint64_t) st.st_size);
  return f;
}

void
warm_file_close (struct warm_file *f)
{
  if (f == NULL)
    return;
  if (f->fd != -1)
    close (f->fd);
  free (f);
}

bool
warm_file_is_of (const struct warm_file *f, const struct warm_stamp *stamp)
{
  return stamp->epoch != 0 && f->stamp.epoch == stamp->epoch &&
    f->stamp.fold == stamp->fold &&
    f->stamp.index_entries == stamp->index_entries;
}

const struct warm_section *
warm_file_find (const struct warm_file *f, enum warm_type type, uint32_t part)
{
  unsigned i;

  for (i = 0; i < f->nr; ++i)
    if (f->sections[i].type == type && f->sections[i].part == part)
      return &f->sections[i];
  return NULL;
}

static int
read_payload (struct warm_file *f, const struct warm_section *s,
              XXH3_state_t *hash, uint8_t *buf,
              bool (*fn) (void *, uint64_t, const uint8_t *, size_t),
              void *opaque)
{
  uint64_t done;
  size_t n;

  for (done = 0; done < s->len; done += n) {
    n = s->len - done < PIECE_BYTES ? (size_t) (s->len - done) : PIECE_BYTES;
    if (full_pread (f->fd, buf, n, s->offset + done) != (int64_t) n)
      return -1;
    xxh3_64_update (hash, buf, n);
    if (!fn (opaque, done, buf, n))
      return -1;
  }
  if (full_pread (f->fd, buf, CKSUM_LEN, s->offset + s->len) != CKSUM_LEN)
    return -1;
  return get_le64 (buf) == XXH3_64bits_digest (hash) ? 0 : -1;
}

int
warm_file_read (struct warm_file *f, const struct warm_section *s,
                bool (*fn) (void *, uint64_t, const uint8_t *, size_t),
                void *opaque)
{
  XXH3_state_t *hash = XXH3_createState ();
  uint8_t *buf = malloc (PIECE_BYTES);
  int r = -1;

  if (hash && buf &&
      full_pread (f->fd, buf, SECTION_LEN, s->offset - SECTION_LEN) ==
        SECTION_LEN) {
    XXH3_64bits_reset_withSeed (hash, f->seed);
    XXH3_64bits_update (hash, buf, SECTION_LEN);
    r = read_payload (f, s, hash, buf, fn, opaque);
  }
  XXH3_freeState (hash);
  free (buf);
  return r;
}

int
warm_file_restamp (struct warm_file *f, const char *path,
                   const struct warm_stamp *stamp)
{
  uint8_t uuid[UUID_LEN];
  struct stat mine, there;
  int fd = open (path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  int r = -1;

  if (fd == -1)
    return -1;
  memcpy (uuid, f->header + 8, UUID_LEN);
  header_pack (f->header, uuid, f->seed, stamp);
  if (fstat (f->fd, &mine) == 0 && fstat (fd, &there) == 0 &&
      mine.st_dev == there.st_dev && mine.st_ino == there.st_ino)
    r = full_pwrite (fd, f->header, HEADER_LEN, 0);
  return close (fd) == -1 ? -1 : r;
}

/*----------------------------------------------------------------------
 * Writing
 */

static char *
new_name (const char *path)
{
  char *name;

  return asprintf (&name, "%s.new", path) == -1 ? NULL : name;
}

static void
writer_free (struct warm_writer *w)
{
  if (w->fd != -1)
    close (w->fd);
  XXH3_freeState (w->hash);
  free (w->buf);
  free (w->path);
  free (w->new_path);
  free (w);
}

static void
put_out (struct warm_writer *w)
{
  w->failed = w->failed ||
    full_pwrite (w->fd, w->buf, w->nr_buf, w->written) == -1;
  w->written += w->nr_buf;
  w->nr_buf = 0;
}

static void
put (struct warm_writer *w, const void *buf, size_t len)
{
  const uint8_t *p = buf;
  size_t n;

  for (; len > 0; p += n, len -= n) {
    assert (w->nr_buf < PIECE_BYTES);
    n = PIECE_BYTES - w->nr_buf < len ? PIECE_BYTES - w->nr_buf : len;
    memcpy (w->buf + w->nr_buf, p, n);
    w->nr_buf += n;
    if (w->nr_buf == PIECE_BYTES)
      put_out (w);
  }
}

/* What a killed process has left under this name is removed; a new file is
 * certainly not a link to another one.
 */
static int
make_file (const char *path)
{
  unlink (path);
  return open_owned (path, O_WRONLY | O_EXCL | O_CLOEXEC, 0600);
}

struct warm_writer *
warm_writer_new (const char *path, const uint8_t uuid[UUID_LEN],
                 const struct warm_stamp *stamp)
{
  const struct warm_stamp none = { 0 };
  struct warm_writer *w = calloc (1, sizeof *w);
  uint8_t header[HEADER_LEN];

  if (w == NULL)
    return NULL;
  w->fd = -1;
  w->path = strdup (path);
  w->buf = malloc (PIECE_BYTES);
  w->new_path = new_name (path);
  w->hash = XXH3_createState ();
  if (w->path == NULL || w->buf == NULL || w->new_path == NULL ||
      w->hash == NULL ||
      getrandom (&w->seed, sizeof w->seed, 0) != sizeof w->seed ||
      (w->fd = make_file (w->new_path)) == -1) {
    writer_free (w);
    return NULL;
  }
  header_pack (header, uuid, w->seed, stamp ? stamp : &none);
  put (w, header, sizeof header);
  return w;
}

void
warm_writer_begin (struct warm_writer *w, const struct warm_section *s)
{
  uint8_t buf[SECTION_LEN];

  assert (w->left == 0 && s->len % 8 == 0);
  put_le32 (buf, s->type);
  put_le32 (buf + 4, s->part);
  put_le64 (buf + 8, s->len);
  put_le64 (buf + 16, s->nr);
  XXH3_64bits_reset_withSeed (w->hash, w->seed);
  w->left = s->len + SECTION_LEN;
  warm_writer_put (w, buf, sizeof buf);
}

void
warm_writer_put (struct warm_writer *w, const void *buf, size_t len)
{
  assert (len <= w->left);
  xxh3_64_update (w->hash, buf, len);
  put (w, buf, len);
  w->left -= len;
}

void
warm_writer_end (struct warm_writer *w)
{
  uint8_t buf[CKSUM_LEN];

  assert (w->left == 0);
  put_le64 (buf, XXH3_64bits_digest (w->hash));
  put (w, buf, sizeof buf);
}

/* No sync: the checksums tell a reader what a loss of power has left. */
int
warm_writer_finish (struct warm_writer *w)
{
  int r = 0;

  assert (w->left == 0); /* warm_writer_end came before */
  put_out (w);
  if (w->failed || rename (w->new_path, w->path) == -1) {
    unlink (w->new_path);
    r = -1;
  }
  writer_free (w);
  return r;
}

bool
warm_file_fits (const char *path, uint64_t bytes)
{
  struct statvfs fs;

  return statvfs (path, &fs) == 0 &&
    (uint64_t) fs.f_bavail * fs.f_frsize >= FREE_BYTES + FREE_TIMES * bytes;
}

void
warm_file_remove (const char *path)
{
  char *new_path = new_name (path);

  unlink (path);
  if (new_path)
    unlink (new_path);
  free (new_path);
}
