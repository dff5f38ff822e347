#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# tests/chroot and tests/other-release: when a chroot is made, made again, or
# cannot be made, and what CI makes of that.  The release in the chroot is a
# small one, of busybox.

load ../rigs/helpers

setup ()
{
    need_root
    need unshare --mount --pid --fork mount -t proc proc /proc
    need git --version
    need busybox true
    [ -x /usr/lib/apt/apt-helper ] || skip "prerequisite missing: apt-helper"

    export NBDEDUP_CHROOTS=$BATS_TEST_TMPDIR/chroots
    root=$NBDEDUP_CHROOTS/trixie
    archive=$BATS_TEST_TMPDIR/archive
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mkdir -p "$archive/dists/$release"
    touch "$archive/dists/$release/InRelease"
    PATH=$BATS_TEST_TMPDIR/bin:$PATH
    make_programs
    make_tree
}

# The machine's apt, with one source, and mmdebstrap, which notes its calls.
make_programs ()
{
    mkdir "$BATS_TEST_TMPDIR/bin"
    cat >"$BATS_TEST_TMPDIR/bin/apt-get" <<SCRIPT
#!/bin/sh
[ "\$1" != indextargets ] || echo "deb file:$archive $release main"
SCRIPT
    cat >"$BATS_TEST_TMPDIR/bin/mmdebstrap" <<SCRIPT
#!/bin/sh
set -e
for root in "\$@"; do
    case \$root in */trixie-t) break ;; esac
done
cat >>"$BATS_TEST_TMPDIR/made"
[ -e "$archive/dists" ] || exit 1
for dir in bin dev etc proc sys var/lib/dpkg/updates; do
    mkdir -p "\$root/\$dir"
done
mkdir "\$root/dev/shm"
cp "$(type -P busybox)" "\$root/bin/"
chroot "\$root" /bin/busybox --install -s /bin
rm -f "\$root/bin/dpkg"
printf '#!/bin/sh\n[ ! -e /audit ] || cat /audit\n' >"\$root/bin/dpkg"
chmod 755 "\$root/bin/dpkg"
SCRIPT
    chmod 755 "$BATS_TEST_TMPDIR/bin/"*
}

# A tree with the scripts alone, because it is cloned again and again.
make_tree ()
{
    tree=$BATS_TEST_TMPDIR/tree
    mkdir -p "$tree/tests" "$tree/vm-images"
    cp "$top_srcdir/tests/chroot" "$tree/tests/"
    cp "$top_srcdir/vm-images/debian-image" "$tree/vm-images/"
    git -C "$tree" -c init.defaultBranch=main init -q
    git -C "$tree" add .
    git -C "$tree" -c user.name=test -c user.email=test@example.com \
        commit -qm test
    # As a container's checkout may be: another user's.
    chown -R nobody "$tree"
}

in_chroot ()
{
    "$tree/tests/chroot" "$@" 3>&- 4>&-
}

# made COUNT: mmdebstrap has been called so often, with the other release.
made ()
{
    assert_eq "$(grep -cx "deb file:$archive trixie main" \
                      "$BATS_TEST_TMPDIR/made")" "$1" "calls of mmdebstrap"
}

@test "the command runs in the chroot, in a clone, and its status is the script's" {
    run -3 in_chroot trixie sh -c 'pwd; ls tests vm-images; exit 3'
    [[ $output == *$'/build/nbdedup\ntests:\nchroot\n'*debian-image ]] ||
        fail "$output"
    # What the next run does not find in the clone is gone; --keep keeps it.
    run -0 in_chroot trixie touch left
    run -1 in_chroot trixie ls left
    run -0 in_chroot trixie touch left
    run -0 in_chroot --keep trixie ls left
    made 1
}

@test "--fresh makes a chroot again if it is old, or not whole" {
    run -0 in_chroot --fresh 14 trixie touch /mark
    run -0 in_chroot --fresh 14 trixie ls /mark
    made 1

    touch -d '13 days ago' "$root/build/made"
    run -0 in_chroot --fresh 14 trixie ls /mark
    touch -d '15 days ago' "$root/build/made"
    run -0 in_chroot trixie touch /mark
    made 1
    run -1 in_chroot --fresh 14 trixie ls /mark
    made 2

    touch "$root/var/lib/dpkg/updates/0001" "$root/mark"
    run -1 in_chroot --fresh 14 trixie ls /mark
    echo "half installed" >"$root/audit"
    touch "$root/mark"
    run -1 in_chroot --fresh 14 trixie ls /mark
    made 4
    rm "$root/bin/dpkg"
    run -0 in_chroot --fresh 14 trixie true
    rm "$root/build/made"
    run -0 in_chroot --fresh 14 trixie true
    made 6
}

@test "without a network there is no chroot, or the old one" {
    run -0 in_chroot trixie touch /mark
    mv "$archive/dists" "$archive/away"

    touch -d '15 days ago' "$root/build/made"
    run -0 in_chroot --fresh 14 trixie ls /mark
    [[ $output == *"the old one stays"* ]] || fail "$output"
    # One that is not whole is of no use.
    touch "$root/var/lib/dpkg/updates/0001"
    run -77 in_chroot --fresh 14 trixie ls /mark
    [[ ${lines[-1]} == "chroot: cannot make a Debian trixie: its archive does"* ]] ||
        fail "$output"
    rm -r "$root"
    run -77 in_chroot trixie true
    [ ! -e "$root" ] || fail "there is a chroot"

    mv "$archive/away" "$archive/dists"
    run -0 in_chroot trixie true
}

@test "a chroot that cannot be made though there is a network is a failure" {
    printf '#!/bin/sh\necho no; exit 1\n' >"$BATS_TEST_TMPDIR/bin/mmdebstrap"
    run -1 in_chroot trixie true
    [[ ${lines[-1]} == *"though its archive answers" ]] || fail "$output"
}

@test "without root there is no chroot" {
    # A user who is root nowhere, in a tree that every user can read.
    chmod -R go+rX "$tree"
    run -77 unshare --user "$tree/tests/chroot" trixie true
    assert_eq "$output" "chroot: this needs root"
}

@test "two runs in one chroot come one after the other" {
    local first second

    in_chroot trixie sh -c 'touch /began
        until [ -e /go ]; do sleep 0.1; done; echo first >>/order' \
        >"$BATS_TEST_TMPDIR/first" 2>&1 &
    first=$!
    wait_for 60 test -e "$root/began"
    in_chroot trixie sh -c 'echo second >>/order' \
        >"$BATS_TEST_TMPDIR/second" 2>&1 &
    second=$!
    wait_for 60 grep -q 'waiting until it ends' "$BATS_TEST_TMPDIR/second"
    touch "$root/go"
    wait "$first"
    wait "$second"
    assert_eq "$(cat "$root/order")" $'first\nsecond'
}

# other_release STATUS...: run tests/other-release with a tests/chroot whose
# calls have these results; prints the calls, too.
other_release ()
{
    local dir=$BATS_TEST_TMPDIR/fake

    mkdir -p "$dir"
    cp "$top_srcdir/tests/other-release" "$dir/"
    printf '%s\n' "$@" >"$dir/results"
    cat >"$dir/chroot" <<SCRIPT
#!/bin/sh
echo "call: \$*"
status=\$(head -n 1 "$dir/results")
sed -i 1d "$dir/results"
exit \$status
SCRIPT
    chmod 755 "$dir/chroot"
    "$dir/other-release"
}

@test "other-release tells what failed from what cannot run here" {
    local suite=trixie

    case $release in
        bookworm) ;;
        trixie) suite=bookworm ;;
        *) skip "this machine has neither Debian 12 nor 13" ;;
    esac
    run -0 other_release 0 0
    assert_eq "${lines[0]}" \
        "call: --fresh 14 $suite tests/prepare --platform --packages"
    assert_eq "${lines[-1]}" \
        "call: $suite tests/run --platform --enable-werror"
    run -1 other_release 0 1            # tests failed
    run -77 other_release 77            # no chroot
    run -77 other_release 100 100       # no packages, and no archive
    [[ ${lines[-1]} == *"its archive does not answer" ]] || fail "$output"
    run -1 other_release 100 0          # no such package, for example
}

@test "a step of CI passes, fails, or is skipped with its reason" {
    local name

    cd "$BATS_TEST_TMPDIR"
    mkdir -p _build/tests/bats
    touch -d '1 hour ago' _build/ci-begin
    # shellcheck source=/dev/null
    source <(sed -n '/^step ()/,/^}/p; /^note_failures ()/,/^}/p' "$top_srcdir/.ci/run")
    declare -F step
    for name in 0 77 1; do
        step "step $name" sh -c "echo why; echo 'FAIL: bats/x.bats 1 name'; exit $name"
    done >out
    assert_eq "$(cat _build/ci-failures)" $'ci: failed: step 1\nFAIL: bats/x.bats 1 name'
    echo '# hung: bats x.bats has taken 9 s' >_build/tests/bats/x.log
    note_failures tests out
    [[ $(cat _build/ci-failures) == *"ci: failed: tests"*"# hung: bats x.bats"* ]]
    assert_eq "$(cat _build/ci-results)" $'passed\nskipped\nfailed'
    grep -x 'ci: step 77: SKIPPED: FAIL: bats/x.bats 1 name' out
}
