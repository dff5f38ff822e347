#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2030,SC2031,SC2154
#
# Drift's figures are exact: a small file system, and clones that have diverged
# as real ones do (vm-images/diverge), in all ways of making and destroying
# clones.  The figures are compared to the block with a program that reads the
# exported images, and predictions for destroying with the space that it frees.
# The command's output and usage are in drift-tool.bats, other sizes of blocks in
# drift-long.bats.

load ../rigs/helpers
load ../rigs/clients
load ../models/drift
load drift-fleet

@test "classes are exact in blocks of 4 KiB" { exact 4096; }
@test "classes are exact in blocks of 16 KiB" { exact 16384; }
@test "classes are exact in blocks of 1 MiB" { exact 1048576; }

@test "all classes are met" {
    fleet 4096
    drift_is_exact golden@v1 4096 leaf1 new2 small sub web1 web2 web3 web4 web5
    jq -e '[.clones[] | .zero] | add > 0' <<<"$drift"
    jq -e '[.clones[] | .golden_same] | add > 0' <<<"$drift"
    jq -e '[.clones[] | .golden_moved] | add > 0' <<<"$drift"
    jq -e '[.clones[] | .sibling] | add > 0' <<<"$drift"
    jq -e '[.clones[] | .unique] | add > 0' <<<"$drift"
    # The idle one that was overwritten with the same content.
    assert_eq "$(jq -c '.clones[] | select (.name == "web4") |
                        [.golden_moved, .sibling, .unique]' <<<"$drift")" \
              '[0,0,0]'
    assert_eq "$(jq '.clones[] | select (.name == "web4") | .golden_same' \
                     <<<"$drift")" "$(jq .golden_blocks <<<"$drift")"
}

@test "what comes back is what destroying gives back, in blocks of 4 KiB" {
    freed 4096
}

@test "what comes back is told while the pool is served, too" {
    local served

    fleet 16384
    nbdedup create settled 4K
    nbdedup destroy settled --wait
    served=$(nbdedup drift golden@v1 --json --if-destroyed web1 web1@base sub |
                 jq 'del (.time)')
    stop
    assert_eq "$(nbdedup drift golden@v1 --json --if-destroyed web1 web1@base \
                         sub | jq 'del (.time)')" "$served"
    assert_eq "$(jq .if_destroyed.freed_bytes <<<"$served")" \
              "$(given_back web1 sub)"
    assert_eq "$(jq -c '.if_destroyed.names | sort' <<<"$served")" \
              '["sub","web1","web1@base"]'
}
