# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Shared by fault.bats and sweep.bats.

# on_small_disk SIZE FUNCTION [ARG...]: run a function of full-disk.bash.
on_small_disk ()
{
    local unshare=(unshare -Urm)

    # Root needs no user namespace, and gets none in a chroot.
    [ "$(id -u)" != 0 ] || unshare=(unshare -m)
    need "${unshare[@]}" mount -t tmpfs none /mnt
    need qemu-io --version
    "${unshare[@]}" bash "$BATS_TEST_DIRNAME/full-disk.bash" "$@" 3>&- 4>&-
}

# fault FILE CALL NTH [COUNT]: see fault-model.c.
fault ()
{
    local dir="$BATS_TEST_TMPDIR/$1-$2-$3"

    mkdir "$dir"
    "$test_programs/faults/fault-model" --plugin "$plugin" \
        --nbdedup "$top_builddir/tools/nbdedup" \
        --faults "$test_programs/rigs/.libs/faults.so" \
        ${sanitizer_preload:+--preload "$sanitizer_preload"} \
        "$dir" "$@" ||
        fail "$* $(tail -n 5 "$dir/server.log")"
    rm -rf "$dir"
}
