#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The long form of crash.bats.  Any number of rounds: "make check-crash ROUNDS=N
# SEED=S", "make check-power ROUNDS=N SEED=S".

load ../rigs/helpers
load crash

# 60 rounds here, beside those of crash.bats.  A change to what is synced needs
# thousands of rounds of its own (CONTRIBUTING.md).
@test "60 rounds of kill -9" {
    ROUNDS="${ROUNDS:-60}" run_model
}

@test "200 rounds of kill -9 amid snapshots, clones, rebases and destroys" {
    ROUNDS="${ROUNDS:-200}" run_lineage
}

@test "60 rounds of power loss" {
    ROUNDS="${ROUNDS:-60}" run_model \
        --powercut "$test_programs/crash/.libs/powercut.so"
}
