/* SPDX-License-Identifier: BSD-3-Clause */

/* Connections to NBD servers for QEMU's programs, which cannot connect
 * themselves (confine.h).  libnbd makes its own.
 */

#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "image.h"
#include "interrupt.h"
#include "tools.h"

#define NBD_PORT "10809"

struct image_uri {
  char *name;              /* owned; the URI */
  char *text;              /* owned; has room for the others */
  const char *host, *port; /* NULL: 'path' */
  char *path;
  const char *export;
};

static int
hex_value (char c)
{
  return isdigit ((unsigned char) c) ? c - '0'
                                     : tolower ((unsigned char) c) - 'a' + 10;
}

/* "%2F" -> "/", in place. */
static void
decode (char *s)
{
  char *out = s;

  for (; *s != '\0'; ++s)
    if (*s == '%' && isxdigit ((unsigned char) s[1]) &&
        isxdigit ((unsigned char) s[2])) {
      *out++ = hex_value (s[1]) << 4 | hex_value (s[2]);
      s += 2;
    }
    else
      *out++ = *s;
  *out = '\0';
}

/* Find "socket=PATH" after the question mark. */
static void
parse_query (struct image_uri *uri, char *query)
{
  char *word;

  while ((word = strsep (&query, "&")) != NULL)
    if (strncmp (word, "socket=", 7) == 0) {
      uri->path = word + 7;
      decode (uri->path);
    }
}

/* "[user@]host[:port]", or "[ipv6]..." */
static void
parse_host (struct image_uri *uri, char *host)
{
  char *at = strrchr (host, '@'), *end;

  if (at != NULL)
    host = at + 1;
  end = host;
  if (*host == '[' && (end = strchr (host, ']')) != NULL) {
    *end++ = '\0';
    host++;
  }
  else
    end = host + strcspn (host, ":");
  uri->port = NBD_PORT;
  if (*end == ':' && end[1] != '\0') {
    *end = '\0';
    uri->port = end + 1;
  }
  decode (host);
  uri->host = *host != '\0' ? host : "localhost";
}

static int
parse (struct image_uri *uri)
{
  char *rest = strstr (uri->text, "://") + 3, *query, *slash;
  const size_t len = rest - 3 - uri->text;
  const bool is_unix = strncmp (uri->text, "nbd+unix", len) == 0 && len == 8;

  if (!is_unix && (strncmp (uri->text, "nbd", len) != 0 || len != 3))
    return image_fail ("%s: is read as raw: --format is for nbd:// and "
                       "nbd+unix:// only",
                       uri->name);
  query = strchr (rest, '?');
  if (query != NULL)
    *query++ = '\0';
  slash = strchr (rest, '/');
  uri->export = "";
  if (slash != NULL) {
    *slash = '\0';
    decode (slash + 1);
    uri->export = slash + 1;
  }
  parse_query (uri, query);
  if (is_unix)
    return uri->path != NULL
      ? 0
      : image_fail ("%s: names no socket: add ?socket=PATH", uri->name);
  uri->path = NULL;
  parse_host (uri, rest);
  return 0;
}

struct image_uri *
image_uri_parse (const char *name)
{
  struct image_uri *uri = check_memory (calloc (1, sizeof *uri));

  uri->name = copy_string (name);
  uri->text = copy_string (name);
  if (parse (uri) == 0)
    return uri;
  image_uri_free (uri);
  return NULL;
}

void
image_uri_free (struct image_uri *uri)
{
  if (uri == NULL)
    return;
  free (uri->name);
  free (uri->text);
  free (uri);
}

const char *
image_uri_export (const struct image_uri *uri)
{
  return uri->export;
}

/* Returns 0, or -1 and errno; ECANCELED: a signal came. */
static int
connect_socket (int fd, const struct sockaddr *addr, socklen_t len)
{
  int err;
  socklen_t err_len = sizeof err;

  if (connect (fd, addr, len) == 0)
    return 0;
  if (errno != EINPROGRESS && errno != EAGAIN)
    return -1;
  if (interrupt_poll (fd, POLLOUT) == 0) {
    errno = ECANCELED;
    return -1;
  }
  if (getsockopt (fd, SOL_SOCKET, SO_ERROR, &err, &err_len) == -1)
    return -1;
  errno = err;
  return err == 0 ? 0 : -1;
}

static int
open_socket (int family, const struct sockaddr *addr, socklen_t len)
{
  const int fd = socket (family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int err;

  if (fd == -1)
    return -1;
  if (connect_socket (fd, addr, len) == 0 && fcntl (fd, F_SETFL, 0) != -1)
    return fd;
  err = errno;
  close (fd);
  errno = err;
  return -1;
}

static int
connect_unix (const struct image_uri *uri)
{
  struct sockaddr_un addr = { .sun_family = AF_UNIX };
  int fd;

  if (strlen (uri->path) >= sizeof addr.sun_path)
    return image_fail ("%s: the socket's name is too long", uri->name);
  strcpy (addr.sun_path, uri->path);
  fd = open_socket (AF_UNIX, (struct sockaddr *) &addr, sizeof addr);
  return fd != -1 ? fd : image_fail ("%s: %s", uri->name, strerror (errno));
}

static int
connect_tcp (const struct image_uri *uri)
{
  const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
  struct addrinfo *list, *ai;
  int r, fd = -1;

  r = getaddrinfo (uri->host, uri->port, &hints, &list);
  if (r != 0)
    return image_fail ("%s: %s", uri->name, gai_strerror (r));
  for (ai = list; ai != NULL && fd == -1; ai = ai->ai_next)
    fd = open_socket (ai->ai_family, ai->ai_addr, ai->ai_addrlen);
  if (fd == -1)
    image_fail ("%s: %s", uri->name, strerror (errno));
  freeaddrinfo (list);
  return fd;
}

int
image_uri_connect (const struct image_uri *uri)
{
  return uri->path != NULL ? connect_unix (uri) : connect_tcp (uri);
}
