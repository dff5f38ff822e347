/* SPDX-License-Identifier: BSD-3-Clause */

/* A pool's volumes, snapshots and their lineage, as they must be.
 *
 * The model keeps the whole content of each volume and snapshot, and a tree:
 * a snapshot stands between its volume and the volume's former parent, and a
 * clone's parent is its golden image.  A destroyed snapshot that others
 * inherit from stays in the tree as a *hidden* node, until fewer than two
 * inherit from it.  With one dedup=on block size the pool's records are then
 * exactly the distinct contents of all nodes, because everything that a layer
 * points to is visible in the volume or snapshot on top of it.
 *
 * Operations are data: lineage_random makes one from the model and a generator
 * alone, lineage_apply applies it to the model, and engine_apply to a pool.
 * So another process with the same generator makes the same operations.
 * LINEAGE_WITHOUT=rebase,diff in the environment leaves these out.
 */

#ifndef NBDEDUP_LINEAGE_MODEL_H
#define NBDEDUP_LINEAGE_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "nbdedup.h"
#include "rigs/testutil.h"

#define LINEAGE_NODES 160

enum node_kind { NODE_VOLUME, NODE_SNAPSHOT, NODE_HIDDEN };

/* A content that a block had since the last flush. */
struct version {
  uint64_t block;
  uint8_t *data; /* owned */
};

/* A snapshot that a volume was cloned from, or rebased onto.  It may have been
 * destroyed since.
 */
struct ancestor {
  uint64_t snapshot, volume; /* ids */
};

struct node {
  enum node_kind kind;
  uint64_t id;           /* never reused */
  char name[24];         /* of a snapshot: the part after the @ */
  struct node *volume;   /* a snapshot's */
  uint64_t volume_id;    /* hidden: of the volume that it belonged to */
  char label[64];        /* hidden: "golden@v1 (destroyed)" */
  struct node *parent;   /* what it inherits from, or NULL */
  struct node *origin;   /* a snapshot, or NULL: */
  char lost_origin[64];  /* "golden@v1 (destroyed)", or "" */
  struct ancestor *line; /* its origin, the origin's, ...; owned */
  size_t nr_line;
  bool origin_unsure;  /* rolled back to before a rebase */
  bool descent_unsure; /* a snapshot of its clone is destroyed, whose
                                 * clones may count as its own, too */
  bool tail_counts;    /* a shrink was in flight, and the pool, opened
                                 * read-only, cannot finish it */
  uint32_t block_size;
  uint64_t size;
  uint8_t *data; /* whole blocks, zero past the size; owned */
  char compress[12], dedup[8];
  struct version *versions; /* owned; only with keep_versions */
  size_t nr_versions, cap_versions;
  struct nbdedup_volume *handle; /* attached, or NULL */
};

struct lineage {
  struct node *nodes[LINEAGE_NODES];
  unsigned nr_nodes;
  uint64_t last_id;
  uint32_t block_size; /* the only one, all dedup=on; 0: any */
  uint64_t max_blocks; /* of a volume */
  unsigned max_named;  /* volumes and snapshots */
  bool keep_versions;  /* unflushed writes may be lost */
  bool readonly;       /* the pool is open read-only */
  bool attach;         /* clients stay attached */
  bool figures;        /* exact, as nothing is merged in the
                                 * background */
};

enum op_kind {
  OP_CREATE,
  OP_WRITE,
  OP_ZERO,
  OP_TRIM,
  OP_FLUSH,
  OP_SNAPSHOT,
  OP_CLONE,
  OP_ROLLBACK,
  OP_DESTROY,
  OP_RENAME,
  OP_REBASE,
  OP_RESIZE,
  OP_SET,
  OP_DIFF,
  OP_ATTACH,
  OP_DETACH,
  NR_OPS
};

struct op {
  enum op_kind kind;
  char name[48], other[48]; /* "vol" or "vol@snap"; of OP_SNAPSHOT: one more
                               of the same moment, or "" */
  uint64_t offset, len, size;
  uint32_t block_size;
  uint8_t *data;         /* of a write; owned */
  unsigned count, start; /* of clones; count 0: one, with this name */
  bool recursive, force, wait, shrink;
  const char *property, *value;
};

/* What the engine must answer. */
enum expect { EXPECT_FAIL, EXPECT_OK, EXPECT_EITHER };

/* The weight of each operation in a random choice. */
typedef unsigned lineage_weights[NR_OPS];

extern void lineage_free (struct lineage *l);
/* A deep copy, without handles. */
extern void lineage_copy (const struct lineage *from, struct lineage *to);

extern struct node *lineage_find (struct lineage *l, const char *name);
/* "vol", "vol@snap", or "vol@snap (destroyed)". */
extern const char *node_name (const struct node *node, char buf[64]);
extern uint64_t node_blocks (const struct node *node);

/* Whether a volume is a clone of a golden image, directly or through further
 * clones, even if these were destroyed.  The golden image may be hidden.
 */
enum family { FAMILY_NO, FAMILY_YES, FAMILY_UNSURE };
extern enum family
node_family (const struct node *golden, const struct node *volume);

extern void lineage_random (struct lineage *l, const lineage_weights weights,
                            struct rng *rng, struct op *op);
extern void op_free (struct op *op);
/* One line of text. */
extern void op_describe (const struct op *op, char *buf, size_t len);
/* True if 'op' is a command, which is durable once it returns. */
extern bool op_is_command (const struct op *op);

extern enum expect lineage_expect (struct lineage *l, const struct op *op);
/* Apply 'op' to the model as a success.  The caller closes handles first. */
extern void lineage_apply (struct lineage *l, const struct op *op);
/* Everything in memory is durable now. */
extern void lineage_forget_versions (struct lineage *l);

/* Number of distinct contents that are not zero, over all nodes. */
extern uint64_t lineage_distinct (struct lineage *l);

/*----------------------------------------------------------------------
 * The engine's side
 */

/* Returns 0, or -1 with errno and nbdedup_error set.  A write to an attached
 * volume uses its handle.
 */
extern int engine_apply (struct nbdedup_pool *pool, struct lineage *l,
                         const struct op *op);

/* Run a command; NULL if it fails.  Takes the reference of 'args'. */
extern json_t *
engine_call (struct nbdedup_pool *pool, const char *command, json_t *args);
/* An integer member.  Without one the test ends. */
extern uint64_t json_number (json_t *object, const char *key);

extern uint64_t engine_own_bytes (struct nbdedup_pool *pool, const char *name);

/* Compare the pool with the model: every byte, name, size, origin and figure.
 * A block with several versions may have any of them, and the model adopts the
 * one that it finds.  On a difference return false, with the reason in 'why'.
 */
extern bool engine_compare (struct nbdedup_pool *pool, struct lineage *l,
                            char *why, size_t len);

#endif /* NBDEDUP_LINEAGE_MODEL_H */
