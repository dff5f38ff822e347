/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by the parts of test-soak: random operations of every kind, from
 * many connections and commands at once, against a model in memory.
 *
 * The model has the whole content of each volume and snapshot (an *image*),
 * in blocks that images share.  If several requests touch the same blocks, and
 * one of them changes these, they are sent one after the other, so that each
 * read has one right answer.
 *
 * A snapshot is taken while requests run.  A *window* is open from before the
 * command starts until it returns.  It keeps the first content of each block,
 * and every content written meanwhile.  The snapshot must have one of these in
 * each block, and all blocks must be of one moment.  When the snapshot has been
 * read its content is fixed, so the contents of its clones, and of volumes
 * rolled back to it, are known.
 *
 * Lock order: image->admin (only tried, hence in any order); table; a range
 * of blocks; image->state.
 */

#ifndef NBDEDUP_SOAK_H
#define NBDEDUP_SOAK_H

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "nbdedup.h"
#include "rigs/testutil.h"

#define MAX_VOLUMES 12
#define MAX_SNAPS 3 /* of a volume */
#define MAX_REQUEST (UINT32_C (1) << 20)
#define NR_DUPS 40

/* From the command line and the environment. */
struct soak {
  uint64_t seed;
  uint64_t seconds;
  uint64_t operations;          /* 0: use 'seconds' */
  const char *plugin, *nbdedup; /* NULL: in this process, no commands run as
                                 * processes */
  const char *preload;
  char directory[PATH_MAX], pool[PATH_MAX + 8];
};
extern struct soak soak;

extern atomic_bool stop;
extern atomic_uint_fast64_t nr_requests, nr_compared, nr_cut_off;

#define fatal(fmt, ...)                                                        \
  die ("SEED=%" PRIu64 " %s line %d: " fmt, soak.seed, __func__, __LINE__,     \
       ##__VA_ARGS__)

/*----------------------------------------------------------------------
 * soak-model.c: the expected contents
 */

struct block; /* of a block; NULL: zeroes */

/* The blocks that a request touches. */
struct range {
  uint64_t first, last;
  bool shared; /* the request changes nothing */
  struct range *next;
};

struct window;

struct image {
  char name[32];        /* of a snapshot: the part after the @ */
  char domain[8];       /* "": none */
  struct image *volume; /* a snapshot's, not owned; or NULL */
  atomic_uint refs;
  uint32_t block_size;
  uint64_t max_blocks;

  /* Held for reading by threads that need the name, or the image to exist; for
   * writing by commands that change more than content.  No thread waits for it.
   * It protects 'name', 'snaps', 'gone' and changes of 'size'.
   */
  pthread_rwlock_t admin;
  struct image *snaps[MAX_SNAPS];
  bool gone; /* destroyed */
  atomic_uint nr_handles;
  atomic_bool leave; /* clients: please close */

  pthread_mutex_t state; /* protects the rest */
  pthread_cond_t range_free;
  uint64_t size;
  /* A forced destroy or rollback cuts off the clients that attached before it.
   * While it runs their requests may succeed, with the earlier content, or fail
   * with ESHUTDOWN.
   */
  unsigned generation; /* counts these, when they begin; from 1 */
  unsigned cut_off;    /* earlier generations are cut off */
  uint64_t clock;
  struct block **now;  /* answered */
  struct block **next; /* written by a request in flight */
  unsigned *next_of;   /* its client's generation; 0: no request */
  uint64_t *begun;     /* stamp of that request */
  struct range *ranges;
  struct window *window;
};

extern struct image *image_new (const char *name, struct image *volume,
                                uint32_t block_size, uint64_t size,
                                uint64_t max_blocks);
extern struct image *image_ref (struct image *image);
extern void image_unref (struct image *image);
extern uint64_t image_size (struct image *image);
/* "vol" or "vol@snap"; with the admin locks held. */
extern const char *image_name (const struct image *image, char buf[80]);
extern uint64_t image_blocks (const struct image *image, uint64_t size);

extern void range_take (struct image *image, struct range *range,
                        uint64_t offset, uint64_t len, bool shared);
extern void range_release (struct image *image, struct range *range);

/* With the range held, not shared: a client of 'generation' is about to write
 * (buf NULL: zeroes); the write returned, with success or not.
 */
extern void image_begin (struct image *image, uint64_t offset, uint64_t len,
                         const uint8_t *buf, unsigned generation);
extern void image_answered (struct image *image, uint64_t offset, uint64_t len,
                            unsigned generation, bool ok);

/* With the range held: compare what a client of 'generation' has read. */
extern void image_compare (const char *when, struct image *image,
                           uint64_t offset, uint64_t len, const uint8_t *buf,
                           unsigned generation);
/* The same for a range that the server reports as a hole. */
extern void image_compare_hole (struct image *image, uint64_t offset,
                                uint64_t len, unsigned generation);

/* With the admin lock held for writing, and without clients if the command
 * requires that.  image_become gives the image the content of another one, and
 * cuts off clients that attached before.
 */
extern void image_become (struct image *image, struct image *other);
extern void image_resize (struct image *image, uint64_t size);
/* Set the whole content, 'len' bytes. */
extern void image_fill (struct image *image, const uint8_t *buf, uint64_t len);
/* True if both images have the same content at 'block' (zeroes past an end);
 * true if the image has zeroes there.
 */
extern bool image_same (struct image *a, struct image *b, uint64_t block);
extern bool image_is_zero (struct image *a, uint64_t block);
extern uint64_t image_logical_bytes (struct image *image);

/* Open a window before a snapshot of the image is taken. */
extern struct window *window_open (struct image *image);
extern void window_close (struct image *image, struct window *window);
/* Block 'block' of the snapshot was read: check and keep its content. */
extern void window_decide (struct window *window, struct image *snap,
                           uint64_t block, const uint8_t *buf);
/* After all blocks were read: check that they are of one moment. */
extern void window_end (struct window *window, struct image *snap);
extern atomic_uint_fast64_t nr_moments, nr_undecided;

/* The memory that the model has for contents. */
extern uint64_t model_bytes (void);
extern void model_reserve (uint64_t bytes);

/* The number of volumes and snapshots.  Code that makes or destroys them
 * updates it.
 */
extern atomic_uint nr_images;

/* The table of volumes.  The caller owns the references that these functions
 * return.
 */
extern struct image *table_pick (struct rng *rng);
/* A snapshot of a volume.  The caller holds the volume's admin lock. */
extern struct image *table_pick_snap (struct image *volume, struct rng *rng);
/* Reserve 'nr' neighbouring free places; -1: there are none.  With OPERATIONS
 * the number of a place modulo NR_CLASSES, its class, determines the block size
 * of its volume, so that there are always as many of each.
 */
#define NR_CLASSES 3
#define ANY_CLASS NR_CLASSES
extern int table_reserve (unsigned nr, unsigned class, struct rng *rng);
extern void table_set (unsigned place, struct image *volume);
extern void table_remove (struct image *volume);
extern unsigned table_place (struct image *volume);
extern struct image *table_get (unsigned place);

/*----------------------------------------------------------------------
 * soak-transport.c: the engine in this process, or a server
 */

/* A client of an image. */
struct handle {
  struct image *image; /* a reference */
  unsigned generation;
  uint64_t size;
  bool readonly;
  struct nbdedup_volume *volume; /* in this process */
  struct nbd_handle *nbd[3];     /* through a server */
  unsigned nr_nbd;
};

enum request_kind {
  REQUEST_READ,
  REQUEST_WRITE,
  REQUEST_WRITE_FUA,
  REQUEST_ZERO,
  REQUEST_ZERO_FUA,
  REQUEST_TRIM,
  REQUEST_FLUSH,
  REQUEST_FLUSH_RANGE,
  REQUEST_CACHE,
  REQUEST_EXTENTS,
};

extern void transport_start (enum nbdedup_primarycache primarycache);
extern void transport_stop (void);
extern pid_t transport_pid (void);
/* With the admin locks held. */
extern struct handle *transport_open (struct image *image, struct rng *rng);
extern void transport_close (struct handle *h);
/* Returns 0, or -1 and sets errno.  Extents are given to image_compare_hole. */
extern int transport_request (struct handle *h, enum request_kind kind,
                              uint8_t *buf, uint64_t len, uint64_t offset,
                              struct rng *rng);
/* The reason why the last request of this thread failed. */
extern const char *transport_error (void);
/* Run a command of command.h.  NULL if it fails, which it may only with 'error'
 * (0: it must not fail).  Takes the reference of 'args'.
 */
extern json_t *transport_command (const char *command, json_t *args, int error,
                                  struct rng *rng);
extern void run (const char *command, json_t *args, struct rng *rng);
/* Run a command line, which must succeed.  Its output is dropped. */
extern void run_process (const char *a1, const char *a2, const char *a3,
                         const char *a4, const char *a5);
/* Print how often each command was run. */
extern void transport_report (void);

/*----------------------------------------------------------------------
 * soak-data.c, soak-admin.c: threads; 'arg' is their number
 */

extern void *data_client (void *arg);
extern void *admin_client (void *arg);
extern void make_volumes (void);
/* While nothing runs: verify everything. */
extern void verify_all (const char *when);

/* soak-measure.c: descriptors that a process has. */
extern unsigned count_descriptors (pid_t pid);
/* A thread that measures while operations run. */
extern void *measure (void *arg);
/* Print the table.  False: something has grown. */
extern bool measure_report (void);

#endif /* NBDEDUP_SOAK_H */
