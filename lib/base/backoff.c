/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "base/backoff.h"

_Thread_local bool backoff_is_off;
