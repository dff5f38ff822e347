/* SPDX-License-Identifier: BSD-3-Clause */

/* See soak.h. */

#include <config.h>

#include <assert.h>
#include <sys/mman.h>

#include "soak/soak.h"

/*----------------------------------------------------------------------
 * Contents.  Their memory comes in chunks that are never freed, so that the
 * engine's memory can be told from it.
 */

struct block {
  atomic_uint refs;
  struct block *next; /* in the list of free ones */
  uint32_t len;
  uint8_t data[];
};

#define CHUNK_BYTES (UINT64_C (8) << 20)
#define NR_LENGTHS 9 /* 4 KiB to 1 MiB */

static struct {
  pthread_mutex_t lock;
  struct block *free[NR_LENGTHS];
  uint8_t *chunk;
  uint64_t left, bytes;
} heap = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void
add_chunk (uint64_t bytes)
{
  heap.chunk = mmap (NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (heap.chunk == MAP_FAILED)
    die ("out of memory");
  heap.left = bytes;
  heap.bytes += bytes;
}

uint64_t
model_bytes (void)
{
  uint64_t n;

  pthread_mutex_lock (&heap.lock);
  n = heap.bytes;
  pthread_mutex_unlock (&heap.lock);
  return n;
}

void
model_reserve (uint64_t bytes)
{
  pthread_mutex_lock (&heap.lock);
  add_chunk (bytes);
  pthread_mutex_unlock (&heap.lock);
}

static struct block **
free_list (uint32_t len)
{
  unsigned i = __builtin_ctz (len) - 12;

  assert (i < NR_LENGTHS);
  return &heap.free[i];
}

static struct block *
content_new (uint32_t len)
{
  struct block **list = free_list (len), *c;
  const uint64_t bytes = (sizeof *c + len + 15) & ~UINT64_C (15);

  pthread_mutex_lock (&heap.lock);
  c = *list;
  if (c)
    *list = c->next;
  else {
    if (heap.left < bytes)
      add_chunk (CHUNK_BYTES);
    c = (struct block *) heap.chunk;
    heap.chunk += bytes;
    heap.left -= bytes;
  }
  pthread_mutex_unlock (&heap.lock);
  c->refs = 1;
  c->len = len;
  return c;
}

static struct block *
content_ref (struct block *c)
{
  if (c)
    c->refs++;
  return c;
}

static void
content_unref (struct block *c)
{
  struct block **list;

  if (c == NULL || --c->refs > 0)
    return;
  list = free_list (c->len);
  pthread_mutex_lock (&heap.lock);
  c->next = *list;
  *list = c;
  pthread_mutex_unlock (&heap.lock);
}

static void
content_set (struct block **p, struct block *c)
{
  struct block *old = *p;

  *p = content_ref (c);
  content_unref (old);
}

static bool
content_is (const struct block *c, const uint8_t *buf, uint32_t start,
            uint32_t len)
{
  return c ? memcmp (c->data + start, buf, len) == 0 : all_zero (buf, len);
}

/*----------------------------------------------------------------------
 * Images
 */

struct image *
image_new (const char *name, struct image *volume, uint32_t block_size,
           uint64_t size, uint64_t max_blocks)
{
  struct image *image = xcalloc (1, sizeof *image);

  snprintf (image->name, sizeof image->name, "%s", name);
  if (volume)
    memcpy (image->domain, volume->domain, sizeof image->domain);
  image->volume = volume;
  image->refs = 1;
  image->block_size = block_size;
  image->size = size;
  image->max_blocks = max_blocks;
  image->generation = 1;
  pthread_rwlock_init (&image->admin, NULL);
  pthread_mutex_init (&image->state, NULL);
  pthread_cond_init (&image->range_free, NULL);
  image->now = xcalloc (max_blocks, sizeof image->now[0]);
  image->next = xcalloc (max_blocks, sizeof image->next[0]);
  image->next_of = xcalloc (max_blocks, sizeof image->next_of[0]);
  image->begun = xcalloc (max_blocks, sizeof image->begun[0]);
  return image;
}

struct image *
image_ref (struct image *image)
{
  image->refs++;
  return image;
}

void
image_unref (struct image *image)
{
  uint64_t b;

  if (--image->refs > 0)
    return;
  for (b = 0; b < image->max_blocks; ++b) {
    content_unref (image->now[b]);
    content_unref (image->next[b]);
  }
  free (image->now);
  free (image->next);
  free (image->next_of);
  free (image->begun);
  pthread_rwlock_destroy (&image->admin);
  pthread_mutex_destroy (&image->state);
  pthread_cond_destroy (&image->range_free);
  free (image);
}

uint64_t
image_size (struct image *image)
{
  uint64_t size;

  pthread_mutex_lock (&image->state);
  size = image->size;
  pthread_mutex_unlock (&image->state);
  return size;
}

const char *
image_name (const struct image *image, char buf[80])
{
  if (image->volume)
    snprintf (buf, 80, "%s@%s", image->volume->name, image->name);
  else
    snprintf (buf, 80, "%s", image->name);
  return buf;
}

uint64_t
image_blocks (const struct image *image, uint64_t size)
{
  return (size + image->block_size - 1) / image->block_size;
}

static bool
overlap (const struct image *image, const struct range *range)
{
  const struct range *r;

  for (r = image->ranges; r; r = r->next)
    if (r->first <= range->last && range->first <= r->last &&
        !(r->shared && range->shared))
      return true;
  return false;
}

void
range_take (struct image *image, struct range *range, uint64_t offset,
            uint64_t len, bool shared)
{
  range->first = offset / image->block_size;
  range->last = (offset + len - 1) / image->block_size;
  range->shared = shared;
  pthread_mutex_lock (&image->state);
  while (overlap (image, range))
    pthread_cond_wait (&image->range_free, &image->state);
  range->next = image->ranges;
  image->ranges = range;
  pthread_mutex_unlock (&image->state);
}

void
range_release (struct image *image, struct range *range)
{
  struct range **p;

  pthread_mutex_lock (&image->state);
  for (p = &image->ranges; *p != range; p = &(*p)->next)
    ;
  *p = range->next;
  pthread_cond_broadcast (&image->range_free);
  pthread_mutex_unlock (&image->state);
}

/* The part of 'block' that a request covers. */
struct part {
  uint32_t start, len; /* in the block */
  uint64_t from;       /* in the request */
};

static struct part
part_of (const struct image *image, uint64_t block, uint64_t offset,
         uint64_t len)
{
  uint64_t begin = block * image->block_size;
  uint64_t end = begin + image->block_size;
  uint64_t lo = offset > begin ? offset : begin;
  uint64_t hi = offset + len < end ? offset + len : end;

  return (struct part) { (uint32_t) (lo - begin), (uint32_t) (hi - lo),
                         lo - offset };
}

#define FOR_BLOCKS(b, image, offset, len)                                      \
  for (b = (offset) / (image)->block_size;                                     \
       b <= ((offset) + (len) - 1) / (image)->block_size; ++b)

/* The content of a block after a write. */
static struct block *
changed (const struct image *image, const struct block *old,
         const struct part *part, const uint8_t *buf)
{
  struct block *c;

  if (part->len == image->block_size || old == NULL)
    if (buf == NULL || all_zero (buf + part->from, part->len))
      return NULL;
  c = content_new (image->block_size);
  if (part->len < image->block_size) {
    if (old)
      memcpy (c->data, old->data, image->block_size);
    else
      memset (c->data, 0, image->block_size);
  }
  if (buf)
    memcpy (c->data + part->start, buf + part->from, part->len);
  else
    memset (c->data + part->start, 0, part->len);
  return c;
}

/*----------------------------------------------------------------------
 * Windows
 */

struct version {
  struct block *content;
  uint64_t begun, answered; /* stamps; UINT64_MAX: not in the window */
};

#define VERSIONS_STEP 8

struct versions {
  unsigned nr;
  struct version *v, first;   /* most blocks have one: v is &first */
  unsigned chosen, nr_chosen; /* the first that matches; how many do */
};

struct window {
  uint64_t nr_blocks, size;
  struct versions *blocks;
};

atomic_uint_fast64_t nr_moments, nr_undecided;

static void
add_version (struct versions *vs, struct block *c, uint64_t begun)
{
  if (vs->nr == 0)
    vs->v = &vs->first;
  else if (vs->nr == 1) {
    vs->v = xcalloc (VERSIONS_STEP, sizeof vs->v[0]);
    vs->v[0] = vs->first;
  }
  else if (vs->nr % VERSIONS_STEP == 0) {
    vs->v = realloc (vs->v, (vs->nr + VERSIONS_STEP) * sizeof vs->v[0]);
    if (vs->v == NULL)
      die ("out of memory");
  }
  vs->v[vs->nr++] = (struct version) { content_ref (c), begun, UINT64_MAX };
}

/* True if requests of a client of 'generation' still count.  The caller holds
 * image->state.
 */
static bool
is_valid (const struct image *image, unsigned generation)
{
  return generation > 0 && generation >= image->cut_off;
}

struct window *
window_open (struct image *image)
{
  struct window *w = xcalloc (1, sizeof *w);
  struct versions *vs;
  uint64_t b;

  pthread_mutex_lock (&image->state);
  assert (image->window == NULL);
  w->size = image->size;
  w->nr_blocks = image_blocks (image, image->size);
  w->blocks = xcalloc (w->nr_blocks, sizeof w->blocks[0]);
  image->clock++;
  for (b = 0; b < w->nr_blocks; ++b) {
    vs = &w->blocks[b];
    add_version (vs, image->now[b], 0);
    vs->v[0].answered = 0;
    if (is_valid (image, image->next_of[b]))
      add_version (vs, image->next[b], image->begun[b]);
  }
  image->window = w;
  pthread_mutex_unlock (&image->state);
  return w;
}

void
window_close (struct image *image, struct window *window)
{
  pthread_mutex_lock (&image->state);
  assert (image->window == window);
  image->window = NULL;
  pthread_mutex_unlock (&image->state);
}

void
window_decide (struct window *window, struct image *snap, uint64_t block,
               const uint8_t *buf)
{
  struct versions *vs = &window->blocks[block];
  char name[80];
  unsigned i;

  for (i = 0; i < vs->nr; ++i)
    if (content_is (vs->v[i].content, buf, 0, snap->block_size)) {
      if (vs->nr_chosen++ == 0)
        vs->chosen = i;
    }
  if (vs->nr_chosen == 0)
    fatal ("snapshot %s (blocks of %u): block %" PRIu64 " has none of the %u "
           "contents that were there while it was taken",
           image_name (snap, name), snap->block_size, block, vs->nr);
  if (vs->nr > 1)
    nr_undecided++;
  content_set (&snap->now[block], vs->v[vs->chosen].content);
  nr_compared++;
}

/* A block has a version from some moment during its request until some moment
 * during the next request.
 */
static void
bounds (const struct versions *vs, unsigned i, uint64_t *least, uint64_t *most)
{
  *least = vs->v[i].begun;
  *most = i + 1 < vs->nr ? vs->v[i + 1].answered : UINT64_MAX;
}

void
window_end (struct window *window, struct image *snap)
{
  uint64_t least = 0, most = UINT64_MAX, lo, hi, b;
  char name[80];
  unsigned i;

  for (b = 0; b < window->nr_blocks; ++b)
    if (window->blocks[b].nr_chosen == 1) {
      bounds (&window->blocks[b], window->blocks[b].chosen, &lo, &hi);
      if (lo > least)
        least = lo;
      if (hi < most)
        most = hi;
    }
  if (least > most)
    fatal ("snapshot %s has a write, but not one that was answered before "
           "that was sent",
           image_name (snap, name));
  nr_moments++;
  for (b = 0; b < window->nr_blocks; ++b) {
    for (i = 0; i < window->blocks[b].nr; ++i)
      content_unref (window->blocks[b].v[i].content);
    if (window->blocks[b].nr > 1)
      free (window->blocks[b].v);
  }
  free (window->blocks);
  free (window);
}

/*----------------------------------------------------------------------
 * Requests
 */

void
image_begin (struct image *image, uint64_t offset, uint64_t len,
             const uint8_t *buf, unsigned generation)
{
  struct block *old, *c;
  struct part part;
  uint64_t b;

  FOR_BLOCKS (b, image, offset, len)
  {
    part = part_of (image, b, offset, len);
    pthread_mutex_lock (&image->state);
    old = content_ref (image->now[b]);
    pthread_mutex_unlock (&image->state);
    c = changed (image, old, &part, buf);
    content_unref (old);
    pthread_mutex_lock (&image->state);
    image->next[b] = c;
    image->next_of[b] = generation;
    image->begun[b] = ++image->clock;
    if (is_valid (image, generation) && image->window &&
        b < image->window->nr_blocks)
      add_version (&image->window->blocks[b], c, image->begun[b]);
    pthread_mutex_unlock (&image->state);
  }
}

void
image_answered (struct image *image, uint64_t offset, uint64_t len,
                unsigned generation, bool ok)
{
  struct versions *vs;
  uint64_t b, stamp;
  bool valid;

  pthread_mutex_lock (&image->state);
  valid = is_valid (image, generation);
  stamp = ++image->clock;
  FOR_BLOCKS (b, image, offset, len)
  {
    if (is_valid (image, generation) && image->window &&
        b < image->window->nr_blocks) {
      vs = &image->window->blocks[b];
      vs->v[vs->nr - 1].answered = stamp;
    }
    if (valid && ok)
      content_set (&image->now[b], image->next[b]);
    content_unref (image->next[b]);
    image->next[b] = NULL;
    image->next_of[b] = 0;
  }
  pthread_mutex_unlock (&image->state);
}

/* Get the present content of a block.  False: the client was cut off. */
static bool
content_now (struct image *image, uint64_t block, unsigned generation,
             struct block **c)
{
  bool valid;

  pthread_mutex_lock (&image->state);
  valid = is_valid (image, generation);
  *c = valid ? content_ref (image->now[block]) : NULL;
  pthread_mutex_unlock (&image->state);
  return valid;
}

static void
explain (const char *when, struct image *image, uint64_t block,
         const struct part *part, const struct block *c, const uint8_t *found)
{
  uint8_t *zeroes = xcalloc (1, part->len);
  const uint8_t *expected = c ? c->data + part->start : zeroes;
  size_t i = first_difference (found, expected, part->len);

  fatal ("%s: %s%s%s (blocks of %u): block %" PRIu64 " differs at byte %zu "
         "(read: %u bytes at %u): found 0x%02x, expected 0x%02x; %s",
         when, image->volume ? image->volume->name : "",
         image->volume ? "@" : "", image->name, image->block_size, block,
         part->start + i, part->len, part->start, found[i], expected[i],
         all_zero (found, part->len) ? "all of it is zero" : "not all zero");
}

void
image_compare (const char *when, struct image *image, uint64_t offset,
               uint64_t len, const uint8_t *buf, unsigned generation)
{
  struct block *c;
  struct part part;
  uint64_t b;

  FOR_BLOCKS (b, image, offset, len)
  {
    if (!content_now (image, b, generation, &c))
      return;
    part = part_of (image, b, offset, len);
    if (!content_is (c, buf + part.from, part.start, part.len))
      explain (when, image, b, &part, c, buf + part.from);
    content_unref (c);
    nr_compared++;
  }
}

void
image_compare_hole (struct image *image, uint64_t offset, uint64_t len,
                    unsigned generation)
{
  struct block *c;
  struct part part;
  uint64_t b;

  FOR_BLOCKS (b, image, offset, len)
  {
    if (!content_now (image, b, generation, &c))
      return;
    part = part_of (image, b, offset, len);
    if (c && !all_zero (c->data + part.start, part.len))
      fatal ("%s: block %" PRIu64 " is told to be a hole", image->name, b);
    content_unref (c);
  }
}

/*----------------------------------------------------------------------
 * Commands
 */

void
image_become (struct image *image, struct image *other)
{
  uint64_t b;

  pthread_mutex_lock (&image->state);
  image->cut_off = image->generation;
  image->size = other->size;
  for (b = 0; b < image->max_blocks; ++b)
    content_set (&image->now[b], b < other->max_blocks ? other->now[b] : NULL);
  pthread_mutex_unlock (&image->state);
}

void
image_resize (struct image *image, uint64_t size)
{
  uint64_t b = size / image->block_size;
  uint32_t tail = size % image->block_size;
  struct part part = { tail, image->block_size - tail, 0 };
  struct block *c;

  pthread_mutex_lock (&image->state);
  if (size < image->size) {
    if (tail) {
      c = changed (image, image->now[b], &part, NULL);
      content_set (&image->now[b], c);
      content_unref (c);
      b++;
    }
    for (; b < image->max_blocks; ++b)
      content_set (&image->now[b], NULL);
  }
  image->size = size;
  pthread_mutex_unlock (&image->state);
}

void
image_fill (struct image *image, const uint8_t *buf, uint64_t len)
{
  image_begin (image, 0, len, buf, image->generation);
  image_answered (image, 0, len, image->generation, true);
}

static const struct block *
content_at (const struct image *image, uint64_t block)
{
  return block < image->max_blocks ? image->now[block] : NULL;
}

bool
image_is_zero (struct image *image, uint64_t block)
{
  const struct block *c = content_at (image, block);

  return c == NULL || all_zero (c->data, c->len);
}

bool
image_same (struct image *a, struct image *b, uint64_t block)
{
  const struct block *x = content_at (a, block);
  const struct block *y = content_at (b, block);

  if (x == y)
    return true;
  if (x == NULL || y == NULL)
    return image_is_zero (x ? a : b, block);
  return memcmp (x->data, y->data, a->block_size) == 0;
}

uint64_t
image_logical_bytes (struct image *image)
{
  uint64_t b, n = 0;

  for (b = 0; b < image_blocks (image, image->size); ++b)
    if (!image_is_zero (image, b))
      n += image->block_size;
  return n;
}

/*----------------------------------------------------------------------
 * The table
 */

atomic_uint nr_images;

static struct {
  pthread_mutex_t lock;
  struct image *volumes[MAX_VOLUMES];
  bool reserved[MAX_VOLUMES];
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Find the first image from 'first' on, wrapping around. */
static struct image *
find_image (struct image **images, unsigned nr, unsigned first)
{
  unsigned i;

  for (i = 0; i < nr; ++i)
    if (images[(first + i) % nr])
      return image_ref (images[(first + i) % nr]);
  return NULL;
}

struct image *
table_get (unsigned place)
{
  struct image *image;

  pthread_mutex_lock (&table.lock);
  image = find_image (&table.volumes[place], 1, 0);
  pthread_mutex_unlock (&table.lock);
  return image;
}

struct image *
table_pick (struct rng *rng)
{
  struct image *image;

  pthread_mutex_lock (&table.lock);
  image = find_image (table.volumes, MAX_VOLUMES, rng_below (rng, MAX_VOLUMES));
  pthread_mutex_unlock (&table.lock);
  return image;
}

struct image *
table_pick_snap (struct image *volume, struct rng *rng)
{
  return find_image (volume->snaps, MAX_SNAPS, rng_below (rng, MAX_SNAPS));
}

/* The caller holds the lock. */
static bool
are_free (unsigned first, unsigned nr)
{
  unsigned i;

  for (i = first; i < first + nr; ++i)
    if (i >= MAX_VOLUMES || table.volumes[i] || table.reserved[i])
      return false;
  return true;
}

int
table_reserve (unsigned nr, unsigned class, struct rng *rng)
{
  const unsigned start = rng_below (rng, MAX_VOLUMES);
  unsigned first, i;
  int r = -1;

  pthread_mutex_lock (&table.lock);
  for (i = 0; i < MAX_VOLUMES && r == -1; ++i) {
    first = (start + i) % MAX_VOLUMES;
    if ((class == ANY_CLASS || first % NR_CLASSES == class) &&
        are_free (first, nr))
      r = (int) first;
  }
  for (i = 0; i < nr && r != -1; ++i)
    table.reserved[r + i] = true;
  pthread_mutex_unlock (&table.lock);
  return r;
}

void
table_set (unsigned place, struct image *volume)
{
  pthread_mutex_lock (&table.lock);
  assert (table.reserved[place] && table.volumes[place] == NULL);
  table.volumes[place] = volume;
  table.reserved[place] = false;
  pthread_mutex_unlock (&table.lock);
}

unsigned
table_place (struct image *volume)
{
  unsigned i;

  pthread_mutex_lock (&table.lock);
  for (i = 0; i < MAX_VOLUMES && table.volumes[i] != volume; ++i)
    ;
  pthread_mutex_unlock (&table.lock);
  return i;
}

void
table_remove (struct image *volume)
{
  unsigned i = table_place (volume);

  if (i == MAX_VOLUMES)
    return;
  pthread_mutex_lock (&table.lock);
  table.volumes[i] = NULL;
  pthread_mutex_unlock (&table.lock);
  image_unref (volume);
}
