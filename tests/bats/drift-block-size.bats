# SPDX-License-Identifier: BSD-3-Clause
#
# "nbdedup drift --advise": the block size.  The tests carry the commands out,
# and find the promised saving, within 2 %, and the same data.
#
# What is compared: the bytes in use of "records" (the records, and the
# summaries that describe them), and the pages in use of pool.db and its copy.
# Not compared is what the block size does not decide: the journal and the WAL,
# which are as large as the last writing has made them; the room that a pool
# keeps for the next writing; and free pages of pool.db, which new data uses.

# helpers.bash and "run" set what seems to be unset
# shellcheck disable=SC2154,SC2030,SC2031

load ../rigs/helpers

setup ()
{
    need python3 --version
    need jq --version
    [ -x "$NBDEDUP_LIBEXEC/nbdedup-files" ] ||
        skip "this build has no libtsk"
    export LC_ALL=C
}

# change IMAGE SEED: 4 KiB of new data at 400 places, zeroes at 60 others, and
# 1 MiB of zeroes at two.
change ()
{
    python3 - "$1" "$2" <<'END'
import random, sys
rng = random.Random(int(sys.argv[2]))
with open(sys.argv[1], "r+b") as f:
    pieces = f.seek(0, 2) // 4096
    for i, piece in enumerate(rng.sample(range(pieces), 460)):
        f.seek(piece * 4096)
        f.write(rng.randbytes(4096) if i < 400 else bytes(4096))
    for i in range(2):
        f.seek(rng.randrange(pieces // 256) << 20)
        f.write(bytes(1 << 20))
END
}

# make_clone NAME IMAGE: let it have the image's content, as its guest would.
make_clone ()
{
    nbdedup clone golden@v1 "$1"
    serve "$pool"
    "$test_programs/bats/write-changes" "$sock" "$1" golden.raw "$2"
    stop
}

# make_fleet: golden@v1 from golden.raw, and the clones web1 ... from web1.raw
make_fleet ()
{
    local image name

    nbdedup import golden golden.raw
    nbdedup snapshot golden@v1
    for image in web*.raw; do
        name=${image%.raw}
        make_clone "$name" "$image"
    done
}

# advise: the advice on golden@v1 goes to the file "advice".
advise ()
{
    nbdedup drift golden@v1 --advise --json |
        jq '.advice[] | select (.action == "block-size")' >advice
}

is_freed () { [ "$(pool_stat freeing_bytes)" = 0 ]; }

# settle: let the pool free what was destroyed, and give it back.
settle ()
{
    serve "$pool"
    wait_for 120 is_freed
    stop
    nbdedup compact >/dev/null
}

# db_pages: the pages in use of pool.db, by its header: all, less the free ones.
db_pages ()
{
    od -An -tu1 -j28 -N12 "$pool/pool.db" | {
        read -r a b c d _ _ _ _ e f g h
        echo $(((a << 24 | b << 16 | c << 8 | d) -
                (e << 24 | f << 16 | g << 8 | h)))
    }
}

# used: the bytes of the pool that are compared.
used ()
{
    local records copies=1

    records=$(nbdedup status --json | jq .space.used_bytes)
    [ ! -e "$pool/pool.db.copy" ] || copies=2
    echo $((records + copies * 8192 * $(db_pages)))
}

# carry_out: run the commands of the advice as they are.
carry_out ()
{
    jq -r '.commands[]' advice >commands
    bash -ex commands >log 2>&1 || fail "$(cat log)"
}

# same_data NAME...: each volume has the data of its image.
same_data ()
{
    local name

    for name; do
        nbdedup export "$name" out.raw
        cmp "${name%%@*}.raw" out.raw
    done
}

# check_saving: carry the advice out, and compare what comes back.
check_saving ()
{
    local before after promised

    settle
    before=$(used)
    carry_out
    settle
    after=$(used)
    promised=$(jq .saves_bytes advice)
    echo "before $before after $after saves $((before - after)) of $promised"
    jq -c 'del (.commands)' advice
    assert_num "$((before - after)) > 0.98 * $promised &&
                $((before - after)) < 1.02 * $promised"
}

@test "scattered small changes: smaller blocks" {
    local name

    make_pool --block-size 64K
    { random_data 12M 1; text_data 12M 2; } >golden.raw
    truncate -s 32M golden.raw
    for name in web1 web2 web3; do
        cp golden.raw $name.raw
        change $name.raw "${name#web}"
    done
    make_fleet
    advise
    check_saving
    assert_eq "$(jq .block_size advice)" 4096
    same_data golden@v1 web1 web2 web3
}

# programs SIZE SKIP: data that compresses in many ways, and better in larger
# blocks.
programs ()
{
    find /usr/bin /usr/lib -type f -size +64k -print0 2>/dev/null |
        sort -z | xargs -0 cat 2>/dev/null | tail -c +"$(($2 + 1))" |
        head -c "$1" || :
}

@test "large changes of data that compresses: larger blocks, all properties" {
    local name

    make_pool --block-size 4K --compress zstd
    nbdedup set metadata-copy=off
    programs $((40 << 20)) 0 >golden.raw
    programs $((8 << 20)) $((48 << 20)) >new
    assert_eq "$(stat -c %s golden.raw new | tr '\n' ' ')" "41943040 8388608 "
    for name in web1 web2 web3 web4; do
        cp golden.raw $name.raw
        dd if=new of=$name.raw bs=1M seek=$((${name#web} * 7)) count=2 \
           skip=$((${name#web} * 2 - 2)) conv=notrunc status=none
        dd if=/dev/zero of=$name.raw bs=1M seek=37 count=3 conv=notrunc \
           status=none
    done
    make_fleet
    nbdedup set allow="1000,CN=it's web1" web1
    nbdedup set dedup=verify web2
    nbdedup set drift-alert-unique=1G web3
    for name in golden web1 web2 web3; do
        nbdedup get all $name | grep -v ^block-size >$name.properties
    done
    advise
    [ "$(jq .block_size advice)" -gt 16384 ]
    check_saving
    same_data golden@v1 golden web1 web2 web3 web4
    for name in golden web1 web2 web3; do
        nbdedup get all $name | grep -v ^block-size | diff $name.properties -
    done
    # They are clones of the golden image again.
    assert_eq "$(nbdedup list --json | jq -c '[.volumes[].origin]')" \
              '[null,"golden@v1","golden@v1","golden@v1","golden@v1"]'
    # The best block size stays as it is.
    advise
    assert_eq "$(cat advice)" ""
}

# More than is compressed whole at such a level: with a sample, and a larger one.
@test "a sample: the saving is within the error" {
    local before after promised error

    make_pool --block-size 4K --compress zstd-1
    programs $((40 << 20)) 0 >golden.raw
    nbdedup import golden golden.raw
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 same
    advise
    assert_num "$(jq .error_bytes advice) > 0"
    assert_num "$(jq '.error_bytes / .saves_bytes' advice) < 0.1"
    before=$(used)
    carry_out
    settle
    after=$(used)
    promised=$(jq .saves_bytes advice)
    # Three standard errors, and 2 %.
    error=$(jq '.error_bytes * 1.5 + .saves_bytes * 0.02' advice)
    assert_num "($before - $after - $promised) ^ 2 < $error ^ 2"
}

# Larger blocks would pay, if the clones had what the golden image has.
@test "pieces that clones trimmed count: no larger blocks" {
    local name

    make_pool --block-size 4K --compress zstd
    programs $((16 << 20)) 0 >golden.raw
    for name in web1 web2 web3 web4; do
        cp golden.raw $name.raw
        python3 - $name.raw "${name#web}" <<'END'
import sys
with open(sys.argv[1], "r+b") as f:
    for piece in range(int(sys.argv[2]), 4096, 16):
        f.seek(piece * 4096)
        f.write(bytes(4096))
END
    done
    make_fleet
    assert_eq "$(nbdedup drift golden@v1 --json |
                 jq -c '[.clones[] | .unique + .sibling]')" "[0,0,0,0]"
    advise
    assert_eq "$(cat advice)" ""
    # Without these clones.
    nbdedup destroy web1 web2 web3 web4
    nbdedup clone golden@v1 same
    advise
    assert_num "$(jq .block_size advice) > 4096"
}

# small_fleet N: golden@v1 of 4 MiB in blocks of 64K, and the clones web1 ...
# webN, each with scattered new pieces.
small_fleet ()
{
    local i

    random_data 4M 1 >golden.raw
    for ((i = 1; i <= $1; i++)); do
        cp golden.raw "web$i.raw"
        python3 - "web$i.raw" "$i" <<'END'
import random, sys
rng = random.Random(int(sys.argv[2]))
with open(sys.argv[1], "r+b") as f:
    for piece in rng.sample(range(1024), 60):
        f.seek(piece * 4096)
        f.write(rng.randbytes(4096))
END
    done
    make_fleet
}

@test "a destroyed golden image, many clones, through a server" {
    local second name all=()

    make_pool --block-size 64K --compress none
    small_fleet 12
    nbdedup destroy golden golden@v1 --force
    serve "$pool"
    advise
    assert_eq "$(jq .block_size advice)" 4096
    assert_eq "$(jq -r '.commands[-2:][]' advice)" \
              "# the same for the other 10 clones
nbdedup compact"
    # Those of the second clone, for the others.
    jq -r '.commands | .[:-2][]' advice >commands
    second=$(nbdedup drift golden@v1 --json | jq -r '.clones[1].name')
    for name in web*.raw; do
        name=${name%.raw}
        all+=("$name")
        [ "$name" = web1 ] || [ "$name" = "$second" ] ||
            jq -r '.commands[]' advice | grep "$second" |
            sed "s/$second/$name/g" >>commands
    done
    bash -ex commands >log 2>&1 || fail "$(cat log)"
    same_data "${all[@]}"
    assert_eq "$(nbdedup list --json | jq -c '[.volumes[].block_size] | unique')" '[4096]'
    assert_eq "$(nbdedup list --json | jq -r '[.volumes[].origin] | unique |
                 map (. // "none") | join (" ")')" "none web1@4K"
}

# change_golden: golden gets data that golden@v1 has not: changed.raw.
change_golden ()
{
    cp golden.raw changed.raw
    random_data 64K 77 |
        dd of=changed.raw bs=64K seek=5 conv=notrunc status=none
    serve "$pool"
    "$test_programs/bats/write-changes" "$sock" golden golden.raw changed.raw
    stop
}

@test "a golden image that goes on, and a name that is taken" {
    make_pool --block-size 64K --compress none
    small_fleet 3
    change_golden
    nbdedup create golden-4K 1M
    advise
    carry_out
    mv changed.raw golden.raw
    same_data web1 web2 web3 golden
    assert_eq "$(nbdedup list --json | jq -r '.volumes[] |
                 [.name, .block_size, .origin // "none"] | join (" ")')" \
              "golden 4096 golden-4K-2@v1
golden-4K 65536 none
golden-4K-2 4096 none
web1 4096 golden-4K-2@v1
web2 4096 golden-4K-2@v1
web3 4096 golden-4K-2@v1"
}

@test "snapshots are never destroyed unasked" {
    make_pool --block-size 64K --compress none
    small_fleet 3
    nbdedup snapshot web2@mon
    nbdedup snapshot golden@v2
    advise
    [[ $(jq -r .text advice) == *"; the other snapshots of golden keep the old blocks until you move or destroy them, too; the snapshots of 1 of the volumes are not moved"* ]]
    jq -r '.commands[]' advice >commands
    run bash -ex commands
    [[ ${lines[-1]} == *"web2"*"snapshot"* ]] || fail "$output"
    # All is there still.
    same_data web1 web2 web2@mon web3 golden golden@v1 golden@v2
}

# By their size, to read these would take days.
@test "volumes of 4 PiB, almost empty: the same advice, and soon" {
    local size name

    make_pool --block-size 64K --compress none
    small_fleet 2
    advise
    jq 'del (.commands)' advice >small
    [ -s small ]
    size=$(stat -c %s golden.raw)

    # The clones have holes of 4 PiB of their own: what was cut off.
    rm -r "$pool"
    make_pool --block-size 64K --compress none
    nbdedup import golden golden.raw
    nbdedup resize golden 4095T
    nbdedup snapshot golden@v1
    for name in web1 web2; do
        nbdedup clone golden@v1 $name
        nbdedup resize $name "$size" --shrink
    done
    serve "$pool"
    for name in web1 web2; do
        "$test_programs/bats/write-changes" "$sock" $name golden.raw $name.raw
        nbdedup resize $name 4095T
    done
    timeout 60 nbdedup drift golden@v1 --advise --json >out
    jq '.advice[] | select (.action == "block-size") | del (.commands)' out |
        diff small -
    assert_num "$(jq '.clones[0].zero' out) > 2 ^ 35"
}

@test "no advice: little to save, no dedup, damage" {
    make_pool --block-size 64K --compress none
    small_fleet 3
    advise
    [ -s advice ]
    nbdedup set dedup=off web3
    advise
    assert_eq "$(cat advice)" ""
    nbdedup set dedup=on web3
    python3 - "$pool/records" golden.raw <<'END'
import sys
with open(sys.argv[1], "r+b") as records, open(sys.argv[2], "rb") as image:
    image.seek(3 << 20)
    records.seek(records.read().index(image.read(4096)))
    records.write(b"damage")
END
    damaged
    run -0 --separate-stderr nbdedup drift golden@v1 --advise --json
    assert_eq "$(jq '[.advice[] | select (.action == "block-size")] | length' \
                 <<<"$output")" 0
    [[ $stderr == "nbdedup: drift: golden@v1: no advice on its block size: "*"damaged"* ]] || fail "$stderr"
    # A clone that is as the golden image takes nothing in any block size.
    rm -r "$pool"
    make_pool --block-size 64K --compress none
    nbdedup import golden golden.raw
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 same
    advise
    assert_eq "$(cat advice)" ""
}
