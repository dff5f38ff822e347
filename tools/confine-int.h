/* SPDX-License-Identifier: BSD-3-Clause */

/* Shared by confine*.c. */

#ifndef NBDEDUP_CONFINE_INT_H
#define NBDEDUP_CONFINE_INT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest output of a program that writes no images. */
#define CONFINE_OUTPUT_MAX (64 << 20)

struct confine_file {
  char *name; /* owned */
  int fd;
  bool owned; /* fd is, if opened at the program's request */
  bool writable;
};

struct confine_dir {
  char *name, *real; /* owned */
};

struct confine {
  uint64_t memory_bytes, cpu_seconds; /* 0: no limit */
  bool writes;                        /* at least one file is writable */

  pthread_mutex_t lock; /* protects what follows */
  struct confine_file *files;
  size_t nr_files;
  struct confine_dir *dirs;
  size_t nr_dirs;
  bool learn;
  char *refused; /* owned */
};

#endif /* NBDEDUP_CONFINE_INT_H */
