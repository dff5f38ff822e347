#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# Which versions vm-images/provision makes, keeps and takes back.  Nothing boots:
# "boot" is replaced by a program that writes into the disk, as the guest would;
# vm/provision.bats has the guest.

load ../rigs/helpers

setup ()
{
    need qemu-io --version
    mkdir images
    cp "$top_srcdir/vm-images/provision" images/
    # The user's script says what is written where; what it reads is the disk.
    cat >images/boot <<'END'
#!/bin/bash
while [ $# -gt 1 ]; do
    [ "$1" != --run ] || run=$2
    shift 2
done
[ -x "$run/run" ] && uri=$1 bash "$run/script"
END
    random_data 1M 1 >debian.raw
    make_pool
}

# provision SCRIPT [OPTION...]: its output is in the file "out".
provision ()
{
    local script=$1

    shift
    echo "$script" >script
    NBDEDUP_BUILD=$top_builddir \
        images/provision --image debian.raw "$@" golden script \
        >out 2>&1 3>&- 4>&-
}

# writes BYTE: a script that writes it at 64 KiB.
writes ()
{
    echo "qemu-io -f raw \"\$uri\" -c 'write -P $1 64k 64k' -c flush"
}

# reads NAME BYTE: the volume or snapshot has it there.
reads ()
{
    nbdedup export "$1" - | tail -c +65537 | head -c 65536 | cmp - \
        <(head -c 65536 /dev/zero | tr '\0' "\\$(printf %o "$2")")
}

versions ()
{
    nbdedup list --json | jq -rc '.volumes[0].snapshots | sort_by (.time) |
                                  map (.name)'
}

# newest: the name of the newest version.
newest ()
{
    nbdedup list --json | jq -r '.volumes[0].snapshots | max_by (.time) | .name'
}

@test "each run makes the next version, and what fails leaves none" {
    local day next

    serve "$pool"
    provision "$(writes 1)" --socket "$sock" --snapshot one
    assert_eq "$(versions)" '["imported","one"]'
    reads golden 1
    nbdedup export golden@imported - | cmp - debian.raw

    # It goes on from the newest version; today's first one is called by the day.
    provision "qemu-io -f raw \"\$uri\" -c 'read -P 1 64k 64k' | grep -q '^read' &&
               $(writes 2)" --socket "$sock"
    day=$(newest)
    [[ $day =~ ^20[0-9]{2}-[0-9]{2}-[0-9]{2}$ ]]
    provision "$(writes 3)" --socket "$sock"
    next=$(newest)
    # Unless that was at midnight.
    [ "$next" = "$day.2" ] || [[ $next > $day && $next == "$(date +%Y-%m-%d)" ]]
    assert_eq "$(versions)" "[\"imported\",\"one\",\"$day\",\"$next\"]"
    reads golden@one 1
    reads golden@"$day" 2
    reads golden@"$next" 3

    # A script that fails; one that begins with the image again, and fails.
    run -1 provision "$(writes 4); false" --socket "$sock"
    grep -q "golden is golden@$next again" out
    reads golden 3
    run -1 provision "cmp debian.raw <(nbdcopy \"\$uri\" -) && echo same; false" \
        --socket "$sock" --fresh
    grep -qx same out
    reads golden 3
    assert_eq "$(newest)" "$next"

    # A change without a snapshot is not thrown away without being asked.
    uri=$(uri_of golden) bash <<<"$(writes 5)"
    run -1 provision "$(writes 6)" --socket "$sock"
    grep -q "golden has changed since golden@$next: snapshot it, or use" out
    reads golden 5
    provision : --socket "$sock" --discard --snapshot last
    reads golden@last 3
    provision : --socket "$sock" --fresh --snapshot fresh
    nbdedup export golden@fresh - | cmp - debian.raw
}

@test "it starts a server if there is none, and ends it" {
    provision "$(writes 1)" --snapshot one
    assert_eq "$(versions)" '["imported","one"]'
    reads golden@one 1
    run ! grep -q "^server " "$pool/lock"
    # With a server, its socket must be named.
    serve "$pool"
    run -1 provision :
    assert_eq "$(versions)" '["imported","one"]'
}

@test "it says what is wrong before it boots anything" {
    run -2 "$top_srcdir/vm-images/provision" golden
    run -2 provision : --dance
    run -2 provision : --files
    run -1 provision : --files nothing
    grep -q 'provision: nothing: no such directory' out
    run -1 images/provision --image debian.raw golden nothing
    [[ $output == *'provision: nothing: no such script'* ]]
    run -1 provision : --image nothing
    grep -q 'provision: nothing: no such image' out

    # Another client has it.
    nbdedup import golden debian.raw
    serve "$pool"
    { echo 'read 0 512'; tail -f /dev/null --pid=$$; } |
        qemu-io -f raw "$(uri_of golden)" >/dev/null 3>&- 4>&- &
    wait_for 60 is_attached
    run -1 provision : --socket "$sock"
    grep -q 'golden: has clients' out
    kill %1
}

@test "it goes on from no version that its clock does not know yet" {
    provision "$(writes 1)" --snapshot one
    mkdir old
    cat >old/date <<'END'
#!/bin/sh
[ "$1" != +%s ] || { echo 1000; exit; }
exec /bin/date "$@"
END
    chmod +x old/date
    PATH="$PWD/old:$PATH" run -1 provision "$(writes 2)"
    grep -q "golden@one: is newer than this machine's clock" out
    reads golden 1
}

is_attached ()
{
    nbdedup list --json | jq -e '.volumes[0].clients == 1' >/dev/null
}
