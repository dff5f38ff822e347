/* SPDX-License-Identifier: BSD-3-Clause */

/* The property "dedup" of a volume. */

#ifndef NBDEDUP_DEDUP_MODE_H
#define NBDEDUP_DEDUP_MODE_H

enum dedup_mode {
  DEDUP_ON,
  DEDUP_OFF,    /* each block gets its own record */
  DEDUP_VERIFY, /* compare a hit with the stored bytes */
};

/* "on", "off", "verify".  EINVAL. */
extern int dedup_parse (const char *name, enum dedup_mode *mode);
extern const char *dedup_name (enum dedup_mode mode);

#endif /* NBDEDUP_DEDUP_MODE_H */
