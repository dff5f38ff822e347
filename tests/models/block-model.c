/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "models/block-model.h"
#include "rigs/testutil.h"

static _Atomic uint64_t clock_now = 1;

uint64_t
block_model_stamp (void)
{
  return atomic_fetch_add (&clock_now, 1);
}

static void
block_init (struct model_block *b)
{
  pthread_mutex_init (&b->lock, NULL);
  b->nr = b->max = 1;
  b->states = xcalloc (1, sizeof *b->states);
  b->states[0].answered = 1;
  b->states[0].op.kind = '0';
}

static void
block_destroy (struct model_block *b)
{
  unsigned i;

  for (i = 0; i < b->nr; ++i)
    free (b->states[i].data);
  free (b->states);
  pthread_mutex_destroy (&b->lock);
}

struct block_model *
block_model_new (const char *name, uint32_t block_size, uint64_t size)
{
  struct block_model *m = xcalloc (1, sizeof *m);
  uint64_t i;

  snprintf (m->name, sizeof m->name, "%s", name);
  m->block_size = block_size;
  m->size = size;
  m->nr_blocks = (size + block_size - 1) / block_size;
  m->blocks = xcalloc (m->nr_blocks, sizeof *m->blocks);
  for (i = 0; i < m->nr_blocks; ++i)
    block_init (&m->blocks[i]);
  return m;
}

void
block_model_free (struct block_model *m)
{
  uint64_t i;

  for (i = 0; i < m->nr_blocks; ++i)
    block_destroy (&m->blocks[i]);
  free (m->blocks);
  free (m);
}

static uint64_t
first_block (const struct block_model *m, uint64_t offset)
{
  return offset / m->block_size;
}

static uint64_t
last_block (const struct block_model *m, uint64_t offset, uint64_t len)
{
  assert (len > 0 && offset + len <= m->size);
  return (offset + len - 1) / m->block_size;
}

void
block_model_lock (struct block_model *m, uint64_t offset, uint64_t len)
{
  uint64_t i, last = last_block (m, offset, len);

  for (i = first_block (m, offset); i <= last; ++i)
    pthread_mutex_lock (&m->blocks[i].lock);
}

void
block_model_unlock (struct block_model *m, uint64_t offset, uint64_t len)
{
  uint64_t i, last = last_block (m, offset, len);

  for (i = first_block (m, offset); i <= last; ++i)
    pthread_mutex_unlock (&m->blocks[i].lock);
}

/* Forget the first 'n' states. */
static void
drop_states (struct model_block *b, unsigned n)
{
  unsigned i;

  assert (n < b->nr);
  for (i = 0; i < n; ++i)
    free (b->states[i].data);
  b->nr -= n;
  memmove (b->states, b->states + n, b->nr * sizeof b->states[0]);
}

/* The last state that an answered flush covers; 0 if there is none later
 * than the base.
 */
static unsigned
floor_of (const struct block_model *m, const struct model_block *b)
{
  uint64_t flushed = atomic_load (&m->flushed);
  unsigned i;

  for (i = b->nr - 1; i > 0; --i)
    if (b->states[i].answered && b->states[i].answered < flushed)
      break;
  return i;
}

/* The part of 'block' that a range covers: its start and length in the
 * block, and where that is in the range.
 */
static void
part_of (const struct block_model *m, uint64_t block, uint64_t offset,
         uint64_t len, uint32_t *start, uint32_t *n, uint64_t *from)
{
  uint64_t begin = block * m->block_size;
  uint64_t end = begin + m->block_size;
  uint64_t lo = offset > begin ? offset : begin;
  uint64_t hi = offset + len < end ? offset + len : end;

  *start = lo - begin;
  *n = hi - lo;
  *from = lo - offset;
}

void
block_model_begin (struct block_model *m, const struct model_op *op,
                   const void *data)
{
  uint64_t i, from, last = last_block (m, op->offset, op->len);
  uint32_t start, n;

  for (i = first_block (m, op->offset); i <= last; ++i) {
    struct model_block *b = &m->blocks[i];
    struct model_state *s;
    const uint8_t *before;

    drop_states (b, floor_of (m, b));
    if (b->nr == b->max) {
      b->max = b->max * 2 + 2;
      b->states = realloc (b->states, b->max * sizeof b->states[0]);
      if (b->states == NULL)
        die ("out of memory");
    }
    before = b->states[b->nr - 1].data;
    s = &b->states[b->nr++];
    s->op = *op;
    s->answered = 0;
    part_of (m, i, op->offset, op->len, &start, &n, &from);

    if (data == NULL && (n == m->block_size || before == NULL)) {
      s->data = NULL;
      continue;
    }
    s->data = xmalloc (m->block_size);
    if (n < m->block_size) {
      if (before)
        memcpy (s->data, before, m->block_size);
      else
        memset (s->data, 0, m->block_size);
    }
    if (data)
      memcpy (s->data + start, (const uint8_t *) data + from, n);
    else
      memset (s->data + start, 0, n);
  }
}

void
block_model_answered (struct block_model *m, const struct model_op *op)
{
  uint64_t i, last = last_block (m, op->offset, op->len);
  uint64_t stamp = block_model_stamp ();

  for (i = first_block (m, op->offset); i <= last; ++i) {
    struct model_block *b = &m->blocks[i];

    assert (b->states[b->nr - 1].answered == 0);
    b->states[b->nr - 1].answered = stamp;
    if (op->fua)
      drop_states (b, b->nr - 1);
  }
}

void
block_model_flushed (struct block_model *m, uint64_t stamp)
{
  uint64_t old = atomic_load (&m->flushed);

  while (old < stamp &&
         !atomic_compare_exchange_weak (&m->flushed, &old, stamp))
    ;
}

static bool
state_equals (const struct model_state *s, const uint8_t *buf, uint32_t start,
              uint32_t n)
{
  return s->data ? memcmp (s->data + start, buf, n) == 0 : all_zero (buf, n);
}

static void
print_state (const char *what, const struct model_state *s)
{
  fprintf (stderr,
           "  %s %c%s thread %u op %u offset %" PRIu64 " len %" PRIu64
           " %s %" PRIu64 "%s\n",
           what, s->op.kind, s->op.fua ? "+FUA" : "", s->op.thread,
           s->op.number, s->op.offset, s->op.len,
           s->answered ? "answered at" : "not answered", s->answered,
           s->data ? "" : " (the block is zero)");
}

static void
print_difference (const struct model_state *s, const uint8_t *buf,
                  uint32_t start, uint32_t n)
{
  static const uint8_t zeroes[16];
  uint32_t i, first = n, last = 0, nr = 0;
  unsigned j;

  for (i = 0; i < n; ++i)
    if (buf[i] != (s->data ? s->data[start + i] : 0)) {
      first = first < i ? first : i;
      last = i;
      nr++;
    }
  fprintf (stderr,
           "    differs in %u bytes, from byte %u to byte %u of the "
           "block; there it has",
           nr, start + first, start + last);
  for (j = 0; j < 8 && first + j < n; ++j)
    fprintf (stderr, " %02x", buf[first + j]);
  fprintf (stderr, ", expected");
  for (j = 0; j < 8 && first + j < n; ++j)
    fprintf (stderr, " %02x", s->data ? s->data[start + first + j] : zeroes[j]);
  fputc ('\n', stderr);
}

bool
block_model_matches (struct block_model *m, uint64_t offset, uint64_t len,
                     const uint8_t *buf)
{
  uint64_t i, from, last = last_block (m, offset, len);
  uint32_t start, n;

  for (i = first_block (m, offset); i <= last; ++i) {
    struct model_block *b = &m->blocks[i];
    struct model_state *s = &b->states[b->nr - 1];

    part_of (m, i, offset, len, &start, &n, &from);
    if (state_equals (s, buf + from, start, n))
      continue;
    fprintf (stderr,
             "volume %s (%" PRIu64 " bytes, blocks of %u), block "
             "%" PRIu64 " at %" PRIu64 ": a read of %" PRIu64 " bytes at "
             "%" PRIu64 " returned something else than the last write\n",
             m->name, m->size, m->block_size, i, i * m->block_size, len,
             offset);
    print_state ("last write:", s);
    print_difference (s, buf + from, start, n);
    return false;
  }
  return true;
}

/* Find the block that has the content that was read. */
static void
look_elsewhere (struct block_model *m, const uint8_t *buf)
{
  uint64_t i;
  unsigned j;

  if (all_zero (buf, m->block_size)) {
    fprintf (stderr, "  the block was read as all zeroes\n");
    return;
  }
  for (i = 0; i < m->nr_blocks; ++i)
    for (j = 0; j < m->blocks[i].nr; ++j)
      if (m->blocks[i].states[j].data &&
          memcmp (m->blocks[i].states[j].data, buf, m->block_size) == 0) {
        fprintf (stderr, "  what was read is a state of block %" PRIu64 "\n",
                 i);
        return;
      }
}

/* Is it a state from number 'from' on? */
static bool
check_from (struct block_model *m, uint64_t block, unsigned from,
            const uint8_t *buf)
{
  struct model_block *b = &m->blocks[block];
  unsigned i, j, n;

  for (i = from; i < b->nr; ++i)
    if (state_equals (&b->states[i], buf, 0, m->block_size))
      return true;

  fprintf (stderr,
           "volume %s (%" PRIu64 " bytes, blocks of %u), block "
           "%" PRIu64 " at %" PRIu64 ": none of the %u states it may have\n",
           m->name, m->size, m->block_size, block, block * m->block_size,
           b->nr - from);
  fprintf (stderr, "  last flush answered was sent at %" PRIu64 "\n",
           (uint64_t) atomic_load (&m->flushed));
  n = b->nr - from;
  for (j = 0; j < n; ++j) {
    if (n > 12 && j == 6) /* print the first and last six */
      j = n - 6;
    i = from + j;
    print_state (j == 0 ? "durable:" : "allowed:", &b->states[i]);
    print_difference (&b->states[i], buf, 0, m->block_size);
  }
  for (i = 0; i < from; ++i)
    if (state_equals (&b->states[i], buf, 0, m->block_size))
      print_state ("what was read is the older, overwritten state:",
                   &b->states[i]);
  look_elsewhere (m, buf);
  return false;
}

bool
block_model_check (struct block_model *m, uint64_t block, const uint8_t *buf)
{
  return check_from (m, block, floor_of (m, &m->blocks[block]), buf);
}

bool
block_model_check_running (struct block_model *m, uint64_t block,
                           const uint8_t *buf)
{
  const struct model_block *b = &m->blocks[block];
  unsigned from = b->nr - 1;

  while (from > 0 && !b->states[from].answered)
    from--;
  return check_from (m, block, from, buf);
}

void
block_model_adopt (struct block_model *m, uint64_t block, const uint8_t *buf)
{
  struct model_block *b = &m->blocks[block];
  struct model_state *s = &b->states[0];

  drop_states (b, b->nr - 1);
  if (all_zero (buf, m->block_size)) {
    free (s->data);
    s->data = NULL;
  }
  else {
    if (s->data == NULL)
      s->data = xmalloc (m->block_size);
    memcpy (s->data, buf, m->block_size);
  }
  s->answered = block_model_stamp ();
}

void
block_model_resize (struct block_model *m, uint64_t size)
{
  uint64_t i, nr_blocks = (size + m->block_size - 1) / m->block_size;
  uint32_t tail = size % m->block_size;
  struct model_state *s;

  for (i = nr_blocks; i < m->nr_blocks; ++i)
    block_destroy (&m->blocks[i]);
  m->blocks = realloc (m->blocks, nr_blocks * sizeof m->blocks[0]);
  if (m->blocks == NULL)
    die ("out of memory");
  for (i = m->nr_blocks; i < nr_blocks; ++i)
    block_init (&m->blocks[i]);

  if (size < m->size && tail) {
    assert (m->blocks[nr_blocks - 1].nr == 1);
    s = &m->blocks[nr_blocks - 1].states[0];
    if (s->data)
      memset (s->data + tail, 0, m->block_size - tail);
    if (s->data && all_zero (s->data, m->block_size)) {
      free (s->data);
      s->data = NULL;
    }
  }
  m->nr_blocks = nr_blocks;
  m->size = size;
}
