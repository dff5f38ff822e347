# SPDX-License-Identifier: BSD-3-Clause
#
# "nbdedup drift --files": real file systems, made by the tools that guests use,
# and changed by known files.
#
# FILES_ROUNDS (default 40) is the number of damaged images of each file system,
# SEED their seed.

# helpers.bash and "run" set what seems to be unset
# shellcheck disable=SC2154,SC2030,SC2031

load ../rigs/helpers
load ../rigs/files

setup ()
{
    [ -x "$NBDEDUP_LIBEXEC/nbdedup-files" ] ||
        skip "this build has no libtsk"
}

make_root ()
{
    mkdir -p root/etc root/srv root/usr/bin root/var/log root/boot \
             root/var/lib/dpkg/info root/var/cache/apt root/tmp
    echo /dev/vda1 >root/etc/fstab
    random_data 300K 1 >root/usr/bin/tool
    printf '/.\n/usr/bin/tool\n/bin/other\n' \
           >root/var/lib/dpkg/info/tool:amd64.list
    echo /usr/bin/more >root/var/lib/dpkg/info/more.list
}

# Clones a and b have the same new files of a package; a has a log and others
# of its own, and has deleted one.
make_ext ()
{
    make_root
    truncate -s 48M img
    mke2fs -q -b 4096 -t "${1:-ext4}" -d root img
    cp img a; cp img b
    random_data 400K 2 >more
    random_data 1M 3 >big
    random_data 200K 4 >log
    random_data 100K 5 >gone
    for i in a b; do
        put_file $i more /usr/bin/more
        put_file $i more /usr/bin/other
    done
    put_file a big /srv/big
    put_file a log /var/log/syslog
    put_file a log /boot/initrd.img
    put_file a gone /tmp/gone
    debugfs -w -R "rm /tmp/gone" a 2>/dev/null >&2
}

@test "each file has its bytes, for small and large blocks" {
    make_ext
    for size in 4K 16K 64K; do
        make_golden img --block-size $size
        write_clone a a
        write_clone b b
        run -0 nbdedup drift golden@v1 --files --json
        printf '%s' "$output" >json
        check_sums
        assert_eq "$(bytes_of a unique /srv/big)" 1048576
        assert_eq "$(bytes_of a unique /srv/)" 1048576
        assert_eq "$(bytes_of b unique /srv/big)" 0
        [ "$(bytes_of a unique '<free space>')" -ge 102400 ]
        [ "$(bytes_of a unique '<metadata>')" -gt 0 ]
        if [ $size = 4K ]; then
            assert_eq "$(bytes_of a sibling /usr/bin/more)" 409600
            # The initrd has the log's content.
            assert_eq "$(bytes_of a unique /var/log/syslog)" 204800
            assert_eq "$(bytes_of a unique /boot/initrd.img)" 204800
            assert_eq "$(jq '[.clones[0].packages[].package]' -c json)" \
                      '["more","tool"]'
            assert_eq "$(jq -r '.clones[1].files | map (.path) |
                         index ("/") != null' json)" true
        fi
        nbdedup drift golden@v1 --json | jq '.clones' >plain
        jq '.clones | map (del (.files, .causes, .packages, .notes))' json |
            diff - plain
        rm -r "$pool"
    done
}

@test "ext2 and ext3, with a journal that changed" {
    for type in ext2 ext3; do
        make_ext $type
        if [ $type = ext3 ]; then
            random_data 64K 9 >noise
            at=$(debugfs -R 'blocks <8>' img 2>/dev/null | cut -d' ' -f100)
            dd if=noise of=a bs=4096 seek="$at" conv=notrunc status=none
        fi
        make_golden img --block-size 4K
        write_clone a a
        nbdedup drift golden@v1 --files --json >json
        check_sums
        # With its indirect block.
        assert_eq "$(bytes_of a unique /srv/big)" $((1048576 + 4096))
        [ $type = ext2 ] || assert_eq "$(bytes_of a unique '<journal>')" 65536
        rm -r "$pool" root
    done
}

@test "a file of ext4 with many extents" {
    need losetup -f
    make_root
    truncate -s 48M img
    mke2fs -q -b 1024 -t ext4 -d root img
    cp img a
    mkdir mnt
    mount -o loop a mnt
    random_data 2M 7 >mnt/srv/one
    sync -f mnt/srv/one
    for i in {0..255}; do
        fallocate -p -o $((i * 8192)) -l 4096 mnt/srv/one
    done
    extents=$(filefrag -v mnt/srv/one | wc -l)
    umount mnt
    [ "$extents" -gt 250 ]
    make_golden img --block-size 4K
    write_clone a a
    nbdedup drift golden@v1 --files --json >json
    check_sums
    [ "$(bytes_of a unique /srv/one)" -ge 1048576 ]
}

@test "preallocated blocks with what a deleted file left there are the file's" {
    need losetup -f
    make_root
    truncate -s 48M img
    mke2fs -q -b 4096 -t ext4 -d root img
    cp img a
    mkdir mnt
    mount -o loop a mnt
    random_data 4M 7 >mnt/srv/gone
    sync -f mnt
    rm mnt/srv/gone
    sync -f mnt
    fallocate -l 20M mnt/srv/wal
    truncate -s 8M mnt/srv/holes
    umount mnt
    make_golden img --block-size 4K
    write_clone a a
    nbdedup drift golden@v1 --files --json >json
    check_sums
    [ "$(bytes_of a unique /srv/wal)" -ge 4000000 ]
    [ "$(bytes_of a unique '<metadata>')" -lt 100000 ]
    assert_eq "$(bytes_of a unique /srv/holes)" 0
}

@test "the same through a server, without one, and read-only" {
    make_ext
    make_golden img --block-size 4K
    write_clone a a
    nbdedup drift golden@v1 --files --json | jq 'del (.time)' >json
    serve "$pool"
    nbdedup drift golden@v1 --files --json | jq 'del (.time)' | diff json -
    nbdedup drift --files --json | jq '.goldens[0] | del (.time)' | diff json -
    stop
    nbdedup drift golden@v1 --files --json --read-only | jq 'del (.time)' |
        diff json -
    run ! nbdedup drift golden@nothing --files
    [[ $output == "nbdedup: drift: "*"golden@nothing"* ]]
}

@test "for people: causes, packages and paths" {
    make_ext
    make_golden img --block-size 4K
    write_clone a a
    write_clone b b
    nbdedup clone golden@v1 same
    run -0 --separate-stderr nbdedup drift golden@v1 --files
    [[ $output == *"a, why:"*"CAUSE"*"package upgrade"*"initrd"* ]]
    [[ $output == *"logs "*"200 KiB"* ]]
    [[ $output == *"packages: more 400 KiB (the same on 2 clones), tool "* ]]
    [[ $output == *"/srv/big "*"1.00 MiB"* ]]
    [[ $output == *"same has nothing that golden@v1 lacks"* ]]
}

@test "a partitioned disk: the root's paths, the others', swap, unknown content" {
    make_root
    truncate -s 32M root.img esp.img
    truncate -s 320M xfs.img
    mke2fs -q -b 4096 -t ext4 -d root root.img
    mkfs.vfat -F 16 esp.img >/dev/null
    mkfs.xfs -q -f xfs.img
    truncate -s 420M img
    sfdisk -q img <<'END'
label: gpt
start=2048, size=65536
start=67584, size=65536
start=133120, size=16384
start=149504, size=16384
start=165888, size=655360
END
    place () { dd if="$1" of="$2" bs=512 seek="$3" conv=notrunc,sparse status=none; }
    place root.img img 2048
    place esp.img img 67584
    place xfs.img img 165888
    truncate -s 8M swap.img
    mkswap swap.img >/dev/null
    place swap.img img 133120
    printf 'LUKS\272\276' >luks.img
    place luks.img img 149504
    random_data 1M 3 >big
    random_data 512K 4 >efi
    random_data 256K 5 >noise
    cp img a
    put_file root.img big /srv/big
    place root.img a 2048
    mcopy -i esp.img efi ::/efi.bin
    place esp.img a 67584
    dd if=noise of=a bs=512 seek=$((133120 + 1024)) conv=notrunc status=none
    dd if=noise of=a bs=512 seek=$((149504 + 1024)) conv=notrunc,swab status=none
    tr '\0-\377' '\1-\377\0' <noise >noise2
    dd if=noise2 of=a bs=512 seek=$((165888 + 2048)) conv=notrunc status=none
    head -c 4096 big | tr '\0-\377' '\2-\377\0\1' >boot
    dd if=boot of=a bs=512 seek=64 conv=notrunc status=none
    make_golden img --block-size 4K
    write_clone a a
    nbdedup drift golden@v1 --files --json >json
    check_sums
    assert_eq "$(bytes_of a unique /srv/big)" 1048576
    assert_eq "$(bytes_of a unique p2:/efi.bin)" 524288
    assert_eq "$(bytes_of a unique p2:/)" 524288
    assert_eq "$(bytes_of a unique '<swap>')" 262144
    assert_eq "$(bytes_of a unique '<encrypted>')" 262144
    assert_eq "$(bytes_of a unique '<unknown>')" 262144
    assert_eq "$(bytes_of a unique '<outside of file systems>')" 4096
    assert_eq "$(jq -c '.clones[0].notes' json)" '["partition 4: LUKS, encrypted: its files cannot be seen","partition 5: XFS: its files cannot be seen"]'
}

make_ntfs ()
{
    truncate -s 24M img
    mkntfs -q -F -c 4096 img >/dev/null 2>&1
    random_data 500K 1 >old
    ntfscp -q -f img old base.bin 2>/dev/null
    cp img a
    random_data 1M 2 >big
    ntfscp -q -f a big big.bin 2>/dev/null
}

make_fat ()
{
    truncate -s 24M img
    mkfs.vfat img >/dev/null
    random_data 500K 1 >old
    mcopy -i img old ::/base.bin
    mmd -i img ::/DIR
    cp img a
    random_data 1M 2 >big
    mcopy -i a big ::/DIR/big.bin
}

@test "NTFS and FAT" {
    make_ntfs
    make_golden img --block-size 4K
    write_clone a a
    nbdedup drift golden@v1 --files --json >json
    check_sums
    assert_eq "$(bytes_of a unique /big.bin)" 1048576
    assert_eq "$(bytes_of a unique /base.bin)" 0
    [ "$(bytes_of a unique '<metadata>')" -gt 0 ]
    rm -r "$pool"
    make_fat
    make_golden img --block-size 64K
    write_clone a a
    nbdedup drift golden@v1 --files --json >json
    check_sums
    assert_eq "$(bytes_of a unique /DIR/big.bin)" 1048576
    assert_eq "$(bytes_of a unique /DIR/)" 1048576
}

@test "an image that ends inside a block, or has no file system" {
    random_data 100K 1 >img
    truncate -s 1000448 img
    cp img a
    random_data 3584 2 >tail
    dd if=tail of=a bs=512 seek=1947 conv=notrunc status=none
    make_golden img --block-size 64K
    write_clone a a
    nbdedup drift golden@v1 --files --json >json
    check_sums
    assert_eq "$(bytes_of a unique '<outside of file systems>')" 48128
    assert_eq "$(bytes_of a unique '<unknown>')" 17408
    assert_eq "$(jq -c '.clones[0].notes' json)" '["the disk: no known file system"]'
}

# damage_clones N: let each of the clones 1 .. N have an image of the file
# system in "a" with flipped bits, in its metadata: what is not zero, and not
# a file's random data.
damage_clones ()
{
    python3 - "$1" "${SEED:-1}" <<'END'
import random, sys
rng = random.Random(int(sys.argv[2]))
data = open("a", "rb").read()
big = set(open(f, "rb").read()[i:i + 4096] for f in ("big", "more", "old")
          if __import__("os").path.exists(f)
          for i in range(0, 2 << 20, 4096))
blocks = [i for i in range(0, len(data), 4096)
          if data[i:i + 4096].strip(b"\0") and data[i:i + 4096] not in big]
for n in range(1, int(sys.argv[1]) + 1):
    bad = bytearray(data)
    for _ in range(rng.choice((1, 4, 30, 300))):
        block = rng.choice(blocks)
        used = [i for i in range(block, block + 4096) if data[i]]
        at = rng.choice(used) if rng.random() < .7 else \
            block + rng.randrange(4096)
        bad[at] = rng.choice((bad[at] ^ 1 << rng.randrange(8), 0xff, 0,
                              rng.randrange(256)))
    open("bad%d" % n, "wb").write(bad)
END
    serve "$pool"
    for ((i = 1; i <= $1; i++)); do
        qemu-img convert -n -f raw -O raw "bad$i" "$(uri_of "bad$i")"
        rm "bad$i"
    done
    stop
}

# fuzz N
fuzz ()
{
    make_golden img --block-size 4K
    nbdedup clone golden@v1 bad --count "$1"
    damage_clones "$1"
    run -0 --separate-stderr nbdedup drift golden@v1 --files --json
    printf '%s' "$output" >json
    assert_eq "$(jq '.clones | length' json)" "$1"
    check_sums
    same_without_map
    rm -r "$pool"
}

@test "damaged file systems neither stop the command nor change a sum" {
    make_ext
    fuzz "${FILES_ROUNDS:-40}"
    make_ntfs
    fuzz "${FILES_ROUNDS:-40}"
    make_fat
    fuzz "${FILES_ROUNDS:-40}"
}

# lying_helper CODE: Python that talks to the parent.
lying_helper ()
{
    mkdir -p liar
    cat >liar/nbdedup-files <<END
#!/usr/bin/python3 -IS
import os, struct, sys
def message(kind, a = 0, b = 0, data = b""):
    os.write(4, struct.pack("=IIQQ", kind, len(data), a, b) + data)
READ, OWNER, EXTENT, PACKAGE, FILES, NOTE, DONE = range(1, 8)
size = int(sys.argv[1])
$1
END
    chmod +x liar/nbdedup-files
}

# A helper that parses a hostile image may do anything.  What it says is used
# only if all of it can be true.
@test "a helper that lies, ends or sends nonsense cannot mislead the command" {
    local case
    make_fat
    make_golden img --block-size 4K
    write_clone a a
    export NBDEDUP_LIBEXEC=$PWD/liar
    local total
    total=$(nbdedup drift golden@v1 --json |
            jq '.clones[0].unique * .block_size')
    cases=(
        'message(EXTENT, 0, 512); message(DONE)'
        'message(OWNER, data=b"/x"); message(EXTENT, size, 512); message(DONE)'
        'message(OWNER, data=b"/x"); message(EXTENT, 2**64 - 512, 1024); message(DONE)'
        'message(OWNER, data=b"/x"); message(EXTENT, 0, 0); message(DONE)'
        'message(OWNER, data=b"/x"); message(EXTENT, 0, size); message(EXTENT, 512, 512); message(DONE)'
        'message(OWNER, data=b"/x"); message(EXTENT, 0, size)'
        'message(READ, size, 1)'
        'message(READ, 0, 2**40)'
        'message(READ, 0, 0)'
        'message(FILES, data=b"/x"); message(DONE)'
        'message(99, data=b"?")'
        'os.write(4, struct.pack("=IIQQ", OWNER, 2**31, 0, 0))'
        'os.write(4, b"nonsense" * 10000)'
        'os.abort()'
        'sys.exit(3)'
        'x = [b"x" * 2**20 for i in range(2000)]'
    )
    for case in "${cases[@]}"; do
        lying_helper "$case"
        nbdedup drift golden@v1 --files --json >json
        check_sums
        assert_eq "$(bytes_of a unique '<unknown>')" "$total" "$case"
        [[ $(jq -r '.clones[0].notes[0]' json) == "all of it: "* ]]
    done
    # The truth, and names that would change the terminal or the document.
    lying_helper 'message(OWNER, data=b"/\x1b[2J\xff\xe2\x80\xae\n/n"); message(EXTENT, 0, size); message(NOTE, data=b"\x07"); message(DONE)'
    nbdedup drift golden@v1 --files --json >json
    check_sums
    assert_eq "$(bytes_of a unique '/\x1b[2J\xff\xe2\x80\xae\x0a/n')" "$total"
    assert_eq "$(jq -r '.clones[0].notes[0]' json)" '\x07'
}

# The helper has no files, no network and no other processes.
@test "the helper is confined" {
    make_fat
    make_golden img --block-size 4K
    write_clone a a
    export NBDEDUP_LIBEXEC=$PWD/liar
    echo secret >secret
    lying_helper '
import socket
open("/nbdedup-ranges", "rb").read(16)
for name in "'"$PWD"'/secret", "/etc/passwd", "/usr/share/common-licenses/GPL-3":
    try:
        open(name)
        message(NOTE, data=b"opened " + name.encode())
    except OSError:
        pass
try:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    message(NOTE, data=b"socket")
except OSError:
    pass
try:
    os.fork()
    message(NOTE, data=b"fork")
except OSError:
    pass
message(NOTE, data=b"end")
message(DONE)'
    nbdedup drift golden@v1 --files --json >json
    assert_eq "$(jq -c '.clones[0].notes' json)" '["end"]'
}

@test "a program in its build tree finds the helper there" {
    local path
    make_fat
    make_golden img --block-size 4K
    write_clone a a
    lying_helper 'message(NOTE, data=b"built"); message(DONE)'
    mkdir -p tree/tools
    touch tree/config.status
    cp "$(type -P nbdedup)" tree/tools/
    mv liar tree/tools/files
    chmod -R go-w tree
    unset NBDEDUP_LIBEXEC
    PATH=$PWD/tree/tools:$PATH
    notes () { nbdedup drift golden@v1 --files --json | jq '.clones[0].notes'; }
    assert_eq "$(notes | jq -c .)" '["built"]'
    # Not what others could have put there, nor where there is no build.
    for path in tree/tools tree/tools/files tree/tools/files/nbdedup-files; do
        chmod o+w "$path"
        run notes
        [[ $output != *built* ]] || fail "$path"
        chmod o-w "$path"
    done
    rm tree/config.status
    run notes
    [[ $output != *built* ]]
}

@test "wrong usage, and a helper that is not there" {
    make_pool
    for option in --history --record --csv "--svg x" "--if-destroyed v"; do
        # shellcheck disable=SC2086 # an option and its value
        misused "--files cannot be used with" drift --files $option
    done
    NBDEDUP_LIBEXEC=$PWD/none refused "libtsk-dev" drift --files
    NBDEDUP_LIBEXEC=$PWD/none refused "--advise needs the program $PWD/none/nbdedup-files" drift --advise
    assert_eq "$(nbdedup drift --files --json | jq -c .)" '{"goldens":[]}'
    run -0 nbdedup drift --files
    assert_eq "$output" "no golden images: no volume is a clone of a snapshot"
}
