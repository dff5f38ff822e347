#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The long form of ../crash.bats.  As many rounds as you like: "make
# check-crash ROUNDS=N SEED=S", "make check-power ROUNDS=N SEED=S".

load ../helpers
load ../crash

@test "200 rounds of kill -9" {
    ROUNDS="${ROUNDS:-200}" run_model
}

# power_rounds FIRST NR: as rounds FIRST to FIRST + NR - 1 of $SEED.
power_rounds ()
{
    ROUNDS="$2" SEED="${SEED:+$((SEED + $1))}" run_model \
        --powercut "$test_programs/.libs/powercut.so"
}

@test "200 rounds of kill -9 amid snapshots, clones, rebases and destroys" {
    ROUNDS="${ROUNDS:-200}" run_lineage
}

# In two parts, for the limit of time that each test has.
@test "200 rounds of power loss, the first half" {
    power_rounds 0 $((${ROUNDS:-200} / 2))
}

@test "200 rounds of power loss, the second half" {
    power_rounds $((${ROUNDS:-200} / 2)) $((${ROUNDS:-200} - ${ROUNDS:-200} / 2))
}
