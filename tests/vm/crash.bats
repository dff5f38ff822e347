#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The long form of ../crash.bats.  "make check-crash ROUNDS=N SEED=S" does as
# many rounds as you like.

load ../helpers
load ../crash

@test "200 rounds of kill -9" {
    ROUNDS="${ROUNDS:-200}" run_model
}

@test "100 rounds of power loss" {
    ROUNDS="${ROUNDS:-100}" run_model \
        --powercut "$test_programs/.libs/powercut.so"
}

@test "200 rounds of kill -9 amid snapshots, clones, rebases and destroys" {
    ROUNDS="${ROUNDS:-200}" run_lineage
}
