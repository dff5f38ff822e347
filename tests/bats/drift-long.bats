#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2030,SC2031,SC2154
#
# drift.bats in blocks of the other sizes, which run the same code.

load ../rigs/helpers
load ../rigs/clients
load ../models/drift
load drift-fleet

@test "classes are exact in blocks of 8 KiB" { exact 8192; }
@test "classes are exact in blocks of 32 KiB" { exact 32768; }
@test "classes are exact in blocks of 64 KiB" { exact 65536; }
@test "classes are exact in blocks of 128 KiB" { exact 131072; }
@test "classes are exact in blocks of 256 KiB" { exact 262144; }
@test "classes are exact in blocks of 512 KiB" { exact 524288; }

@test "what comes back is what destroying gives back, in blocks of 64 KiB" {
    freed 65536
}
