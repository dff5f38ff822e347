/* SPDX-License-Identifier: BSD-3-Clause */

/* How far clones have drifted from their golden image, by brute force.
 *
 *   drift-brute --block-size N [NAME=]GOLDEN.img NAME=CLONE.img...
 *
 * reads raw images (as "nbdedup export" writes them) and prints, as one JSON
 * document, what "nbdedup drift --json" must say of them: the definitions
 * are those of nbdedup-drift(1).  It shares no code with the engine: it cuts
 * the images into blocks, the last one padded with zeroes, and compares the
 * SHA-256 of each with those of all others.  It leaves out figures that only
 * the engine knows (stored sizes, the time).
 *
 * Holes of the files are not read (SEEK_DATA).  Memory: 40 bytes for each
 * block of the golden image, about 100 for each distinct content, 4 for each
 * block of a clone whose content the golden image does not have.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>
#include <openssl/evp.h>

#define BLOCK_MIN 512u
#define BLOCK_MAX (1u << 24)
#define READ_BYTES (4u << 20) /* at once */
#define HASH_LEN 32

#define NONE UINT32_MAX

/* A content that some image has. */
struct content {
  uint8_t hash[HASH_LEN];
  bool golden;    /* the golden image has it */
  bool shared;    /* more than one clone has it */
  uint32_t clone; /* the first that has it */
};

static struct content *contents;
static uint32_t nr_contents, max_contents;
static uint32_t *table;      /* open addressing: indexes of contents */
static uint64_t table_slots; /* a power of two */

/* The golden image: a content's index for each block, NONE for zeroes. */
static uint32_t *golden;
static uint64_t golden_positions, golden_blocks;

struct clone {
  const char *name, *path;
  uint32_t number;
  uint64_t zero, golden_same, golden_moved, sibling, unique;
  uint32_t *others; /* blocks that are none of the golden's */
  uint64_t nr_others, max_others;
};

static uint32_t block_size;

static void __attribute__ ((noreturn, format (printf, 1, 2)))
die (const char *fmt, ...)
{
  va_list ap;

  va_start (ap, fmt);
  fprintf (stderr, "drift-brute: ");
  vfprintf (stderr, fmt, ap);
  fputc ('\n', stderr);
  exit (EXIT_FAILURE);
}

static void *
grown (void *p, uint64_t nr, size_t len)
{
  p = reallocarray (p, nr, len);
  if (p == NULL)
    die ("out of memory");
  return p;
}

/*----------------------------------------------------------------------
 * Contents
 */

static uint64_t
slot_of (const uint8_t hash[HASH_LEN])
{
  uint64_t h;

  memcpy (&h, hash, sizeof h);
  return h & (table_slots - 1);
}

static void
grow_table (void)
{
  uint64_t i, s;

  table_slots = table_slots ? 2 * table_slots : 1024;
  table = grown (table, table_slots, sizeof table[0]);
  for (i = 0; i < table_slots; ++i)
    table[i] = NONE;
  for (i = 0; i < nr_contents; ++i) {
    for (s = slot_of (contents[i].hash); table[s] != NONE;
         s = (s + 1) & (table_slots - 1))
      ;
    table[s] = i;
  }
}

/* The index of a content, which is added if it is new. */
static uint32_t
find_content (const uint8_t hash[HASH_LEN])
{
  uint64_t s;

  if (2 * (uint64_t) nr_contents >= table_slots)
    grow_table ();
  for (s = slot_of (hash); table[s] != NONE; s = (s + 1) & (table_slots - 1))
    if (memcmp (contents[table[s]].hash, hash, HASH_LEN) == 0)
      return table[s];
  if (nr_contents == max_contents) {
    if (max_contents >= NONE / 2)
      die ("more than %u contents", NONE / 2);
    max_contents = 2 * max_contents + 512;
    contents = grown (contents, max_contents, sizeof contents[0]);
  }
  contents[nr_contents] = (struct content) { .clone = NONE };
  memcpy (contents[nr_contents].hash, hash, HASH_LEN);
  table[s] = nr_contents;
  return nr_contents++;
}

/*----------------------------------------------------------------------
 * Images
 */

static bool
is_zero (const uint8_t *p, size_t len)
{
  return p[0] == 0 && memcmp (p, p + 1, len - 1) == 0;
}

static void
hash_block (const uint8_t *p, uint8_t hash[HASH_LEN])
{
  static EVP_MD_CTX *ctx;
  static EVP_MD *md;

  if (ctx == NULL) {
    ctx = EVP_MD_CTX_new ();
    md = EVP_MD_fetch (NULL, "SHA256", NULL);
  }
  if (ctx == NULL || md == NULL || !EVP_DigestInit_ex2 (ctx, md, NULL) ||
      !EVP_DigestUpdate (ctx, p, block_size) ||
      !EVP_DigestFinal_ex (ctx, hash, NULL))
    die ("SHA-256 failed");
}

/* Fill the buffer from 'offset', with zeroes past the end. */
static void
read_at (int fd, const char *path, uint8_t *buf, size_t len, uint64_t offset)
{
  size_t done = 0;
  ssize_t n;

  while (done < len) {
    n = pread (fd, buf + done, len - done, offset + done);
    if (n == -1)
      die ("%s: %s", path, strerror (errno));
    if (n == 0)
      break;
    done += n;
  }
  memset (buf + done, 0, len - done);
}

typedef void block_fn (void *opaque, uint64_t position, uint32_t content);

/* Call 'fn' for each block that is not zero.  Returns the number of blocks. */
static uint64_t
each_block (const char *path, block_fn *fn, void *opaque)
{
  size_t len = READ_BYTES < block_size ? block_size : READ_BYTES, i;
  uint8_t *buf = grown (NULL, len, 1), hash[HASH_LEN];
  int fd = open (path, O_RDONLY | O_CLOEXEC);
  uint64_t offset = 0, size;
  struct stat st;
  off_t data;

  if (fd == -1 || fstat (fd, &st) == -1)
    die ("%s: %s", path, strerror (errno));
  if (!S_ISREG (st.st_mode))
    die ("%s: not a regular file", path);
  for (size = st.st_size; offset < size; offset += len) {
    data = lseek (fd, offset, SEEK_DATA);
    if (data == -1 && errno == ENXIO)
      break; /* a hole up to the end */
    if (data == -1)
      die ("%s: %s", path, strerror (errno));
    offset = (uint64_t) data / block_size * block_size;
    read_at (fd, path, buf, len, offset);
    for (i = 0; i < len && offset + i < size; i += block_size)
      if (!is_zero (buf + i, block_size)) {
        hash_block (buf + i, hash);
        fn (opaque, (offset + i) / block_size, find_content (hash));
      }
  }
  close (fd);
  free (buf);
  return (size + block_size - 1) / block_size;
}

static void
golden_block (void *opaque, uint64_t position, uint32_t content)
{
  (void) opaque;
  if (position >= golden_positions) {
    uint64_t i = golden_positions;

    golden_positions = 2 * position + 1;
    golden = grown (golden, golden_positions, sizeof golden[0]);
    for (; i < golden_positions; ++i)
      golden[i] = NONE;
  }
  golden[position] = content;
  contents[content].golden = true;
  golden_blocks++;
}

static void
clone_block (void *opaque, uint64_t position, uint32_t content)
{
  struct content *c = &contents[content];
  struct clone *clone = opaque;

  if (position < golden_positions && golden[position] == content) {
    clone->golden_same++;
    return;
  }
  if (c->golden) {
    clone->golden_moved++;
    return;
  }
  if (c->clone == NONE)
    c->clone = clone->number;
  else if (c->clone != clone->number)
    c->shared = true;
  if (clone->nr_others == clone->max_others) {
    clone->max_others = 2 * clone->max_others + 512;
    clone->others = grown (clone->others, clone->max_others,
                           sizeof clone->others[0]);
  }
  clone->others[clone->nr_others++] = content;
}

/*----------------------------------------------------------------------
 * The document
 */

static uint64_t
logical (const struct clone *c)
{
  return c->golden_same + c->golden_moved + c->sibling + c->unique;
}

static json_t *
clone_json (const struct clone *c)
{
  return json_pack ("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "name", c->name,
                    "zero", (json_int_t) c->zero, "golden_same",
                    (json_int_t) c->golden_same, "golden_moved",
                    (json_int_t) c->golden_moved, "sibling",
                    (json_int_t) c->sibling, "unique", (json_int_t) c->unique,
                    "logical", (json_int_t) logical (c));
}

static json_t *
document (const char *name, const struct clone *clones, unsigned nr)
{
  json_t *array = json_array (), *ratio;
  uint64_t sum = golden_blocks;
  unsigned i;

  for (i = 0; i < nr; ++i) {
    sum += logical (&clones[i]);
    json_array_append_new (array, clone_json (&clones[i]));
  }
  ratio = nr_contents ? json_real ((double) sum / nr_contents) : json_null ();
  return json_pack ("{s:s, s:i, s:I, s:o, s:{s:I, s:I, s:o}}", "golden", name,
                    "block_size", (int) block_size, "golden_blocks",
                    (json_int_t) golden_blocks, "clones", array, "fleet",
                    "logical", (json_int_t) sum, "distinct",
                    (json_int_t) nr_contents, "dedup_ratio", ratio);
}

/* After all images are read: divide the blocks that the golden image does not
 * have into those of several clones and those of one.
 */
static void
classify_others (struct clone *c)
{
  uint64_t i;

  for (i = 0; i < c->nr_others; ++i) {
    if (contents[c->others[i]].shared)
      c->sibling++;
    else
      c->unique++;
  }
}

/*----------------------------------------------------------------------
 * The command line
 */

static void __attribute__ ((noreturn))
usage (int status)
{
  fprintf (status ? stderr : stdout,
           "usage: drift-brute --block-size N [NAME=]GOLDEN.img "
           "NAME=CLONE.img...\n");
  exit (status);
}

/* Split NAME=PATH; without a name, the path is the name. */
static const char *
split (char *arg, const char **path)
{
  char *equals = strchr (arg, '=');

  *path = equals ? equals + 1 : arg;
  if (equals)
    *equals = '\0';
  return arg;
}

static int
by_name (const void *a, const void *b)
{
  return strverscmp (((const struct clone *) a)->name,
                     ((const struct clone *) b)->name);
}

static void
parse_options (int argc, char *argv[])
{
  static const struct option options[] = { { "block-size", required_argument,
                                             NULL, 'b' },
                                           { "help", no_argument, NULL, 'h' },
                                           { NULL } };
  unsigned long n;
  char *end;
  int c;

  while ((c = getopt_long (argc, argv, "", options, NULL)) != -1) {
    if (c == 'h')
      usage (EXIT_SUCCESS);
    if (c != 'b')
      usage (2);
    n = strtoul (optarg, &end, 10);
    if (*end != '\0' || n < BLOCK_MIN || n > BLOCK_MAX || (n & (n - 1)) != 0)
      die ("--block-size %s: not a power of two from %u to %u", optarg,
           BLOCK_MIN, BLOCK_MAX);
    block_size = n;
  }
  if (block_size == 0 || optind == argc)
    usage (2);
}

int
main (int argc, char *argv[])
{
  const char *name, *path;
  struct clone *clones;
  unsigned i, nr;
  json_t *doc;

  parse_options (argc, argv);
  name = split (argv[optind++], &path);
  each_block (path, golden_block, NULL);
  nr = argc - optind;
  clones = grown (NULL, nr + 1, sizeof clones[0]);
  for (i = 0; i < nr; ++i) {
    clones[i] = (struct clone) { .number = i };
    clones[i].name = split (argv[optind + i], &clones[i].path);
    clones[i].zero = each_block (clones[i].path, clone_block, &clones[i]);
  }
  for (i = 0; i < nr; ++i) {
    classify_others (&clones[i]);
    clones[i].zero -= logical (&clones[i]);
    free (clones[i].others);
  }
  qsort (clones, nr, sizeof clones[0], by_name);
  doc = document (name, clones, nr);
  if (json_dumpf (doc, stdout, JSON_INDENT (1)) == -1 || puts ("") == EOF ||
      fflush (stdout) != 0)
    die ("stdout: %s", strerror (errno));
  json_decref (doc);
  free (clones);
  free (contents);
  free (golden);
  free (table);
  return 0;
}
