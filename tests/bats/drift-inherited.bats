# SPDX-License-Identifier: BSD-3-Clause
#
# "nbdedup drift --files" of several clones: what they inherit is the golden
# image's, whose files are read once.

# helpers.bash and "run" set what seems to be unset
# shellcheck disable=SC2154,SC2030,SC2031

load ../rigs/helpers
load ../rigs/files

setup ()
{
    [ -x "$NBDEDUP_LIBEXEC/nbdedup-files" ] ||
        skip "this build has no libtsk"
}

# make_tree: directories, hard links, and 300 packages with lists of 8 KiB.
make_tree ()
{
    local i
    mkdir -p root/etc root/srv/{a,b,c}/{1,2,3} root/var/lib/dpkg/info root/home
    echo /dev/vda1 >root/etc/fstab
    for i in {1..300}; do
        { printf '/srv/a/1/%s\n' "f$i" "more-$i"
          random_data 6K "$i" | base64; } >"root/var/lib/dpkg/info/p$i.list"
        random_data 3K $((i + 1000)) >"root/srv/a/$((i % 3 + 1))/f$i"
    done
    ln root/srv/a/1/f3 root/srv/b/1/linked
    ln -s ../a root/srv/b/symbolic
}

# change_tree DIR: what a machine does to its disk.
change_tree ()
{
    mv "$1/srv/a" "$1/home/moved"
    mv "$1/srv/b/1/linked" "$1/srv/c/renamed"
    random_data 60K 1 >"$1/home/moved/1/more-5"
    random_data 3K 2 >>"$1/home/moved/1/f6"
    rm "$1/home/moved/2/f1" "$1/var/lib/dpkg/info/p7.list"
    echo /home/moved/1/more-5 >>"$1/var/lib/dpkg/info/p8.list"
    random_data 100K 3 >"$1/srv/c/2/new"
    ln "$1/srv/c/2/new" "$1/srv/c/3/too"
    mkdir -p "$1/srv/a/1/deep/er"
    random_data 20K 4 >"$1/srv/a/1/deep/er/f"
    chmod 600 "$1/home/moved/1/"*
}

# with_mount IMAGE MOUNT-COMMAND COMMAND...: in mnt.
with_mount ()
{
    mkdir -p mnt
    $2 "$1" mnt
    "${@:3}"
    sync -f mnt
    umount mnt
}

@test "ext2, ext3, ext4: renamed, linked, changed, deleted, grown" {
    need losetup -f
    make_tree
    for type in ext2 ext3 ext4; do
        truncate -s 48M img
        mke2fs -q -b 1024 -t $type -d root img
        cp img a; cp img c; cp img d
        with_mount a "mount -o loop" change_tree mnt
        cp a b
        with_mount b "mount -o loop" rm -r mnt/home/moved/2
        truncate -s 90M c
        resize2fs -f c >/dev/null 2>&1
        with_mount c "mount -o loop" cp a mnt/srv/whole
        random_data 64K 8 >noise
        dd if=noise of=d bs=1024 seek=40000 conv=notrunc status=none
        for size in 4K 64K; do
            make_golden img --block-size $size
            write_clone a a
            write_clone b b
            nbdedup clone golden@v1 c
            nbdedup resize c 90M
            write_content c c
            write_clone d d
            same_without_map
            cp with json
            check_sums
            assert_eq "$(jq -c '[.clones[].notes[]]' json)" '[]'
            if [ $type = ext4 ] && [ $size = 4K ]; then
                [ "$(bytes_of c unique /srv/whole)" -gt 1000000 ]
                [ "$(bytes_of a sibling /home/moved/1/more-5)" -gt 50000 ]
                same_without_map --advise
            fi
            rm -r "$pool"
        done
    done
}

@test "NTFS and FAT beside it, in partitions" {
    need test -c /dev/fuse
    make_tree
    rm root/srv/b/symbolic
    truncate -s 48M ntfs
    mkntfs -q -F -c 4096 ntfs >/dev/null 2>&1
    with_mount ntfs ntfs-3g cp -r root/. mnt
    truncate -s 24M esp
    mkfs.vfat esp >/dev/null
    mcopy -i esp root/srv/a/1/* ::/
    truncate -s 80M img
    sfdisk -q img <<'END'
label: gpt
start=2048, size=98304
start=100352, size=49152
END
    place () { dd if="$1" of="$2" bs=512 seek="$3" conv=notrunc status=none; }
    place ntfs img 2048
    place esp img 100352
    cp img a
    with_mount ntfs ntfs-3g change_tree mnt
    place ntfs a 2048
    random_data 200K 9 >big
    mcopy -i esp big ::/
    place esp a 100352
    cp a b
    with_mount ntfs ntfs-3g rm -r mnt/home/moved/2
    place ntfs b 2048
    for size in 4K 64K; do
        make_golden img --block-size $size
        write_clone a a
        write_clone b b
        same_without_map
        cp with json
        check_sums
        [ "$(bytes_of a sibling /srv/c/2/new)" -gt 90000 ]
        [ "$(bytes_of b sibling p2:/big)" -gt 190000 ]
        rm -r "$pool"
    done
}

@test "an inode that is marked free is no file's, although it did not change" {
    make_tree
    truncate -s 48M img
    mke2fs -q -b 4096 -t ext4 -d root img
    make_golden img --block-size 4K
    random_data 1M 9 >new
    put_file img new /srv/new
    write_clone a img
    # The file's own blocks change, not its inode.
    for i in {1..300..9}; do
        debugfs -w -R "freei /srv/a/$((i % 3 + 1))/f$i" img 2>/dev/null >&2
        at=$(debugfs -R "bmap /srv/a/$((i % 3 + 1))/f$i 0" img 2>/dev/null)
        dd if=new of=img bs=4096 count=1 skip=$((i % 7)) seek="$at" \
           conv=notrunc status=none
    done
    write_clone b img
    same_without_map
    cp with json
    assert_eq "$(bytes_of b sibling /srv/a/2/f1)" 0
}

# reads: how many messages the helpers and the command exchange.
reads ()
{
    strace -f -qq -e trace=sendto -e signal=none -o trace \
           nbdedup drift golden@v1 --files --json >/dev/null
    grep -c sendto trace
}

@test "what clones inherit is read once" {
    make_tree
    truncate -s 48M img
    mke2fs -q -b 4096 -t ext4 -d root img
    make_golden img --block-size 4K
    random_data 20K 9 >new
    put_file img new /srv/new
    for i in {1..6}; do
        write_clone "c$i" img
    done
    plain_helper
    with=$(reads)
    without=$(NBDEDUP_LIBEXEC=$PWD/plain reads)
    # One golden image instead of six clones, whose own parts are small.
    [ "$with" -lt $((without / 2)) ] ||
        fail "$with messages with a map, $without without"
    same_without_map
    # One clone needs no map.
    for i in {2..6}; do
        nbdedup destroy "c$i" --force
    done
    same_without_map
}

# make_two_clones: a and b, with a file that the golden image lacks.
make_two_clones ()
{
    make_tree
    truncate -s 48M img
    mke2fs -q -b 4096 -t ext4 -d root img
    make_golden img --block-size 4K
    random_data 20K 9 >new
    put_file img new /srv/new
    write_clone a img
    write_clone b img
}

# lying_map CODE: a helper that says this of the golden image, and is honest
# about the clones.
lying_map ()
{
    mkdir -p liar
    cat >liar/nbdedup-files <<END
#!/usr/bin/python3 -IS
import os, struct, sys
if sys.argv[2:] != ["map"]:
    os.execv("$NBDEDUP_LIBEXEC/nbdedup-files", sys.argv)
def message(kind, a = 0, b = 0, data = b""):
    os.write(4, struct.pack("=IIQQ", kind, len(data), a, b) + data)
READ, OWNER, EXTENT, PACKAGE, FILES, NOTE, DONE, MAP = range(1, 9)
FS, FILE, DIR, LIST = range(1, 5)
def record(kind, inode, data):
    return struct.pack("=IIQ", kind, 16 + len(data), inode) + data
size = int(sys.argv[1])
$1
message(DONE)
END
    chmod +x liar/nbdedup-files
}

@test "a helper that lies about the golden image cannot end the others" {
    local case
    make_two_clones
    nbdedup drift golden@v1 --files --json | jq 'del (.time)' >truth
    cases=(
        'pass'
        'os.abort()'
        'message(MAP, data=b"nonsense" * 1000)'
        'message(MAP, data=b"x")'
        'message(MAP, data=struct.pack("=IIQ", FILE, 0, 2))'
        'message(MAP, data=struct.pack("=IIQ", FILE, 2**32 - 8, 2))'
        'message(MAP, data=record(FS, 0, b""))'
        'message(MAP, data=record(LIST, 2, b""))'
        'message(MAP, data=record(99, 2, b"x" * 8))'
        'message(MAP, data=record(DIR, 2, struct.pack("=Q", 2**40)))'
        'message(MAP, data=record(FILE, 2, struct.pack("=QQQIIQ", 0, 0, 0, 0, 1, 2**60)))'
        'message(OWNER, data=b"/x"); message(EXTENT, 0, size)'
        'for i in range(5000): message(MAP, data=record(FS, 0, b"x" * 32000))'
    )
    for case in "${cases[@]}"; do
        lying_map "$case"
        NBDEDUP_LIBEXEC=$PWD/liar nbdedup drift golden@v1 --files --json |
            jq 'del (.time)' | diff truth - || fail "$case"
    done
}

@test "a clone's helper cannot use packages that are not there, or make a map" {
    local case
    make_two_clones
    for case in 'message(PACKAGE, 301)' 'message(PACKAGE, 2**40)' \
                'message(MAP, data=b"x")'; do
        lying_map "pass"
        sed -i 's/!= \["map"\]/== ["map"]/' liar/nbdedup-files
        sed -i "s/^pass\$/$case/" liar/nbdedup-files
        NBDEDUP_LIBEXEC=$PWD/liar nbdedup drift golden@v1 --files --json >json
        check_sums
        [[ $(jq -r '.clones[0].notes[0]' json) == "all of it: "*"not valid"* ]]
    done
}
