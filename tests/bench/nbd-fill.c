/* SPDX-License-Identifier: BSD-3-Clause */

/* What a pool that grows costs its clients: as ddt-scale, but with real data,
 * and through NBD.
 *
 *   nbd-fill SOCKET EXPORT PID POOL
 *
 * EXPORT is an empty volume of 4 KiB blocks, at least 1 TiB large, that the
 * server PID serves from the directory POOL.  It gets as many blocks as
 * MILLIONS says (default "1 5 10"), each of them different, and compressed to
 * one sector.  At each size the program sends BLOCKS blocks (default 200,000)
 * of each kind, DEPTH requests at a time (default 16), over one connection:
 *
 *  image order   new blocks, 256 KiB in a request;
 *
 *  scattered     new blocks, one in a request, in random order;
 *
 *  run N         duplicates, N blocks in the order in which they came first;
 *
 *  trim          all of these duplicates, 256 KiB in a request; and those of
 *                runs of 1 again, one block in a request, in random order;
 *
 *  read          one block in a request, in random order;
 *
 *  overwrite     blocks all over what the volume has, with new data, one block
 *                in a request, in random order; and back: the same blocks with
 *                what they had, which is new by then.
 *
 * Each figure is a number of blocks per second, up to the answer of a flush,
 * and after it, in brackets, the longest request in ms.  Then come the largest
 * size that pool.db-wal had, the server's memory, for each new block in image
 * order the bytes that the device read and wrote, and those that it wrote for
 * each block that was overwritten.
 *
 * Each size also appends an object to the file JSON, with the keys of
 * ddt-scale's.
 *
 * bench-fill starts the server, with MEMORY=1G in a cgroup of that size.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <libnbd.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "rigs/testutil.h"

#define BLOCK 4096u
#define BATCH 64u
#define DEPTH_MAX 64u
/* Blocks: where the scattered ones and the duplicates are. */
#define SCATTERED (UINT64_C (1) << 27)
#define DUPLICATES (UINT64_C (3) << 26)
/* The first contents of the scattered ones, and of those that overwrite. */
#define SCATTERED_CONTENT (UINT64_C (1) << 48)
#define OVER_CONTENT (UINT64_C (1) << 49)

#define must(call)                                                             \
  do {                                                                         \
    if ((call) == -1)                                                          \
      die ("line %d: %s: %s", __LINE__, #call, nbd_get_error ());              \
  } while (0)

struct slot {
  uint8_t data[BATCH * BLOCK];
  double start;
  bool busy;
};

enum kind { WRITE, TRIM, READ };

/* Blocks to send, 'step' in a request. */
struct work {
  enum kind kind;
  unsigned step;
  uint64_t nr;
  uint64_t first_block, first_content;
  unsigned run;  /* of duplicates; 0: new blocks */
  uint64_t over; /* places of requests in random order, over so many; 0: in
                  * order */
};

static struct nbd_handle *nbd;
static struct slot slots[DEPTH_MAX];
static unsigned depth, nr_busy;
static double longest;        /* seconds */
static double longest_of_all; /* of this size */
static const char *pid, *pool;
static uint64_t nr_probe, nr_new, nr_scattered, wal_bytes, round_nr;

/* What the file JSON gets of this size. */
static struct figure {
  const char *key;
  double value;
} figures[20];
static unsigned nr_figures;

static void
note (const char *key, double value)
{
  if (key == NULL)
    return;
  if (nr_figures == sizeof figures / sizeof figures[0])
    die ("too many figures");
  figures[nr_figures++] = (struct figure) { key, value };
}

static void
append_json (void)
{
  const char *path = getenv ("JSON");
  unsigned i;
  FILE *fp;

  if (path == NULL || *path == 0)
    return;
  fp = fopen (path, "a");
  if (fp == NULL)
    die ("%s: %s", path, strerror (errno));
  for (i = 0; i < nr_figures; ++i)
    fprintf (fp, "%s\"%s\": %.3f", i == 0 ? "{" : ", ", figures[i].key,
             figures[i].value);
  fprintf (fp, "}\n");
  if (fclose (fp) != 0)
    die ("%s: %s", path, strerror (errno));
}

static double
now (void)
{
  struct timespec t;

  clock_gettime (CLOCK_MONOTONIC, &t);
  return (double) t.tv_sec + (double) t.tv_nsec / 1e9;
}

static uint64_t
number_from (const char *name, uint64_t otherwise)
{
  const char *s = getenv (name);

  return s && *s ? strtoull (s, NULL, 10) : otherwise;
}

/* A figure of /proc/PID/FILE, "NAME: NUMBER". */
static uint64_t
server_figure (const char *file, const char *name)
{
  const size_t len = strlen (name);
  char path[64], line[256];
  uint64_t n = 0;
  FILE *fp;

  snprintf (path, sizeof path, "/proc/%s/%s", pid, file);
  fp = fopen (path, "r");
  if (fp == NULL)
    die ("%s: %s", path, strerror (errno));
  while (fgets (line, sizeof line, fp) != NULL)
    if (strncmp (line, name, len) == 0 && line[len] == ':')
      n = strtoull (line + len + 1, NULL, 10);
  fclose (fp);
  return n;
}

static void
look_at_wal (void)
{
  char path[PATH_MAX];
  struct stat st;

  snprintf (path, sizeof path, "%s/pool.db-wal", pool);
  if (stat (path, &st) == 0 && (uint64_t) st.st_blocks * 512 > wal_bytes)
    wal_bytes = (uint64_t) st.st_blocks * 512;
}

static int
finished (void *opaque, int *error)
{
  struct slot *s = opaque;
  double seconds = now () - s->start;

  if (*error != 0)
    die ("a request failed: %s", strerror (*error));
  if (seconds > longest)
    longest = seconds;
  s->busy = false;
  nr_busy--;
  return 1;
}

static struct slot *
free_slot (void)
{
  unsigned i;

  while (nr_busy == depth)
    must (nbd_poll (nbd, -1));
  for (i = 0; slots[i].busy; ++i)
    ;
  return &slots[i];
}

static void
put_block (uint8_t *p, uint64_t content)
{
  memset (p, 0, BLOCK);
  content = (content + 1) * UINT64_C (0x9e3779b97f4a7c15);
  memcpy (p, &content, sizeof content);
}

static uint64_t
content_of (const struct work *w, uint64_t i)
{
  struct rng rng;

  if (w->run == 0)
    return w->first_content + i;
  rng = rng_make (w->run + (round_nr << 16), i / w->run);
  return rng_below (&rng, nr_new - w->run + 1) + i % w->run;
}

static void
send_request (const struct work *w, uint64_t i)
{
  struct slot *s = free_slot ();
  nbd_completion_callback done = { .callback = finished, .user_data = s };
  uint64_t offset = (w->first_block + i) * BLOCK;
  const uint32_t len = w->step * BLOCK;
  unsigned k;

  for (k = 0; w->kind == WRITE && k < w->step; ++k)
    put_block (s->data + (size_t) k * BLOCK, content_of (w, i + k));
  s->busy = true;
  s->start = now ();
  nr_busy++;
  switch (w->kind) {
  case WRITE:
    must (nbd_aio_pwrite (nbd, s->data, len, offset, done, 0));
    break;
  case TRIM:
    must (nbd_aio_trim (nbd, len, offset, done, 0));
    break;
  case READ:
    must (nbd_aio_pread (nbd, s->data, len, offset, done, 0));
    break;
  }
}

/* An odd number that has no common factor with most. */
#define STRIDE UINT64_C (2654435761)

/* key: of the rate in JSON, or NULL. */
static void
work (const char *name, const char *key, const struct work *w)
{
  const uint64_t requests = w->nr / w->step;
  double start = now (), rate;
  uint64_t i;

  longest = 0;
  for (i = 0; i < requests; ++i) {
    send_request (w, (w->over > 0 ? i * STRIDE % w->over : i) * w->step);
    if (i % 256 == 0)
      look_at_wal ();
  }
  while (nr_busy > 0)
    must (nbd_poll (nbd, -1));
  must (nbd_flush (nbd, 0));
  rate = w->nr / (now () - start);
  note (key, rate);
  if (longest > longest_of_all)
    longest_of_all = longest;
  printf ("  %s %.0f (%.0f)", name, rate, longest * 1e3);
  fflush (stdout);
}

static void
fill (const char *name, const char *key, uint64_t nr)
{
  nr -= nr % BATCH;
  work (name, key,
        &(struct work) {
          .kind = WRITE,
          .step = BATCH,
          .nr = nr,
          .first_block = nr_new,
          .first_content = nr_new,
        });
  nr_new += nr;
}

static void
duplicates (unsigned run, const char *key)
{
  char name[32];

  snprintf (name, sizeof name, "run %u", run);
  work (name, key,
        &(struct work) {
          .kind = WRITE,
          .step = BATCH,
          .nr = nr_probe,
          .run = run,
          .first_block = DUPLICATES,
        });
}

/* Afterwards the volume's first blocks are again what content_of expects of
 * duplicates.  Returns the bytes that the device wrote for each block.
 */
static double
overwrite (void)
{
  uint64_t written = server_figure ("io", "write_bytes");
  struct work w = {
    .kind = WRITE,
    .step = 1,
    .nr = nr_probe,
    .over = nr_new,
    .first_content = OVER_CONTENT + (round_nr << 40),
  };

  work ("overwrite", "overwritten", &w);
  written = server_figure ("io", "write_bytes") - written;
  w.first_content = 0;
  work ("back", NULL, &w);
  return (double) written / nr_probe;
}

static void
measure (uint64_t millions)
{
  static const char *const keys[] = { "run1", "run10", "run100", "run1000" };
  uint64_t nr = millions * 1000000, read, written, memory;
  double overwritten;
  unsigned run, i = 0;

  printf ("%" PRIu64 " M:", millions);
  wal_bytes = 0;
  longest_of_all = 0;
  nr_figures = 0;
  note ("millions", (double) millions);
  round_nr++;
  if (nr > nr_new + nr_probe)
    fill ("fill", NULL, nr - nr_new - nr_probe);
  read = server_figure ("io", "read_bytes");
  written = server_figure ("io", "write_bytes");
  fill ("image order", "image", nr_probe);
  read = server_figure ("io", "read_bytes") - read;
  written = server_figure ("io", "write_bytes") - written;
  work ("scattered", "scattered",
        &(struct work) {
          .kind = WRITE,
          .step = 1,
          .nr = nr_probe,
          .over = nr_probe,
          .first_block = SCATTERED + nr_scattered,
          .first_content = SCATTERED_CONTENT + nr_scattered,
        });
  nr_scattered += nr_probe;
  for (run = 1; run <= 1000; run *= 10)
    duplicates (run, keys[i++]);
  work ("trim", "returned",
        &(struct work) {
          .kind = TRIM,
          .step = BATCH,
          .nr = nr_probe,
          .first_block = DUPLICATES,
        });
  duplicates (1, NULL);
  work ("trim scattered", "returned_scattered",
        &(struct work) {
          .kind = TRIM,
          .step = 1,
          .nr = nr_probe,
          .first_block = DUPLICATES,
          .over = nr_probe,
        });
  work ("read", "read",
        &(struct work) {
          .kind = READ,
          .step = 1,
          .nr = nr_probe,
          .first_block = nr_new - nr_probe,
          .over = nr_probe,
        });
  overwritten = overwrite ();
  memory = server_figure ("status", "VmRSS");
  note ("longest_ms", longest_of_all * 1e3);
  note ("wal_mib", (double) (wal_bytes >> 20));
  note ("rss_mib", (double) (memory >> 10));
  note ("read_bytes", (double) read / nr_probe);
  note ("written_bytes", (double) written / nr_probe);
  note ("overwritten_bytes", overwritten);
  printf ("  WAL %" PRIu64 " MiB  memory %" PRIu64 " MiB  read %.0f  written "
          "%.0f  overwritten %.0f\n",
          wal_bytes >> 20, memory >> 10, (double) read / nr_probe,
          (double) written / nr_probe, overwritten);
  append_json ();
}

int
main (int argc, char *argv[])
{
  const char *sizes = getenv ("MILLIONS");
  char *end;

  if (argc != 5)
    die ("usage: nbd-fill SOCKET EXPORT PID POOL");
  pid = argv[3];
  pool = argv[4];
  nr_probe = number_from ("BLOCKS", 200000);
  nr_probe -= nr_probe % BATCH;
  depth = (unsigned) number_from ("DEPTH", 16);
  if (depth < 1 || depth > DEPTH_MAX)
    die ("DEPTH must be 1 to %u", DEPTH_MAX);
  nbd = nbd_create ();
  if (nbd == NULL)
    die ("nbd_create: %s", nbd_get_error ());
  must (nbd_set_export_name (nbd, argv[2]));
  must (nbd_connect_unix (nbd, argv[1]));
  if (sizes == NULL || *sizes == 0)
    sizes = "1 5 10";
  for (; *sizes; sizes = end) {
    measure (strtoull (sizes, &end, 10));
    if (end == sizes)
      die ("MILLIONS: %s: not a number", sizes);
  }
  nbd_close (nbd);
  return 0;
}
