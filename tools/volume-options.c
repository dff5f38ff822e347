/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "tools.h"
#include "volume-options.h"

/* Before a file is opened, or the pool: no pool takes another one. */
static const char *
check_value (const struct options *opts, const char *property,
             const char *value)
{
  if (nbdedup_volume_check_property (property, value) == -1)
    usage_error (opts, "%s", nbdedup_error ());
  return value;
}

error_t
volume_options_parse (struct volume_options *v, const struct options *opts,
                      int key, char *arg, struct argp_state *state)
{
  switch (key) {
  case VOLUME_KEY_BLOCK_SIZE:
    v->block_size = options_size (state, "block-size", arg);
    if (nbdedup_check_block_size (v->block_size) == -1)
      usage_error (opts, "%s", nbdedup_error ());
    return 0;
  case VOLUME_KEY_COMPRESS:
    v->compress = check_value (opts, "compress", arg);
    return 0;
  case VOLUME_KEY_DEDUP:
    v->dedup = check_value (opts, "dedup", arg);
    return 0;
  case VOLUME_KEY_DOMAIN:
    v->domain = check_value (opts, "domain", arg);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

void
volume_options_add (const struct volume_options *v, const struct options *opts,
                    json_t *args)
{
  json_t *given = pack_args (opts, "{s:s*, s:s*, s:s*}", "compress",
                             v->compress, "dedup", v->dedup, "domain",
                             v->domain);

  if (v->block_size != 0)
    json_object_set_new (given, "block-size", json_integer (v->block_size));
  json_object_update (args, given);
  json_decref (given);
}
