#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Drift's figures on a real Debian image and its clones after some weeks of
# packages, upgrades, logs, databases and swap (vm-images/diverge, through the
# server), compared to the block with a program that reads the exported images;
# and predictions for destroying, compared with the space that it frees.
# ../bats/drift.bats has small images and other sizes of blocks, drift-long.bats
# this fleet in blocks of 4 KiB.

load ../rigs/helpers
load ../rigs/clients
load ../models/drift
load guest
load drift-fleet

@test "classes, and what comes back, are exact in blocks of 16 KiB" {
    fleet 16384
    families_are_exact 16384
    stop
    families_are_exact 16384
    settled
    only_here_is_exact golden@v1
    if_destroyed_is_exact web sub
    if_destroyed_is_exact db log leaf moved
    if_destroyed_is_exact golden@v1
    if_destroyed_is_exact golden web@monday
}
