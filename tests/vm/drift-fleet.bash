# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The fleet of drift.bats and drift-long.bats.  "load" it after helpers, clients,
# drift and guest.

setup_file ()
{
    PATH=$PATH:/sbin:/usr/sbin
    need nbdfuse --version
    need fusermount3 --version
    need test -w /dev/fuse
    need sqlite3 --version
    build_image
}

# week SEED STEPS NAME...: apply a week's changes to these machines.  The seed
# includes the name, except for upgrades, which are the same everywhere.
week ()
{
    local seed=$1 steps=$2 name

    shift 2
    for name; do
        bash "$top_srcdir/vm-images/diverge" --seed "$name $seed" \
             --steps "$steps" --cache "$(dirname "$image")" \
             "$(uri_of "$name")" 3>&- 4>&-
    done
}

# fleet BLOCK-SIZE: serve a pool with these families:
#   golden@v1: db idle leaf log new2 off sub web; golden@v2: moved new1;
#   web@monday: sub
fleet ()
{
    make_pool
    nbdedup import golden "$image" --block-size "$1"
    nbdedup snapshot golden@v1
    serve "$pool"
    for name in web db log idle off; do
        nbdedup clone golden@v1 "$name"
    done
    nbdedup set dedup=off off

    week 1 packages,logs web db log
    week 1 database,swap db off
    nbdedup snapshot web@monday
    nbdedup clone web@monday sub
    nbdedup clone golden@v1 between
    week 1 packages between
    nbdedup snapshot between@day
    nbdedup clone between@day leaf
    nbdedup clone between@day moved
    nbdedup destroy between -r --force

    # All machines upgrade, and the golden image, too.
    week 2 upgrade web db log off leaf golden
    nbdedup snapshot golden@v2
    nbdedup clone golden@v2 new --count 2 >/dev/null
    nbdedup rebase moved golden@v2 >/dev/null
    nbdedup rebase new2 golden@v1 >/dev/null
    week 2 logs,database new1 new2 moved

    # Machines are rolled back, grow, delete files, and are trimmed.
    nbdedup snapshot log@before
    week 3 swap,database log
    nbdedup rollback log@before
    week 3 logs,packages log sub
    nbdedup resize web 512M
    io "$(uri_of web)" 'write -P 3 500M 3M' 'write -z 100M 8M' \
       'discard 200M 30M' 'discard 300000001 4097' "write -s $image 460M 5M" \
       flush
    # Overwritten with the same content.
    nbdcopy "$image" "$(uri_of idle)"
}

families_are_exact ()
{
    drift_is_exact golden@v2 "$1" moved new1
    drift_is_exact web@monday "$1" sub
    drift_is_exact golden@v1 "$1" db idle leaf log new2 off sub web
    # Figures as on real fleets.
    jq -e '[.clones[] | .golden_moved] | add > 0' <<<"$drift"
    jq -e '[.clones[] | .sibling] | add > 0' <<<"$drift"
    jq -e '[.clones[] | .unique] | add > 0' <<<"$drift"
    jq -e '.clones[] | select (.name == "idle") |
           .golden_moved + .sibling + .unique == 0' <<<"$drift"
}
