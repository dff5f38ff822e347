#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The fleet of drift.bats in blocks of 4 KiB.

load ../rigs/helpers
load ../rigs/clients
load ../models/drift
load guest
load drift-fleet

@test "classes are exact in blocks of 4 KiB, while it is served" {
    fleet 4096
    families_are_exact 4096
}
