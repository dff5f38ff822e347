/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <linux/vm_sockets.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "peer.h"

/* AF_UNSPEC: nbdkit has none, e.g. on standard input. */
static sa_family_t
peer_address (struct sockaddr_storage *addr, socklen_t *len)
{
  *len = sizeof *addr;
  return nbdkit_peer_name ((struct sockaddr *) addr, len) == -1
    ? AF_UNSPEC
    : addr->ss_family;
}

/* Only Unix sockets have the peer's uid and process; for others nbdkit would
 * report an error each time.
 */
int64_t
peer_uid (void)
{
  struct sockaddr_storage addr;
  socklen_t len;

  return peer_address (&addr, &len) == AF_UNIX ? nbdkit_peer_uid () : -1;
}

char *
peer_tls_identity (void)
{
#if HAVE_DECL_NBDKIT_PEER_TLS_DN
  char *dn = nbdkit_peer_tls_dn ();

  if (dn != NULL && dn[0] == '\0') {
    free (dn);
    dn = NULL;
  }
  return dn;
#else
  return NULL;
#endif
}

/* Add the process's command name, only for users: a process can choose it. */
static void
add_command (int64_t pid, char *buf, size_t len)
{
  char path[32], command[32] = "";
  size_t n = strlen (buf), i;
  FILE *fp;

  snprintf (path, sizeof path, "/proc/%" PRId64 "/comm", pid);
  fp = fopen (path, "re");
  if (fp == NULL)
    return;
  if (fgets (command, sizeof command, fp) != NULL)
    command[strcspn (command, "\n")] = '\0';
  fclose (fp);
  for (i = 0; command[i] != '\0'; ++i)
    if (command[i] < ' ' || command[i] > '~')
      command[i] = '?';
  if (command[0] != '\0')
    snprintf (buf + n, len - n, " (%s)", command);
}

static void
process_name (char *buf, size_t len)
{
  int64_t pid = nbdkit_peer_pid ();

  if (pid <= 0) /* of another namespace */
    return;
  snprintf (buf, len, "process %" PRId64, pid);
  add_command (pid, buf, len);
}

void
peer_name (char *buf, size_t len)
{
  struct sockaddr_storage addr;
  socklen_t addr_len;

  buf[0] = '\0';
  switch (peer_address (&addr, &addr_len)) {
  case AF_UNIX:
    process_name (buf, len);
    break;
  case AF_VSOCK:
    snprintf (buf, len, "vsock %u", ((struct sockaddr_vm *) &addr)->svm_cid);
    break;
  case AF_INET:
  case AF_INET6:
    if (getnameinfo ((struct sockaddr *) &addr, addr_len, buf, (socklen_t) len,
                     NULL, 0, NI_NUMERICHOST) != 0)
      buf[0] = '\0';
    break;
  }
}
