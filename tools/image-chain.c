/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "child.h"
#include "confine.h"
#include "image-chain.h"
#include "image-format.h"
#include "image.h"
#include "tools.h"

/* "qemu-img check": the format has no check. */
#define CHECK_UNSUPPORTED 63

/* ... it found only leaked clusters, which are harmless. */
#define CHECK_LEAKS 3

/* Files of one image: as many as a chain of daily snapshots has in a year. */
#define CHAIN_MAX 500

/* No real disk is larger.  A header of 100 bytes can claim 2^60 bytes, and it
 * would take hours to find that they are all holes.  For qcow QEMU is asked
 * for each cluster.
 */
#define VIRTUAL_MAX (UINT64_C (64) << 40)
#define VIRTUAL_MAX_QCOW2 (UINT64_C (1) << 50)
#define VIRTUAL_MAX_QCOW (UINT64_C (2) << 40)

/* QEMU's limits.  Its check needs two bytes of memory for each cluster of the
 * file (at least 512 bytes); ordinary images need a hundredth of that.
 */
#define MEMORY_BASE (UINT64_C (1) << 30)
#define INFO_SECONDS 20
#define CHECK_SECONDS 60  /* and one for each GiB of the file */
#define SERVE_SECONDS 300 /* and one for each MiB of the file */

struct link {
  char *path;   /* owned; as in messages */
  char *format; /* owned */
  int fd;       /* owned; -1: an NBD server's */
  bool is_device;
  dev_t dev;
  ino_t ino;
  json_t *file;      /* owned; QEMU's node without the format */
  json_t *data_file; /* owned; may be NULL */
};

struct chain {
  const char *name; /* not owned; the user's name for it */
  bool allow_backing;
  struct image_uri *uri;   /* owned; NULL: a file */
  struct confine *confine; /* owned */
  struct link links[CHAIN_MAX];
  unsigned nr_links;
  uint64_t allocated; /* by all files */
  uint64_t virtual_size;
};

/*----------------------------------------------------------------------
 * Files
 */

/* The name as QEMU's programs know it. */
static char *
alias_of (unsigned nr)
{
  return make_string ("/nbdedup/%u/image", nr);
}

/* The directory, with its slash, for relative names in an image. */
static char *
directory_of (const char *path)
{
  const char *slash = strrchr (path, '/');
  char *cwd, *dir;

  if (*path == '/')
    return make_string ("%.*s", (int) (slash - path + 1), path);
  cwd = getcwd (NULL, 0);
  dir = make_string ("%s/%.*s", cwd != NULL ? cwd : "/nonexistent",
                     slash != NULL ? (int) (slash - path + 1) : 0, path);
  free (cwd);
  return dir;
}

static struct link *
new_link (struct chain *chain, const char *path)
{
  struct link *link = &chain->links[chain->nr_links];

  if (chain->nr_links == CHAIN_MAX) {
    image_fail ("%s: refers to more than %d files: merge some of them "
                "('qemu-img commit')",
                chain->name, CHAIN_MAX);
    return NULL;
  }
  chain->nr_links++;
  memset (link, 0, sizeof *link);
  link->path = copy_string (path);
  link->fd = -1;
  return link;
}

/* Add a local file, which QEMU's programs may open from now on. */
static struct link *
add_file (struct chain *chain, const char *path)
{
  struct link *link = new_link (chain, path);
  struct stat st;
  char *alias, *dir, *real;
  unsigned i;

  if (link == NULL)
    return NULL;
  link->fd = image_file_open (path, &st);
  if (link->fd == -1)
    return NULL;
  link->is_device = S_ISBLK (st.st_mode);
  link->dev = st.st_dev;
  link->ino = st.st_ino;
  for (i = 0; i + 1 < chain->nr_links; ++i)
    if (chain->links[i].fd != -1 && chain->links[i].dev == st.st_dev &&
        chain->links[i].ino == st.st_ino) {
      image_fail ("%s: refers to %s twice: its files form a loop", chain->name,
                  path);
      return NULL;
    }
  chain->allocated += (uint64_t) st.st_blocks * 512;

  alias = alias_of (chain->nr_links - 1);
  dir = make_string ("%.*s", (int) (strrchr (alias, '/') - alias + 1), alias);
  real = directory_of (path);
  confine_file (chain->confine, alias, link->fd, false);
  confine_directory (chain->confine, dir, real);
  link->file = json_pack ("{s:s, s:s}", "driver",
                          link->is_device ? "host_device" : "file", "filename",
                          alias);
  free (alias);
  free (dir);
  free (real);
  return link;
}

static struct link *
add_server (struct chain *chain)
{
  struct link *link = new_link (chain, chain->name);
  char digits[16];

  chain->uri = image_uri_parse (chain->name);
  if (chain->uri == NULL)
    return NULL;
  snprintf (digits, sizeof digits, "%d", CHILD_FD);
  link->file = json_pack ("{s:s, s:{s:s, s:s}, s:s}", "driver", "nbd", "server",
                          "type", "fd", "str", digits, "export",
                          image_uri_export (chain->uri));
  if (link->file == NULL) {
    image_fail ("%s: its name is not valid UTF-8", chain->name);
    return NULL;
  }
  return link;
}

/* QEMU's node (owned by the caller, as text) of a link and, with 'deep', of
 * all behind it.
 */
static char *
make_node (const struct chain *chain, unsigned first, bool deep)
{
  unsigned i = deep ? chain->nr_links : first + 1;
  json_t *node = json_null ();
  char *json, *text;

  while (i-- > first) {
    const struct link *link = &chain->links[i];
    json_t *outer;

    if (link->format == NULL) /* a data file */
      continue;
    outer = json_pack ("{s:s, s:O}", "driver", link->format, "file",
                       link->file);
    if (strcmp (link->format, "raw") == 0)
      json_decref (node);
    else
      json_object_set_new (outer, "backing", node);
    if (link->data_file != NULL)
      json_object_set (outer, "data-file", link->data_file);
    node = outer;
  }
  json = check_memory (json_dumps (node, JSON_COMPACT));
  json_decref (node);
  text = make_string ("json:%s", json);
  free (json);
  return text;
}

/*----------------------------------------------------------------------
 * qemu-img
 */

/* QEMU's messages have the aliases of files: put in the real paths. */
static int
translate_error (const struct chain *chain)
{
  char *text = copy_string (image_error ()), *p, *next;
  unsigned i;

  for (i = 0; i < chain->nr_links; ++i) {
    char *alias = alias_of (i);

    while ((p = strstr (text, alias)) != NULL) {
      next = make_string ("%.*s%s%s", (int) (p - text), text,
                          chain->links[i].path, p + strlen (alias));
      free (text);
      text = next;
    }
    free (alias);
  }
  image_fail ("%s", text);
  free (text);
  return -1;
}

static int
fail_refers (const struct chain *chain, const struct link *link,
             const char *what)
{
  if (strcmp (what, "the network") == 0)
    return image_fail ("%s: refers to a server, which nbdedup does not read: "
                       "copy the image with 'qemu-img convert' if you trust it",
                       link->path);
  if (!chain->allow_backing)
    return image_fail ("%s: refers to another file, '%s': give --allow-backing "
                       "to read that, too",
                       link->path, what);
  return image_fail ("%s: refers to '%s', which is not a readable disk image: "
                     "give a regular file or a block device",
                     link->path, what);
}

/* A program failed on 'link'.  Returns true if that was because of an access
 * that was refused.
 */
static bool
fail_program (struct chain *chain, const struct link *link, struct child *child)
{
  char *refused = confine_refused (chain->confine);
  const bool was_refused = refused != NULL;

  if (was_refused)
    fail_refers (chain, link, refused);
  else {
    child_fail (child, link->path);
    translate_error (chain);
  }
  free (refused);
  return was_refused;
}

/* A connection to the server, for one program; -1: there is none. */
static int
connect_server (struct chain *chain, int *fd)
{
  *fd = -1;
  if (chain->uri == NULL)
    return 0;
  *fd = image_uri_connect (chain->uri);
  return *fd == -1 ? -1 : 0;
}

/* Run it to its end: 0 if it ran, whatever its status. */
static int
run_program (struct chain *chain, struct child *child, const char *const argv[],
             uint64_t seconds)
{
  int fd, r;

  free (confine_refused (chain->confine));
  confine_limits (chain->confine, MEMORY_BASE + chain->allocated / 128,
                  seconds);
  if (connect_server (chain, &fd) == -1)
    return -1;
  r = child_start_confined (child, argv, chain->confine, fd);
  if (r == -1)
    image_fail ("%s: %s", chain->name, image_error ());
  if (fd != -1)
    close (fd);
  if (r == 0 && child_wait (child) == -1) {
    child_end (child);
    r = -1;
  }
  return r;
}

/* "qemu-img info" of one file: an object (owned by the caller), or NULL. */
static json_t *
get_info (struct chain *chain, unsigned nr, bool *is_unreadable)
{
  const struct link *link = &chain->links[nr];
  char *node = make_node (chain, nr, false), *text = NULL;
  const char *const argv[] = {
    "qemu-img", "info", "--output=json", node, NULL,
  };
  json_t *info = NULL;
  struct child child;

  /* Only in this format parts of an image are files. */
  confine_learn (chain->confine,
                 chain->allow_backing && strcmp (link->format, "vmdk") == 0);
  if (run_program (chain, &child, argv, INFO_SECONDS) == 0) {
    if (child_exited (&child, 0) && (text = child_output (&child)) != NULL)
      info = json_loads (text, 0, NULL);
    if (!json_is_object (info)) {
      json_decref (info);
      info = NULL;
      *is_unreadable = !fail_program (chain, link, &child) && nr == 0 &&
        child_exited (&child, 1);
    }
    child_end (&child);
  }
  confine_learn (chain->confine, false);
  free (text);
  free (node);
  return info;
}

static uint32_t
le32_at (const uint8_t *p)
{
  uint32_t i;

  memcpy (&i, p, sizeof i);
  return le32toh (i);
}

/* QEMU 7.2's own check of a vdi file does not check the file's length. */
static int
check_vdi (const struct link *link)
{
  uint8_t header[512];
  struct stat st;
  uint64_t need;

  if (link->fd == -1 || fstat (link->fd, &st) == -1 || !S_ISREG (st.st_mode) ||
      pread (link->fd, header, sizeof header, 0) != (ssize_t) sizeof header)
    return 0; /* not a file, or too short for this check */
  need = le32_at (header + 0x158) +
    (uint64_t) le32_at (header + 0x178) * le32_at (header + 0x184);
  return (uint64_t) st.st_size >= need
    ? 0
    : image_fail ("%s: is damaged: the file is shorter than its header says",
                  link->path);
}

static int
check_one (struct chain *chain, unsigned nr)
{
  const struct link *link = &chain->links[nr];
  char *node = make_node (chain, nr, false), *text = NULL;
  const char *const argv[] = {
    "qemu-img", "check", "--output=json", node, NULL,
  };
  json_t *found = NULL;
  struct child child;
  int r = -1;

  if (run_program (chain, &child, argv,
                   CHECK_SECONDS + (chain->allocated >> 30)) == 0) {
    text = child_output (&child);
    if (text != NULL)
      found = json_loads (text, 0, NULL);
    if (child_exited (&child, 0) || child_exited (&child, CHECK_LEAKS) ||
        child_exited (&child, CHECK_UNSUPPORTED))
      r = 0;
    else if (json_size (found, "corruptions") > 0)
      image_fail ("%s: is damaged: 'qemu-img check' finds %" PRIu64 " errors",
                  link->path, json_size (found, "corruptions"));
    else
      fail_program (chain, link, &child);
    child_end (&child);
  }
  if (r == 0 && strcmp (link->format, "vdi") == 0)
    r = check_vdi (link);
  json_decref (found);
  free (text);
  free (node);
  return r;
}

int
chain_check (struct chain *chain)
{
  unsigned i;

  for (i = 0; i < chain->nr_links; ++i)
    if (chain->links[i].format != NULL &&
        strcmp (chain->links[i].format, "raw") != 0 &&
        check_one (chain, i) == -1)
      return -1;
  return 0;
}

/*----------------------------------------------------------------------
 * The chain of files
 */

/* A string in QEMU's answer; "": it is missing. */
static const char *
info_text (const json_t *info, const char *key)
{
  const char *text = json_string_value (json_object_get (info, key));

  return text != NULL ? text : "";
}

/* The path of the file that 'link' calls 'name'; owned by the caller.  NULL:
 * not a file of this machine.
 */
static char *
resolve (const struct link *link, const char *name)
{
  char *dir, *path;

  if (strncmp (name, "file:", 5) == 0)
    name += 5;
  else if (name[strcspn (name, ":/")] == ':')
    return NULL; /* for QEMU it is a protocol */
  if (*name == '/')
    return copy_string (name);
  if (link->fd == -1)
    return NULL; /* a server's export has no directory */
  dir = directory_of (link->path);
  path = make_string ("%s%s", dir, name);
  free (dir);
  return path;
}

/* Add the next file, which 'link' calls 'name'. */
static struct link *
follow (struct chain *chain, const struct link *link, const char *name)
{
  struct link *next = NULL;
  char *path;

  if (!chain->allow_backing) {
    fail_refers (chain, link, name);
    return NULL;
  }
  path = resolve (link, name);
  if (path == NULL)
    image_fail ("%s: refers to '%s', which is not a file on this machine: copy "
                "the image with 'qemu-img convert' if you trust it",
                link->path, name);
  else
    next = add_file (chain, path);
  free (path);
  return next;
}

/* The backing file's format: as the image says, or as its name and its content
 * agree.
 */
static int
set_backing_format (struct link *next, const char *format)
{
  char *detected = NULL;

  if (*format == '\0') {
    if (image_format_detect (next->path, next->fd, &detected) == -1)
      return -1;
    next->format = detected != NULL ? detected : copy_string ("raw");
    return 0;
  }
  if (strcmp (format, "file") == 0 || strcmp (format, "host_device") == 0)
    format = "raw";
  if (strcmp (format, "raw") != 0 && image_format_check (format) == -1)
    return image_fail ("%s: %s", next->path, image_error ());
  next->format = copy_string (format);
  return 0;
}

/* Returns 1 if there is a next one. */
static int
follow_backing (struct chain *chain, const struct link *link,
                const json_t *info)
{
  const char *name = info_text (info, "backing-filename");
  struct link *next;

  if (*name == '\0')
    return 0;
  next = follow (chain, link, name);
  if (next == NULL ||
      set_backing_format (next, info_text (info, "backing-filename-format")) ==
        -1)
    return -1;
  return 1;
}

static int
follow_data_file (struct chain *chain, struct link *link, const json_t *info)
{
  const json_t *data = json_object_get (json_object_get (info,
                                                         "format-specific"),
                                        "data");
  const char *name = info_text (data, "data-file");
  const struct link *next;

  if (*name == '\0')
    return 0;
  next = follow (chain, link, name);
  if (next == NULL)
    return -1;
  link->data_file = json_incref (next->file);
  return 0;
}

static uint64_t
virtual_max (const char *format)
{
  return strcmp (format, "qcow2") == 0 ? VIRTUAL_MAX_QCOW2
    : strcmp (format, "qcow") == 0     ? VIRTUAL_MAX_QCOW
                                       : VIRTUAL_MAX;
}

/* Check one image and add the next one.  Returns 1 if there is one. */
static int
examine (struct chain *chain, unsigned nr, bool *is_unreadable)
{
  struct link *link = &chain->links[nr];
  json_t *info;
  int r = 0;

  if (strcmp (link->format, "raw") == 0)
    return 0;
  info = get_info (chain, nr, is_unreadable);
  if (info == NULL)
    return -1;
  if (nr == 0)
    chain->virtual_size = json_size (info, "virtual-size");
  if (chain->virtual_size > virtual_max (chain->links[0].format))
    r = image_fail ("%s: says that its disk has %" PRIu64 " bytes, which is "
                    "too much for %s: if it is not damaged, convert it to raw "
                    "first",
                    link->path, chain->virtual_size, link->format);
  else if (json_is_true (json_object_get (info, "encrypted")))
    r = image_fail ("%s: is encrypted: decrypt it first ('qemu-img convert' "
                    "with its secret)",
                    link->path);
  if (r == 0)
    r = follow_data_file (chain, link, info);
  if (r == 0)
    r = follow_backing (chain, link, info);
  json_decref (info);
  return r;
}

struct chain *
chain_open (const char *file, const char *format, bool allow_backing,
            bool *is_unreadable)
{
  struct chain *chain = check_memory (calloc (1, sizeof *chain));
  struct link *link;
  int r = -1;

  *is_unreadable = false;
  chain->name = file;
  chain->allow_backing = allow_backing;
  chain->confine = confine_new ();
  link = image_is_uri (file) ? add_server (chain) : add_file (chain, file);
  if (link != NULL) {
    link->format = copy_string (format);
    do
      r = examine (chain, chain->nr_links - 1, is_unreadable);
    while (r == 1);
  }
  if (r == 0)
    return chain;
  chain_close (chain);
  return NULL;
}

int
chain_serve (struct chain *chain, struct child *server)
{
  char *node = make_node (chain, 0, true);
  const char *const argv[] = { "qemu-nbd", "--read-only", node, NULL };
  /* The allocated size of a server's image is not known. */
  const uint64_t bytes = chain->uri == NULL ? chain->allocated
                                            : chain->virtual_size;
  int fd, connected = -1;

  free (confine_refused (chain->confine));
  confine_limits (chain->confine, MEMORY_BASE + chain->allocated / 128,
                  SERVE_SECONDS + (bytes >> 20));
  if (connect_server (chain, &fd) == 0) {
    connected = child_start_server (server, argv, chain->confine, fd);
    if (connected == -1)
      image_fail ("%s: %s", chain->name, image_error ());
  }
  if (fd != -1)
    close (fd);
  free (node);
  return connected;
}

int
chain_server_failed (struct chain *chain, struct child *server)
{
  fail_program (chain, &chain->links[0], server);
  return -1;
}

void
chain_close (struct chain *chain)
{
  unsigned i;

  if (chain == NULL)
    return;
  confine_free (chain->confine);
  image_uri_free (chain->uri);
  for (i = 0; i < chain->nr_links; ++i) {
    struct link *link = &chain->links[i];

    if (link->fd != -1)
      close (link->fd);
    json_decref (link->file);
    json_decref (link->data_file);
    free (link->path);
    free (link->format);
  }
  free (chain);
}
