/* SPDX-License-Identifier: BSD-3-Clause */

/* The ranges that the parent asks for, and a bit for each of their sectors: has
 * it an owner?  In a damaged file system several files can have one block; here
 * the first of them gets it.
 */

#include <config.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

#define SECTOR 512
#define WORD 64 /* bits */

static struct byte_range *ranges;
static uint64_t *firsts; /* of each range: sectors in those before it */
static size_t nr_ranges;
static uint64_t *claimed; /* a bit for each sector of the ranges */
static char *last_owner;  /* of the last OWNER message */

static void *
get_memory (size_t len)
{
  void *p = calloc (1, len);

  if (p == NULL)
    give_up ("out of memory");
  return p;
}

void
read_ranges (void)
{
  const int fd = open (FILES_RANGES, O_RDONLY);
  uint64_t sectors = 0;
  struct stat st;
  size_t i;

  if (fd == -1 || fstat (fd, &st) == -1)
    give_up ("run by \"nbdedup drift --files\" only");
  nr_ranges = st.st_size / sizeof *ranges;
  ranges = get_memory (st.st_size + 1);
  firsts = get_memory ((nr_ranges + 1) * sizeof *firsts);
  if (pread (fd, ranges, st.st_size, 0) != st.st_size)
    give_up ("cannot read the ranges");
  close (fd);
  for (i = 0; i < nr_ranges; ++i) {
    firsts[i] = sectors;
    sectors += ranges[i].len / SECTOR;
  }
  claimed = get_memory ((sectors / WORD + 1) * sizeof *claimed);
  last_owner = get_memory (1);
}

static void
send_owner (const char *owner)
{
  if (strcmp (owner, last_owner) == 0)
    return;
  free (last_owner);
  last_owner = strdup (owner);
  if (last_owner == NULL)
    give_up ("out of memory");
  send_text (FILES_OWNER, owner, strlen (owner));
}

/* The first range that ends behind 'offset'. */
static size_t
find_range (uint64_t offset)
{
  size_t lo = 0, hi = nr_ranges, mid;

  while (lo < hi) {
    mid = (lo + hi) / 2;
    if (ranges[mid].offset + ranges[mid].len <= offset)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

/* The first of the sectors [s, end) that has an owner, or that has none; 'end':
 * there is none.  Most sectors of a large image are like their neighbours.
 */
static uint64_t
find_sector (uint64_t s, uint64_t end, bool with_owner)
{
  const uint64_t flip = with_owner ? 0 : UINT64_MAX;
  uint64_t bits;

  for (; s < end; s += WORD - s % WORD) {
    bits = (claimed[s / WORD] ^ flip) >> s % WORD;
    if (bits != 0) {
      s += (unsigned) __builtin_ctzll (bits);
      break;
    }
  }
  return s < end ? s : end;
}

/* Of sectors 'first' to 'end' in range i, each part without an owner. */
static void
each_in_range (size_t i, uint64_t first, uint64_t end,
               void (*fn) (void *opaque, uint64_t offset, uint64_t len),
               void *opaque)
{
  const uint64_t limit = firsts[i] + end;
  uint64_t s, begin;

  for (s = firsts[i] + first; s < limit;) {
    begin = find_sector (s, limit, false);
    s = find_sector (begin, limit, true);
    if (s > begin)
      fn (opaque, ranges[i].offset + (begin - firsts[i]) * SECTOR,
          (s - begin) * SECTOR);
  }
}

void
each_unclaimed (uint64_t offset, uint64_t len,
                void (*fn) (void *opaque, uint64_t offset, uint64_t len),
                void *opaque)
{
  const uint64_t limit = len > UINT64_MAX - offset ? UINT64_MAX : offset + len;
  uint64_t begin, end;
  size_t i;

  for (i = find_range (offset); i < nr_ranges && ranges[i].offset < limit;
       ++i) {
    begin = offset > ranges[i].offset ? offset - ranges[i].offset : 0;
    end = limit - ranges[i].offset < ranges[i].len ? limit - ranges[i].offset
                                                   : ranges[i].len;
    each_in_range (i, begin / SECTOR, (end + SECTOR - 1) / SECTOR, fn, opaque);
  }
}

static void
claim_part (void *opaque, uint64_t offset, uint64_t len)
{
  const size_t i = find_range (offset);
  uint64_t s = firsts[i] + (offset - ranges[i].offset) / SECTOR;
  const uint64_t end = s + len / SECTOR;
  uint64_t next;

  send_owner (opaque);
  send_extent (offset, len);
  for (; s < end; s = next) {
    next = s + WORD - s % WORD < end ? s + WORD - s % WORD : end;
    claimed[s / WORD] |= UINT64_MAX << s % WORD &
      UINT64_MAX >> (WORD - 1 - (next - 1) % WORD);
  }
}

void
claim (const char *owner, uint64_t offset, uint64_t len)
{
  each_unclaimed (offset, len, claim_part, (void *) owner);
}
