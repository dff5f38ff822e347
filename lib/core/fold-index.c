/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/fold-index.h"

static int
compare_entries (const struct index_entry *x, const struct index_entry *y)
{
  if (x->prefix != y->prefix)
    return x->prefix < y->prefix ? -1 : 1;
  return x->addr < y->addr ? -1 : x->addr > y->addr;
}

static int
compare_ops (const void *a, const void *b)
{
  const struct fold_index_op *x = a, *y = b;
  int r = compare_entries (&x->entry, &y->entry);

  /* For one address first remove the old entry, then add the new one. */
  return r != 0 ? r : (int) x->add - (int) y->add;
}

/* Merge 'nr' operations into the row 'in', giving 'out'. */
static int
merge_row (const struct blob *in, const struct fold_index_op *ops, size_t nr,
           struct blob *out, uint64_t *nr_entries)
{
  struct index_entry e = { 0 };
  size_t off = 0, i = 0;
  bool have;
  int order;

  if (blob_reserve (out, in->len + nr * INDEX_ENTRY_LEN) == -1)
    return -1;
  out->len = 0;
  while (off < in->len || i < nr) {
    have = off < in->len;
    if (have)
      index_entry_unpack (in->p + off, &e);
    order = !have ? 1 : i == nr ? -1 : compare_entries (&e, &ops[i].entry);
    if (order <= 0) {
      off += INDEX_ENTRY_LEN;
      /* The operations on this entry decide whether it stays. */
      if (order == 0) {
        have = false;
        for (; i < nr && compare_entries (&e, &ops[i].entry) == 0; ++i) {
          have = ops[i].add;
          if (have)
            e = ops[i].entry;
        }
        if (!have) {
          --*nr_entries;
          continue;
        }
      }
      index_entry_pack (&e, out->p + out->len);
      out->len += INDEX_ENTRY_LEN;
      continue;
    }
    if (ops[i].add) {
      index_entry_pack (&ops[i].entry, out->p + out->len);
      out->len += INDEX_ENTRY_LEN;
      ++*nr_entries;
    }
    ++i;
  }
  return 0;
}

/* Where to cut a row in two: near 'half', between two prefixes.  Entries
 * of one prefix stay together; 0 if they are all of one.
 */
static size_t
cut_position (const uint8_t *p, size_t len, size_t half)
{
  struct index_entry a, b;
  size_t i;

  for (i = half - half % INDEX_ENTRY_LEN; i > 0; i -= INDEX_ENTRY_LEN) {
    index_entry_unpack (p + i - INDEX_ENTRY_LEN, &a);
    index_entry_unpack (p + i, &b);
    if (a.prefix != b.prefix)
      return i;
  }
  for (i = half - half % INDEX_ENTRY_LEN + INDEX_ENTRY_LEN; i < len;
       i += INDEX_ENTRY_LEN) {
    index_entry_unpack (p + i - INDEX_ENTRY_LEN, &a);
    index_entry_unpack (p + i, &b);
    if (a.prefix != b.prefix)
      return i;
  }
  return 0;
}

/* Store a row, in pieces of about half the limit if it is too large. */
static int
put_row (struct meta_conn *c, uint64_t low, const uint8_t *p, size_t len)
{
  struct index_entry e;
  size_t cut;

  while (len > INDEX_ROW_MAX) {
    cut = cut_position (p, len, len > 2 * INDEX_ROW_MAX
                        ? INDEX_ROW_MAX * 3 / 4 : len / 2);
    if (cut == 0)
      break;
    if (meta_index_put (c, low, p, cut) == -1)
      return -1;
    p += cut;
    len -= cut;
    index_entry_unpack (p, &e);
    low = e.prefix;
  }
  if (len == 0 && low != 0)
    return meta_index_delete (c, low);
  return meta_index_put (c, low, p, len);
}

int
fold_index (struct meta_conn *c, struct fold_index_op *ops, size_t nr,
            uint64_t *nr_entries)
{
  struct blob in CLEANUP_BLOB = { NULL };
  struct blob out CLEANUP_BLOB = { NULL };
  uint64_t low, next = 0;
  bool has_next;
  size_t i, j;

  if (nr == 0)
    return 0;
  qsort (ops, nr, sizeof *ops, compare_ops);
  for (i = 0; i < nr; i = j) {
    if (meta_index_get (c, ops[i].entry.prefix, &low, &in) == -1 ||
        meta_index_next (c, low, &has_next, &next) == -1)
      return -1;
    for (j = i; j < nr && (!has_next || ops[j].entry.prefix < next); ++j)
      ;
    assert (j > i);
    if (merge_row (&in, ops + i, j - i, &out, nr_entries) == -1 ||
        put_row (c, low, out.p, out.len) == -1)
      return -1;
  }
  return 0;
}
