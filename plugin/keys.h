/* SPDX-License-Identifier: BSD-3-Clause */

/* The KEY=VALUE parameters of the plugin. */

#ifndef KEYS_H
#define KEYS_H

#include <stdbool.h>

#include "nbdedup.h"

enum keys_threads {
  KEYS_THREADS_AUTO = 0,
  KEYS_THREADS_PARALLEL,
  KEYS_THREADS_SERIALIZE,
};

struct keys {
  char *pool;         /* owned; absolute, without symbolic links */
  const char *volume; /* not owned, nbdkit's argv; or NULL */
  bool only;
  bool exclusive;
  enum keys_threads threads;
  struct nbdedup_settings settings;
};

/* What "nbdkit dedup --help" prints. */
extern const char keys_help[];

/* Fill in the defaults. */
extern void keys_init (struct keys *keys);
extern void keys_destroy (struct keys *keys);

/* Parse one parameter: its syntax only.  Returns -1 after nbdkit_error. */
extern int keys_parse (struct keys *keys, const char *key, const char *value);

/* Check the combination of parameters.  Returns -1 after nbdkit_error. */
extern int keys_check (const struct keys *keys);

/* Print the defaults for "nbdkit --dump-plugin". */
extern void keys_dump (void);

#endif /* KEYS_H */
