#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
#
# The EXAMPLES of the manual pages, as printed, each page on a machine of its
# own: examples.py reads them, machine.bash makes the machine, and examples.bash
# prepares it as the page assumes.

load ../rigs/helpers

setup ()
{
    need unshare -rmn true
    need ip -V
    need nbdinfo --version
    need qemu-system-x86_64 --version
    here="$top_srcdir/tests/bats"
    mkdir bin scenarios
    make_programs
    PATH="$BATS_TEST_TMPDIR/bin:$PATH"
}

# examples.bash has checked the pools on the machine, where their paths exist.
teardown ()
{
    :
}

# make_programs: make programs that replace the real ones.
make_programs ()
{
    # There is no other machine.
    cat >bin/ssh <<'END'
#!/bin/sh
# ssh HOST COMMAND...: HOST is this machine with another /srv.
shift
exec unshare -m --propagation unchanged \
     sh -c 'mount --bind /srv-of-other /srv && exec "$@"' - "$@"
END
    # There is no screen, and the disks are empty.
    cat >bin/qemu-system-x86_64 <<END
#!/bin/sh
# The real one, until it has opened its drives; it must not complain.
out=\$(printf 'info block\nquit\n' | $(type -P qemu-system-x86_64) "\$@" \
          -S -display none -monitor stdio 2>&1) || exit
echo "\$out"
case \$out in
    *WARNING* | *warning*) exit 1 ;;
    *": nbd+unix:"*) ;;
    *) exit 1 ;;
esac
END
    # There may be no KVM.
    cat >bin/virsh <<END
#!/bin/sh
[ "\$1" != define ] || sed -i "s/type='kvm'/type='qemu'/" "\$2"
exec $(type -P virsh) "\$@"
END
    chmod +x bin/*
}

# read_pages POD...: read their scenarios.
read_pages ()
{
    rm -f scenarios/*
    python3 "$here/examples.py" scenarios "$@"
}

# play SCENARIO
play ()
{
    local root namespaces=-rmn

    # libvirtd does not run in a user namespace.
    if [[ $1 == *libvirt* && $(id -u) = 0 ]]; then
        namespaces=-mn
    fi
    root=$(mktemp -d "$BATS_TEST_TMPDIR/rootXXXX")
    timeout 300 unshare "$namespaces" \
        bash "$here/machine.bash" "$root" "$plugin" \
        bash "$here/examples.bash" "$PWD/scenarios/$1" 3>&- 4>&-
}

# play_all: play every scenario; show all that fail.
play_all ()
{
    local scenario failed=()

    for scenario in scenarios/*; do
        scenario=$(basename "$scenario")
        echo "== $scenario"
        play "$scenario" >log 2>&1 || { cat log; failed+=("$scenario"); }
    done
    assert_eq "${failed[*]}" ""
}

@test "the examples of the command's pages do what they say" {
    need zstd --version
    read_pages "$top_srcdir"/tools/*.pod
    # Every page has a scenario, and none was overlooked.
    assert_eq "$(cd scenarios && printf '%s\n' * | sort)" \
              "$(cd "$top_srcdir/tools" && basename -s .pod -- *.pod | sort)"
    play_all
}

# headings POD...: "PAGE: HEADING" of each in its EXAMPLES, or PAGE.
headings ()
{
    local page name

    for page; do
        name=$(basename "$page" .pod)
        sed -n '/^=head1 EXAMPLES/,$p' "$page" | sed '1!{/^=head1/,$d}' |
            sed -n "1s/.*/$name/p; s/^=head2 /$name: /p" |
            sed '1{$!d}'
    done
}

@test "the examples of the plugin's page, the recipes and others do what they say" {
    need certtool --version
    need psktool --version
    need libvirtd --version
    need xmllint --version
    read_pages "$top_srcdir"/{lib,plugin}/*.pod
    # Every heading of a recipe has a scenario, and none was overlooked.
    assert_eq "$(cd scenarios && printf '%s\n' * | LC_ALL=C sort)" \
              "$(headings "$top_srcdir"/{lib,plugin}/*.pod | LC_ALL=C sort)"
    play_all
}

@test "an example that is wrong is found" {
    while IFS= read -r line; do
        printf '=head1 EXAMPLES\n\n nbdedup create web1 20G\n %s\n' "$line" \
               >nbdedup-create.pod
        read_pages nbdedup-create.pod
        run ! play nbdedup-create
        [[ $output == *"FAILED"* ]] || fail "$line: $output"
    done <<'END'
nbdedup create web2 --size 20G
nbdedup check | false
nbdedup stat --json | jq .pool.nothing
nbdedup export web1 /nowhere/web1.raw && true
END
    printf '=head1 EXAMPLES\n\n nbdedup create "web1\n' >nbdedup-create.pod
    run -1 read_pages nbdedup-create.pod
    [[ $output == *'this is no command: nbdedup create "web1'* ]]
}

@test "what is not run is printed in a page" {
    read_pages "$top_srcdir"/{lib,plugin,tools}/*.pod
    entries=$(sed -n "s/^    \['\(.*\)'\]=.*/command '\1'/p" \
                  "$here/examples.bash")
    assert_eq "$(wc -l <<<"$entries")" 8
    while IFS= read -r entry; do
        cat scenarios/* | grep -qxF -e "$entry" || fail "$entry"
    done <<<"$entries"
}
