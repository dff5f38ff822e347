/* SPDX-License-Identifier: BSD-3-Clause */

/* Preloaded together with libasan.  With libasan, glibc may never release the
 * lock of the locales after a strerror.  A destructor of libp11-kit, which
 * nbdkit links, waits for this lock in freelocale, so nbdkit does not end.
 * A process that ends may leak its locales.
 */

#include <config.h>

#include <locale.h>

void
freelocale (locale_t locale)
{
  (void) locale;
}
