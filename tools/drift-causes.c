/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <fnmatch.h>
#include <string.h>

#include "drift-causes.h"

#define CAUSE_DATABASE "databases"
#define CAUSE_INITRD "initrd"
#define CAUSE_LOGS "logs"
#define CAUSE_PROGRAMS "programs of no known package"

/* The first pattern that matches decides; '*' matches '/', too. */
struct rule {
  const char *pattern, *cause;
};

static const struct rule rules[] = {
  { "<swap>", CAUSE_SWAP },
  { "/swapfile", CAUSE_SWAP },
  { "/swap.img", CAUSE_SWAP },
  { "/swap/*", CAUSE_SWAP },
  { "/var/swap*", CAUSE_SWAP },
  { "/pagefile.sys", CAUSE_SWAP },
  { "/swapfile.sys", CAUSE_SWAP },
  { "/hiberfil.sys", CAUSE_SWAP },
  { "/boot/init*", CAUSE_INITRD },
  { "p[0-9]*:/init*", CAUSE_INITRD }, /* /boot in a partition of its own */
  { "/var/log/*", CAUSE_LOGS },
  { "*/winevt/Logs/*", CAUSE_LOGS },
  { "/var/lib/mysql/*", CAUSE_DATABASE },
  { "/var/lib/postgresql/*", CAUSE_DATABASE },
  { "/var/lib/pgsql/*", CAUSE_DATABASE },
  { "/var/lib/mongodb/*", CAUSE_DATABASE },
  { "/var/lib/redis/*", CAUSE_DATABASE },
  { "/var/lib/influxdb/*", CAUSE_DATABASE },
  { "/var/lib/ldap/*", CAUSE_DATABASE },
  { "/var/opt/mssql/*", CAUSE_DATABASE },
  { "/tmp/*", CAUSE_TEMPORARY },
  { "/var/tmp/*", CAUSE_TEMPORARY },
  { "/var/cache/*", CAUSE_TEMPORARY },
  { "/var/lib/apt/lists/*", CAUSE_TEMPORARY },
  { "*/.cache/*", CAUSE_TEMPORARY },
  { "/Windows/Temp/*", CAUSE_TEMPORARY },
  { "/Windows/SoftwareDistribution/Download/*", CAUSE_TEMPORARY },
  { "*/AppData/Local/Temp/*", CAUSE_TEMPORARY },
  { "/var/lib/dpkg/*", CAUSE_PACKAGE },
  { "/var/lib/apt/*", CAUSE_PACKAGE },
  { "/var/lib/rpm/*", CAUSE_PACKAGE },
};

/* The same for files of no package. */
static const struct rule late_rules[] = {
  { "<journal>", "journal" },
  { "<free space>", "deleted but not trimmed" },
  { "<metadata>", "metadata" },
  { "<encrypted>", "encrypted" },
  { "<unknown>", "unknown content" },
  { "<outside of file systems>", "outside of file systems" },
  { "/usr/local/*", "other files" },
  { "/usr/*", CAUSE_PROGRAMS },
  { "/bin/*", CAUSE_PROGRAMS },
  { "/sbin/*", CAUSE_PROGRAMS },
  { "/lib*/*", CAUSE_PROGRAMS },
  { "/boot/*", CAUSE_PROGRAMS },
  { "/opt/*", CAUSE_PROGRAMS },
  { "/Windows/*", CAUSE_PROGRAMS },
  { "/Program Files*/*", CAUSE_PROGRAMS },
};

static const char *
find_rule (const struct rule *list, size_t nr, const char *path)
{
  size_t i;

  for (i = 0; i < nr; ++i)
    if (fnmatch (list[i].pattern, path, FNM_NOESCAPE) == 0)
      return list[i].cause;
  return NULL;
}

const char *
drift_cause (const char *path, const char *package)
{
  const char *cause = find_rule (rules, sizeof rules / sizeof rules[0], path);

  if (cause == NULL && package != NULL)
    cause = CAUSE_PACKAGE;
  if (cause == NULL)
    cause = find_rule (late_rules, sizeof late_rules / sizeof late_rules[0],
                       path);
  return cause != NULL ? cause : "other files";
}
