/* SPDX-License-Identifier: BSD-3-Clause */

/* The child's part of confine.h: between fork and exec, so all of it is
 * async-signal-safe.
 */

#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>

#include "confine-int.h"
#include "confine.h"

#if defined __x86_64__ && !defined __ILP32__
#define ARCH AUDIT_ARCH_X86_64
#define X32_BIT 0x40000000u
#elif defined __aarch64__ && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ARCH AUDIT_ARCH_AARCH64
#elif defined __riscv && __riscv_xlen == 64
#define ARCH AUDIT_ARCH_RISCV64
#elif defined __powerpc64__ && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ARCH AUDIT_ARCH_PPC64LE
#elif defined __s390x__
#define ARCH AUDIT_ARCH_S390X
#endif

/* The calls of QEMU, GLib and the C library.  Programs may stat names, but can
 * open files by name only with open and openat.
 */
static const int allowed[] = {
  /* Descriptors that the program has. */
  SYS_read,
  SYS_write,
  SYS_readv,
  SYS_writev,
  SYS_pread64,
  SYS_pwrite64,
  SYS_preadv,
  SYS_pwritev,
  SYS_preadv2,
  SYS_pwritev2,
  SYS_lseek,
  SYS_close,
  SYS_close_range,
  SYS_fstat,
  SYS_fstatfs,
  SYS_dup,
  SYS_dup3,
  SYS_flock,
  SYS_fsync,
  SYS_fdatasync,
  SYS_ftruncate,
  SYS_fallocate,
  SYS_fadvise64,
  SYS_getdents64,
  SYS_copy_file_range,
  SYS_pipe2,
  SYS_eventfd2,
  SYS_signalfd4,
  SYS_epoll_create1,
  SYS_epoll_ctl,
  SYS_epoll_pwait,
  SYS_ppoll,
  SYS_pselect6,
  SYS_timerfd_create,
  SYS_timerfd_settime,
  SYS_timerfd_gettime,
  SYS_accept4,
  SYS_getsockname,
  SYS_getpeername,
  SYS_getsockopt,
  SYS_setsockopt,
  SYS_sendto,
  SYS_recvfrom,
  SYS_sendmsg,
  SYS_recvmsg,
  SYS_shutdown,
  /* Names. */
  SYS_newfstatat,
  SYS_statx,
  SYS_statfs,
  SYS_faccessat,
  SYS_readlinkat,
  SYS_getcwd,
  SYS_chdir,
  /* Memory. */
  SYS_mmap,
  SYS_munmap,
  SYS_mprotect,
  SYS_mremap,
  SYS_madvise,
  SYS_brk,
  SYS_mlock,
  SYS_munlock,
  SYS_msync,
  SYS_mincore,
  SYS_membarrier,
  SYS_get_mempolicy,
  SYS_set_mempolicy,
  /* Threads and signals. */
  SYS_futex,
  SYS_set_robust_list,
  SYS_get_robust_list,
  SYS_set_tid_address,
  SYS_sched_yield,
  SYS_sched_getaffinity,
  SYS_getcpu,
  SYS_rt_sigaction,
  SYS_rt_sigprocmask,
  SYS_rt_sigreturn,
  SYS_rt_sigsuspend,
  SYS_rt_sigtimedwait,
  SYS_rt_sigpending,
  SYS_sigaltstack,
  SYS_restart_syscall,
  SYS_exit,
  SYS_exit_group,
#ifdef SYS_rseq
  SYS_rseq,
#endif
  /* Itself and the time.  exec changes nothing here: the filter stays. */
  SYS_execve,
  SYS_getpid,
  SYS_gettid,
  SYS_getppid,
  SYS_getpgid,
  SYS_getuid,
  SYS_geteuid,
  SYS_getgid,
  SYS_getegid,
  SYS_getresuid,
  SYS_getresgid,
  SYS_getgroups,
  SYS_getrusage,
  SYS_uname,
  SYS_sysinfo,
  SYS_umask,
  SYS_getrandom,
  SYS_clock_gettime,
  SYS_clock_getres,
  SYS_clock_nanosleep,
  SYS_nanosleep,
  SYS_gettimeofday,
/* Calls that not all machines have. */
#ifdef SYS_stat
  SYS_stat,
  SYS_lstat,
  SYS_access,
  SYS_readlink,
  SYS_poll,
  SYS_select,
  SYS_dup2,
  SYS_pipe,
  SYS_epoll_wait,
  SYS_getpgrp,
#endif
#ifdef SYS_time
  SYS_time,
#endif
#ifdef SYS_sync_file_range
  SYS_sync_file_range,
#endif
#ifdef SYS_faccessat2
  SYS_faccessat2,
#endif
#ifdef SYS_arch_prctl
  SYS_arch_prctl,
#endif
#ifdef SYS_getrlimit
  SYS_getrlimit,
#endif
#ifdef SYS_riscv_flush_icache
  SYS_riscv_flush_icache,
#endif
};

/* The calls that the guard answers. */
static const int asked[] = {
  SYS_openat,
  SYS_socket,
#ifdef SYS_open
  SYS_open,
#endif
};

#define NR(array) (sizeof array / sizeof array[0])

/* Two instructions for each call, and some more for calls whose arguments
 * matter.
 */
#define FILTER_MAX (2 * (NR (allowed) + NR (asked)) + 64)

struct filter {
  struct sock_filter code[FILTER_MAX];
  unsigned short len;
};

static void
add (struct filter *f, unsigned short code, unsigned char yes, unsigned char no,
     uint32_t k)
{
  f->code[f->len++] = (struct sock_filter) { code, yes, no, k };
}

static void
add_load (struct filter *f, size_t offset)
{
  add (f, BPF_LD | BPF_W | BPF_ABS, 0, 0, offset);
}

static void
add_result (struct filter *f, uint32_t result)
{
  add (f, BPF_RET | BPF_K, 0, 0, result);
}

#define DENY (SECCOMP_RET_ERRNO | ENOSYS)

static void
add_call (struct filter *f, int call, uint32_t result)
{
  add (f, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call);
  add_result (f, result);
}

/* The lower half of an argument. */
static size_t
arg_offset (unsigned i)
{
  const size_t offset = offsetof (struct seccomp_data, args[i]);

  return __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? offset + 4 : offset;
}

/* Allowed if the comparison 'op' of argument 'i' with 'k' is true. */
static void
add_call_if (struct filter *f, int call, unsigned i, unsigned short op,
             uint32_t k)
{
  add (f, BPF_JMP | BPF_JEQ | BPF_K, 0, 4, call);
  add_load (f, arg_offset (i));
  add (f, BPF_JMP | op | BPF_K, 1, 0, k);
  add_result (f, DENY);
  add_result (f, SECCOMP_RET_ALLOW);
}

/* Allowed unless argument 'i' is one of two values. */
static void
add_call_unless (struct filter *f, int call, unsigned i, uint32_t k1,
                 uint32_t k2)
{
  add (f, BPF_JMP | BPF_JEQ | BPF_K, 0, 5, call);
  add_load (f, arg_offset (i));
  add (f, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, k1);
  add (f, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, k2);
  add_result (f, DENY);
  add_result (f, SECCOMP_RET_ALLOW);
}

#ifdef ARCH
static void
make_filter (struct filter *f)
{
  const pid_t pid = getpid ();
  size_t i;

  f->len = 0;
  add_load (f, offsetof (struct seccomp_data, arch));
  add (f, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, ARCH);
  add_result (f, SECCOMP_RET_KILL_PROCESS);
  add_load (f, offsetof (struct seccomp_data, nr));
#ifdef X32_BIT
  add (f, BPF_JMP | BPF_JGE | BPF_K, 0, 1, X32_BIT);
  add_result (f, DENY);
#endif
  for (i = 0; i < NR (allowed); ++i)
    add_call (f, allowed[i], SECCOMP_RET_ALLOW);
  for (i = 0; i < NR (asked); ++i)
    add_call (f, asked[i], SECCOMP_RET_USER_NOTIF);

  /* Threads, but no processes.  (The filter cannot see the flags of clone3;
   * without that the C library uses clone.)
   */
#ifdef __s390x__
  add_call_if (f, SYS_clone, 1, BPF_JSET, CLONE_THREAD);
#else
  add_call_if (f, SYS_clone, 0, BPF_JSET, CLONE_THREAD);
#endif
  /* abort () and raise (): signals for itself, its own limits. */
  add_call_if (f, SYS_kill, 0, BPF_JEQ, pid);
  add_call_if (f, SYS_tgkill, 0, BPF_JEQ, pid);
  add_call_if (f, SYS_prlimit64, 0, BPF_JEQ, 0);
  /* With F_SETOWN a ready descriptor could send any signal to any process. */
  add_call_unless (f, SYS_fcntl, 1, F_SETOWN, F_SETOWN_EX);
  add_call_unless (f, SYS_ioctl, 1, FIOSETOWN, SIOCSPGRP);
  /* The program must end when its parent does. */
  add_call_unless (f, SYS_prctl, 0, PR_SET_PDEATHSIG, PR_SET_PDEATHSIG);
  add_result (f, DENY);
}
#endif

/* Keep an existing lower limit. */
static int
set_limit (int resource, uint64_t max)
{
  struct rlimit limit;

  if (getrlimit (resource, &limit) == -1)
    return -1;
  if (limit.rlim_cur > max)
    limit.rlim_cur = max;
  limit.rlim_max = limit.rlim_cur;
  return setrlimit (resource, &limit);
}

static int
set_limits (const struct confine *c)
{
  /* RLIMIT_DATA counts writable memory; RLIMIT_AS would also count reserved
   * addresses: 64 MiB for each thread.  The soft limit of time is a second
   * below the hard one, so that SIGXCPU shows the reason.
   */
  struct rlimit cpu = { c->cpu_seconds, c->cpu_seconds + 1 };

  if (set_limit (RLIMIT_CORE, 0) == -1 ||
      (c->memory_bytes != 0 && set_limit (RLIMIT_DATA, c->memory_bytes) == -1))
    return -1;
  /* The program's output goes to a file, too. */
  if (!c->writes && set_limit (RLIMIT_FSIZE, CONFINE_OUTPUT_MAX) == -1)
    return -1;
  return c->cpu_seconds == 0 ? 0 : setrlimit (RLIMIT_CPU, &cpu);
}

static int
drop_capabilities (void)
{
  struct __user_cap_header_struct header = {
    .version = _LINUX_CAPABILITY_VERSION_3,
  };
  struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3];

  /* With NO_NEW_PRIVS, exec does not restore capabilities for root. */
  memset (none, 0, sizeof none);
  return prctl (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == -1
    ? -1
    : syscall (SYS_capset, &header, none);
}

/* Send the listener, or (with -1) the errno for its absence. */
static int
send_listener (int sock, int listener, int err)
{
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE (sizeof listener)];
  } control;
  struct iovec iov = { &err, sizeof err };
  struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

  if (listener != -1) {
    memset (&control, 0, sizeof control);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN (sizeof listener);
    memcpy (CMSG_DATA (&control.header), &listener, sizeof listener);
    msg.msg_control = &control;
    msg.msg_controllen = sizeof control;
  }
  return sendmsg (sock, &msg, MSG_NOSIGNAL) == sizeof err ? 0 : -1;
}

static int
install (const struct confine *c)
{
#ifdef ARCH
  struct filter f;
  struct sock_fprog program;

  if (set_limits (c) == -1 || drop_capabilities () == -1)
    return -1;
  make_filter (&f);
  program = (struct sock_fprog) { f.len, f.code };
  return syscall (SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                  SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
#else
  (void) c;
  errno = ENOSYS;
  return -1;
#endif
}

int
confine_enter (const struct confine *c, int sock, unsigned keep)
{
  const int listener = install (c);

  if (send_listener (sock, listener, errno) == -1 || listener == -1)
    return -1;
  return syscall (SYS_close_range, keep, ~0u, 0) == -1 ? -1 : 0;
}
