/* SPDX-License-Identifier: BSD-3-Clause */

/* For confine-*.c only. */

#ifndef NBDEDUP_CONFINE_INT_H
#define NBDEDUP_CONFINE_INT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest text that a program may print that writes no images. */
#define CONFINE_OUTPUT_MAX (64 << 20)

struct confine_file {
  char *name;                   /* owned */
  int fd;
  bool owned;                   /* fd is: the program asked for it */
  bool writable;
};

struct confine_dir {
  char *name, *real;            /* owned */
};

struct confine {
  uint64_t memory_bytes, cpu_seconds;   /* 0: no limit */
  bool writes;                  /* some file is writable */

  pthread_mutex_t lock;         /* protects what follows */
  struct confine_file *files;
  size_t nr_files;
  struct confine_dir *dirs;
  size_t nr_dirs;
  bool learn;
  char *refused;                /* owned */
};

#endif /* NBDEDUP_CONFINE_INT_H */
