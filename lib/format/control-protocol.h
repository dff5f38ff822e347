/* SPDX-License-Identifier: BSD-3-Clause */

/* The protocol of a pool's control.sock (version 1).
 *
 * The socket is a SOCK_STREAM Unix socket, mode 0600; the server serves
 * only peers of its own user id and root (SO_PEERCRED).
 *
 * Both sides send frames: a header of CONTROL_HEADER_LEN bytes, then
 * 'payload' bytes.  All integers are little-endian.
 *
 *   OFFSET  SIZE  FIELD
 *      0      4   magic    "NBDC"
 *      4      2   type     enum control_type
 *      6      2   flags    CONTROL_FLAG_*; unknown ones are ignored
 *      8      8   cookie   chosen by the client; repeated in all answers
 *     16      8   offset   see below
 *     24      8   length   see below
 *     32      4   payload  bytes that follow, <= CONTROL_PAYLOAD_MAX
 *     36      4   error    ERROR: errno (Linux numbers); else 0
 *
 * A connection carries one request at a time: the client sends a request
 * and reads until its REPLY or ERROR.  The one exception is CANCEL, which
 * the client may send while a COMMAND runs.  A client that needs several
 * requests in flight opens several connections.
 *
 *   REQUEST       offset  length  payload        REPLY
 *   HELLO         lowest  highest client's name  offset: version chosen
 *                 version version (<= 127 bytes) (ERROR EPROTONOSUPPORT if
 *                                                none is known)
 *   COMMAND       -       -       JSON           JSON, the result
 *   CANCEL        -       -       -              none of its own
 *   VOLUME_OPEN   -       NBDEDUP_ name          offset: size,
 *                         VOLUME_*               length: block size
 *   VOLUME_CLOSE  -       -       -              -
 *   READ          bytes   bytes   -              the data
 *   WRITE         bytes   -       the data       -
 *   FLUSH         -       -       -              -
 *   EXTENTS       bytes   bytes   -              16 bytes for each extent:
 *                                                length, then 1 for a hole
 *   REPAIR        a       -       its content    offset: 1 if the server
 *                 record                         rewrote it, else 0
 *   FREEZE        -       -       JSON           -
 *   FROZEN_NEXT   -       -       -              JSON
 *   FROZEN_READ   bytes   bytes   8: the clone   the data
 *   FROZEN_RUNS   the     -       -              16 bytes for each run of
 *                 clone                          blocks: the first block; their
 *                                                number << 8 | enum block_class
 *   FROZEN_ZERO   the     the     16 bytes for   -
 *                 clone   set     each range:
 *                                 offset, length
 *   FROZEN_ADVISE -       -       -              JSON
 *
 * - HELLO is the first request of a connection, and must come within
 *   CONTROL_TIMEOUT_S.
 * - COMMAND's payload is {"command": NAME, "args": {...}}; commands, arguments
 *   and results are those of command.h.  With CONTROL_FLAG_PROGRESS the server
 *   sends PROGRESS frames (offset: done, length: total units) before the
 *   answer, in any number.  The server splits a result that is larger than a
 *   frame into several REPLYs, all but the last with CONTROL_FLAG_MORE.
 * - With CONTROL_FLAG_AWAITED the server sends PROGRESS frames with a text, at
 *   most CONTROL_ERROR_MAX bytes, while the COMMAND waits for another one: who
 *   that is, and since when, as a clause.
 * - CANCEL has the COMMAND's cookie.  It asks a long command to stop.  The
 *   server then answers ERROR EINTR, or the result if the command has ended.
 *   It ignores a late CANCEL.  Closing the connection cancels too.
 * - A server with many clients answers VOLUME_OPEN with CONTROL_FLAG_SPARE with
 *   ERROR EBUSY: the client then does with the connections to this volume that
 *   it has.
 * - A connection has at most one volume open.  The server closes it with the
 *   connection; only the reply to VOLUME_CLOSE confirms that it is closed.
 * - FREEZE keeps this moment for the connection (drift/frozen.h), with the
 *   arguments "name" and "memory" of "drift".  FROZEN_NEXT answers with the
 *   document of the next golden image, or {}, in REPLYs and PROGRESS frames
 *   as for COMMAND; CANCEL stops it.  The others refer to the clones of that
 *   document, the first of which is number 0, or to the golden image, whose
 *   number is 2^64 - 1.  FROZEN_RUNS answers with the size (offset) and the
 *   next runs, none if there are no more; clones must come in order, the golden
 *   image before them.
 *   FROZEN_ZERO says which bytes of a clone would read as zeroes (at most
 *   CONTROL_RUNS_MAX ranges); FROZEN_ADVISE answers as FROZEN_NEXT with what
 *   that would free, and more (drift/advise.h).
 *   The moment ends with the connection, or when the server needs its space:
 *   these requests then fail with EBUSY.
 * - READ, WRITE and FROZEN_READ transfer 1 to CONTROL_PAYLOAD_MAX bytes.
 * - REPAIR needs no volume: "scrub" with "wanted" returns the addresses of
 *   damaged records.  The server accepts the content only if it has the
 *   record's digest.
 * - The REPLY to EXTENTS may cover only the beginning of the range, but at
 *   least one extent: the client asks again for the rest.
 *
 * ERROR ESHUTDOWN from the server (for any request but those on a volume,
 * which may have been destroyed): the server is shutting down and has done
 * nothing; the client may open the pool itself.
 *
 * After ERROR the connection stays open, unless the receiver cannot find the
 * end of the frame (bad magic, payload too large): then the sender of the ERROR
 * closes it.  Once a frame has begun, the peer must send the rest (and accept
 * the answer) without pausing for longer than CONTROL_TIMEOUT_S, or the other
 * side closes the connection.  Between frames it may be silent; but the server
 * may then close a connection without a volume, without an ERROR, when it needs
 * room for another.
 *
 * Why data does not go over NBD: the client knows the pool's directory, but
 * neither nbdkit's address nor its TLS keys; "allow" and "only=on" restrict NBD
 * clients, not the pool's owner; and an NBD error has no text.
 */

#ifndef NBDEDUP_CONTROL_PROTOCOL_H
#define NBDEDUP_CONTROL_PROTOCOL_H

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"

#define CONTROL_SOCKET "control.sock"

#define CONTROL_MAGIC UINT32_C (0x4344424e) /* "NBDC" */
#define CONTROL_VERSION 1
#define CONTROL_HEADER_LEN 40

#define CONTROL_PAYLOAD_MAX (UINT32_C (1) << 20)
#define CONTROL_RESULT_MAX (UINT32_C (256) << 20) /* all its frames */
#define CONTROL_ERROR_MAX 4096                    /* text of an ERROR */
#define CONTROL_WHO_MAX 127
#define CONTROL_NAME_MAX 1024 /* the engine's limit is lower */
#define CONTROL_EXTENT_LEN 16
#define CONTROL_EXTENTS_MAX 16384 /* in one REPLY */
#define CONTROL_RUN_LEN 16
#define CONTROL_RUNS_MAX 16384 /* in one REPLY */
#define CONTROL_TIMEOUT_S 30

enum control_type {
  CONTROL_HELLO = 1,
  CONTROL_COMMAND = 2,
  CONTROL_CANCEL = 3,
  CONTROL_VOLUME_OPEN = 4,
  CONTROL_VOLUME_CLOSE = 5,
  CONTROL_READ = 6,
  CONTROL_WRITE = 7,
  /* 8 was ZERO, which no program sent. */
  CONTROL_FLUSH = 9,
  CONTROL_EXTENTS = 10,
  CONTROL_REPAIR = 11,
  CONTROL_FREEZE = 12,
  CONTROL_FROZEN_NEXT = 13,
  CONTROL_FROZEN_READ = 14,
  CONTROL_FROZEN_RUNS = 15,
  CONTROL_FROZEN_ZERO = 16,
  CONTROL_FROZEN_ADVISE = 17,

  CONTROL_REPLY = 64,
  CONTROL_ERROR = 65,
  CONTROL_PROGRESS = 66,
};

#define CONTROL_FLAG_MORE 1     /* REPLY: another one follows */
#define CONTROL_FLAG_PROGRESS 2 /* COMMAND: send PROGRESS */
#define CONTROL_FLAG_SPARE 4    /* VOLUME_OPEN: the client has another one */
#define CONTROL_FLAG_AWAITED 8  /* COMMAND: say for what it waits */

struct control_frame {
  uint16_t type;
  uint16_t flags;
  uint64_t cookie;
  uint64_t offset;
  uint64_t length;
  uint32_t payload;
  uint32_t error;
};

static_assert (CONTROL_EXTENT_LEN *CONTROL_EXTENTS_MAX <= CONTROL_PAYLOAD_MAX,
               "extents fit in a frame");

static inline void
control_frame_pack (const struct control_frame *f,
                    uint8_t buf[CONTROL_HEADER_LEN])
{
  put_le32 (buf, CONTROL_MAGIC);
  put_le16 (buf + 4, f->type);
  put_le16 (buf + 6, f->flags);
  put_le64 (buf + 8, f->cookie);
  put_le64 (buf + 16, f->offset);
  put_le64 (buf + 24, f->length);
  put_le32 (buf + 32, f->payload);
  put_le32 (buf + 36, f->error);
}

/* Returns -1 (EPROTO, no text) if this is no frame of version 1. */
static inline int
control_frame_unpack (const uint8_t buf[CONTROL_HEADER_LEN],
                      struct control_frame *f)
{
  f->type = get_le16 (buf + 4);
  f->flags = get_le16 (buf + 6);
  f->cookie = get_le64 (buf + 8);
  f->offset = get_le64 (buf + 16);
  f->length = get_le64 (buf + 24);
  f->payload = get_le32 (buf + 32);
  f->error = get_le32 (buf + 36);
  if (get_le32 (buf) != CONTROL_MAGIC || f->payload > CONTROL_PAYLOAD_MAX) {
    errno = EPROTO;
    return -1;
  }
  return 0;
}

/* Send a whole frame.  -1 with errno (no text): the connection is unusable. */
static inline int
control_send (int fd, const struct control_frame *f, const void *payload)
{
  uint8_t header[CONTROL_HEADER_LEN];
  struct iovec iov[2] = {
    { .iov_base = header, .iov_len = sizeof header },
    { .iov_base = (void *) payload, .iov_len = f->payload },
  };
  struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
  ssize_t r;

  assert (f->payload <= CONTROL_PAYLOAD_MAX);
  control_frame_pack (f, header);
  while (msg.msg_iovlen > 0) {
    r = sendmsg (fd, &msg, MSG_NOSIGNAL);
    if (r == -1) {
      if (errno == EINTR)
        continue;
      return -1;
    }
    while (msg.msg_iovlen > 0 && (size_t) r >= msg.msg_iov->iov_len) {
      r -= msg.msg_iov->iov_len;
      msg.msg_iov++;
      msg.msg_iovlen--;
    }
    if (msg.msg_iovlen > 0) {
      msg.msg_iov->iov_base = (char *) msg.msg_iov->iov_base + r;
      msg.msg_iov->iov_len -= r;
    }
  }
  return 0;
}

/* Receive exactly 'len' bytes.  Returns 1; 0 if the peer closed before the
 * first; -1 with errno (no text).
 */
static inline int
control_recv_bytes (int fd, void *buf, size_t len)
{
  size_t done = 0;
  ssize_t r;

  while (done < len) {
    r = recv (fd, (char *) buf + done, len - done, 0);
    if (r == -1) {
      if (errno == EINTR)
        continue;
      return -1;
    }
    if (r == 0) {
      if (done == 0)
        return 0;
      errno = ECONNRESET;
      return -1;
    }
    done += r;
  }
  return 1;
}

/* Receive a header.  Returns 1, 0 at the end of the connection, -1. */
static inline int
control_recv_header (int fd, struct control_frame *f)
{
  uint8_t header[CONTROL_HEADER_LEN];
  int r;

  r = control_recv_bytes (fd, header, sizeof header);
  if (r != 1)
    return r;
  return control_frame_unpack (header, f) == -1 ? -1 : 1;
}

static inline void
control_set_timeouts (int fd, int recv_s, int send_s)
{
  const struct timeval r = { .tv_sec = recv_s }, s = { .tv_sec = send_s };

  setsockopt (fd, SOL_SOCKET, SO_RCVTIMEO, &r, sizeof r);
  setsockopt (fd, SOL_SOCKET, SO_SNDTIMEO, &s, sizeof s);
}

/* The address of 'name' in directory 'dirfd'.  A socket's path is limited to
 * 107 bytes, a pool's is not; this path is always short.
 */
static inline void
control_address (int dirfd, const char *name, struct sockaddr_un *addr)
{
  int n;

  memset (addr, 0, sizeof *addr);
  addr->sun_family = AF_UNIX;
  n = snprintf (addr->sun_path, sizeof addr->sun_path, "/proc/self/fd/%d/%s",
                dirfd, name);
  assert (n > 0 && (size_t) n < sizeof addr->sun_path);
}

#endif /* NBDEDUP_CONTROL_PROTOCOL_H */
