/* SPDX-License-Identifier: BSD-3-Clause */

/* Finds figures that grow.  Memory, descriptors and files are measured a
 * hundred times in each tenth of the operations, and the last tenth is compared
 * with the second, because caches fill in the first.  The median counts: a leak
 * moves it, and a short peak of activity does not.  The table also has the
 * largest value, and the amount of data in the pool.  The latter depends on
 * chance, and distinguishes a file that grows without need from a load that
 * has grown.  See soak.h.
 */

#include <config.h>

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/stat.h>

#include "soak/soak.h"

#define TENTHS 10
#define SAMPLES 100 /* of a tenth */
#define MAX_FIGURES 40
#define LIMIT 1.05

static struct figure {
  char name[48];
  bool of_load;
  uint64_t samples[TENTHS][SAMPLES];
} *figures;
static unsigned nr_figures, tenth, sample;
static uint64_t ended_at[TENTHS]; /* ms */

static struct figure *
note (const char *name, const char *what, uint64_t value)
{
  char full[sizeof figures[0].name];
  unsigned i;

  snprintf (full, sizeof full, "%s%s", name, what);
  for (i = 0; i < nr_figures && strcmp (figures[i].name, full) != 0; ++i)
    ;
  if (i == MAX_FIGURES)
    fatal ("more than %u figures: %s", i, full);
  if (i == nr_figures) {
    nr_figures++;
    memcpy (figures[i].name, full, sizeof full);
  }
  figures[i].samples[tenth][sample] = value;
  return &figures[i];
}

/* The memory of the process, without the model's. */
static void
note_memory (void)
{
  char path[64];
  unsigned long size, resident;
  uint64_t bytes;
  FILE *fp;

  snprintf (path, sizeof path, "/proc/%d/statm", (int) transport_pid ());
  fp = fopen (path, "r");
  if (fp == NULL || fscanf (fp, "%lu %lu", &size, &resident) != 2)
    fatal ("%s: %s", path, strerror (errno));
  fclose (fp);
  bytes = (uint64_t) resident * (uint64_t) sysconf (_SC_PAGESIZE);
  note ("memory", "", bytes - (soak.plugin ? 0 : model_bytes ()));
  /* The part that is allocated, to distinguish a leak from fragmentation. */
  if (!soak.plugin) {
    struct mallinfo2 m = mallinfo2 ();

    note ("malloc in use", "", m.uordblks + m.hblkhd);
  }
}

unsigned
count_descriptors (pid_t pid)
{
  char path[64];
  unsigned nr = 0;
  DIR *dir;

  snprintf (path, sizeof path, "/proc/%d/fd", (int) pid);
  dir = opendir (path);
  if (dir == NULL)
    fatal ("%s: %s", path, strerror (errno));
  while (readdir (dir))
    nr++;
  closedir (dir);
  return nr;
}

/* SQLite's header has the number of pages, and the number of free ones. */
static void
note_pages (void)
{
  char path[PATH_MAX + 24];
  uint8_t header[100];
  uint32_t pages, unused, page_size;
  FILE *fp;

  snprintf (path, sizeof path, "%s/pool.db", soak.pool);
  fp = fopen (path, "r");
  if (fp == NULL || fread (header, sizeof header, 1, fp) != 1)
    fatal ("%s: %s", path, strerror (errno));
  fclose (fp);
  page_size = (uint32_t) header[16] << 8 | header[17];
  memcpy (&pages, header + 28, sizeof pages);
  memcpy (&unused, header + 36, sizeof unused);
  note ("pool.db in use", "",
        (uint64_t) (be32toh (pages) - be32toh (unused)) * page_size)
    ->of_load = true;
}

/* "stat" waits for other commands, so run it once in a tenth. */
static void
note_stat (struct rng *rng)
{
  static uint64_t stored;
  json_t *result;

  if (sample == 0) {
    result = transport_command ("stat", json_object (), 0, rng);
    stored = json_integer_value (
      json_object_get (json_object_get (result, "pool"), "stored_bytes"));
    json_decref (result);
  }
  note ("stored_bytes", "", stored)->of_load = true;
}

static void
note_files (void)
{
  DIR *dir = opendir (soak.pool);
  struct dirent *e;
  struct stat st;

  if (dir == NULL)
    fatal ("%s: %s", soak.pool, strerror (errno));
  while ((e = readdir (dir)) != NULL)
    if (fstatat (dirfd (dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG (st.st_mode)) {
      note (e->d_name, " size", st.st_size);
      note (e->d_name, " allocated", (uint64_t) st.st_blocks * 512);
    }
  closedir (dir);
}

void *
measure (void *arg)
{
  const uint64_t nr = TENTHS * SAMPLES;
  struct rng rng = rng_make (soak.seed, 5000);
  uint64_t i;

  (void) arg;
  figures = xcalloc (MAX_FIGURES, sizeof figures[0]);
  for (i = 0; i < nr; ++i) {
    tenth = i / SAMPLES;
    sample = i % SAMPLES;
    while (nr_requests < soak.operations / nr * (i + 1))
      clock_sleep_ms (2);
    note_memory ();
    note ("descriptors", "", count_descriptors (transport_pid ()));
    note_files ();
    note_pages ();
    note_stat (&rng);
    ended_at[tenth] = clock_ms ();
    if (sample == SAMPLES - 1) {
      printf ("# %u/%u after %" PRIu64 " requests\n", tenth + 1, TENTHS,
              (uint64_t) nr_requests);
      fflush (stdout);
    }
  }
  stop = true;
  return NULL;
}

static int
compare (const void *a, const void *b)
{
  const uint64_t *x = a, *y = b;

  return (*x > *y) - (*x < *y);
}

/* The unit is large enough for a table, and small enough to show 5 %. */
static void
print_figure (const struct figure *f, const char *kind, unsigned which)
{
  const bool bytes = strcmp (f->name, "descriptors") != 0;
  unsigned t;

  printf ("%-28s %-6s", f->name, kind);
  for (t = 0; t < TENTHS; ++t)
    printf (" %9" PRIu64, f->samples[t][which] / (bytes ? 1024 : 1));
}

bool
measure_report (void)
{
  struct figure *f;
  uint64_t second, last;
  bool ok = true, grown;
  unsigned i, t;

  printf ("# KiB (or descriptors) in each tenth of %" PRIu64 " requests\n",
          soak.operations);
  for (i = 0; i < nr_figures; ++i) {
    f = &figures[i];
    for (t = 0; t < TENTHS; ++t)
      qsort (f->samples[t], SAMPLES, sizeof f->samples[t][0], compare);
    print_figure (f, "median", SAMPLES / 2);
    second = f->samples[1][SAMPLES / 2];
    last = f->samples[TENTHS - 1][SAMPLES / 2];
    grown = !f->of_load && last > LIMIT * second;
    ok = ok && !grown;
    if (second > 0)
      printf ("  %.3f", (double) last / (double) second);
    printf ("%s\n", grown ? "  HAS GROWN" : "");
    print_figure (f, "max", SAMPLES - 1);
    putchar ('\n');
  }
  printf ("# seconds:");
  for (t = 1; t < TENTHS; ++t)
    printf (" %.1f", (double) (ended_at[t] - ended_at[t - 1]) / 1000);
  printf (" (second to tenth)\n");
  free (figures);
  return ok;
}
