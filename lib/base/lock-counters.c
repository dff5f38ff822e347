/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include "base/lock-counters.h"

_Atomic (struct lock_counters *) lock_counters;
