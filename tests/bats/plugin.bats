#!/usr/bin/env bats
# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2016,SC2030,SC2031,SC2034,SC2154
#
# The plugin's parameters, its exports, and how a server starts and ends.

load ../rigs/helpers
load ../rigs/clients

setup ()
{
    need qemu-io --version
    need nbdinfo --version
    need jq --version
}

# refused TEXT ARG...: "nbdkit PLUGIN ARG..." ends with status 1 and exactly
# one line of error, which has TEXT in it.
refused ()
{
    local text="$1"

    shift
    run -1 nbdkit -f -U - "$plugin" "$@" --run 'echo served'
    [[ $output != *served* ]] || fail "served: $*"
    assert_eq "${#lines[@]}" 1 "lines about $*: $output"
    [[ $output == "nbdkit: error: "*"$text"* ]] || fail "$* gave: $output"
}

keys=(pool volume only ddt-cache record-cache dirty-max commit-interval
      drift-interval primarycache threads attach read-only)

#----------------------------------------------------------------------
# Parameters

@test "a pool is required" {
    refused "pool="
    refused "pool=" volume=v
}

@test "an unknown parameter is an error" {
    make_pool
    refused "compress=lz4" "$pool" compress=lz4
}

@test "a path that is no pool is refused, and stays as it was" {
    mkdir "$BATS_TEST_TMPDIR/empty"
    echo hello >"$BATS_TEST_TMPDIR/file"
    refused "nbdedup init" "$BATS_TEST_TMPDIR/missing"
    refused "$BATS_TEST_TMPDIR/empty" "$BATS_TEST_TMPDIR/empty"
    refused "$BATS_TEST_TMPDIR/file" "pool=$BATS_TEST_TMPDIR/file"
    assert_eq "$(ls -A "$BATS_TEST_TMPDIR/empty")" ""
    assert_eq "$(cat "$BATS_TEST_TMPDIR/file")" hello
}

@test "one server has one pool" {
    make_pool
    refused "before" "$pool" "pool=$pool"
}

@test "only=on needs volume=" {
    make_pool
    refused "volume=" "$pool" only=on
}

@test "values that make no sense are refused in one line" {
    make_pool
    for size in ddt-cache record-cache dirty-max; do
        for value in x "" -1 9999E 2000P 12Q; do
            refused "" "$pool" "$size=$value"
        done
    done
    refused ddt-cache "$pool" ddt-cache=1M
    refused dirty-max "$pool" dirty-max=0
    for value in 0 -1 x "" 1s 1e3 nan 0x10 5. .5 0.0001 86401 \
                 99999999999999999999; do
        refused commit-interval "$pool" "commit-interval=$value"
    done
    for value in -1 x "" 0.5 99999999999999999999; do
        refused drift-interval "$pool" "drift-interval=$value"
    done
    refused "all, metadata, none" "$pool" primarycache=some
    refused "auto, parallel, serialize" "$pool" threads=4
    refused "shared, exclusive" "$pool" attach=
    refused "" "$pool" only=maybe
    for value in "" a/b "a b" @s v@ v@s@t "$(printf '%0256d' 1)"; do
        refused volume= "$pool" "volume=$value"
    done
}

@test "every value of every parameter is accepted" {
    make_pool
    nbdedup create v 1M
    for arg in ddt-cache=8M ddt-cache=1G record-cache=0 record-cache=1M \
               dirty-max=4M dirty-max=8388608 commit-interval=0.001 \
               commit-interval=86400 drift-interval=0 drift-interval=60 \
               primarycache=all primarycache=metadata primarycache=none \
               threads=auto threads=parallel threads=serialize \
               attach=shared attach=exclusive only=off volume=v \
               read-only=off read-only=on read-only=1 read-only=force; do
        run -0 --separate-stderr nbdkit -U - "$plugin" "$pool" "$arg" \
            --run "nbdinfo --size 'nbd+unix:///v?socket='\$unixsocket"
        assert_eq "$output" 1048576 "$arg"
    done
}

@test "pool= may be left out, and a relative path works in the background" {
    make_pool
    nbdedup create v 1M
    cd "$BATS_TEST_TMPDIR"
    nbdkit -U "$BATS_TEST_TMPDIR/s" -P "$BATS_TEST_TMPDIR/pid" \
           "$plugin" pool 3>&- 4>&-
    assert_eq "$(nbdinfo --size "nbd+unix:///?socket=$BATS_TEST_TMPDIR/s")" \
              1048576
    kill "$(cat pid)"
    wait_for 30 server_is_gone "$(cat pid)"
}

@test "--dump-plugin works without a pool and tells what was built in" {
    run -0 nbdkit --dump-plugin "$plugin"
    for line in name=dedup "version=$version" api_version=2 format=1 \
                magic_config_key=pool max_thread_model=parallel; do
        grep -qxF -- "$line" <<<"$output" || fail "no $line in: $output"
    done
    grep -qE '^codecs=(.*,)?lz4(,.*)?$' <<<"$output"
    grep -qE '^hashes=(.*,)?sha256(,.*)?$' <<<"$output"
}

@test "threads= chooses the thread model, and auto one that nbdkit survives" {
    local expected=serialize_requests

    run -0 nbdkit --dump-plugin "$plugin" threads=parallel
    grep -qx thread_model=parallel <<<"$output"
    run -0 nbdkit --dump-plugin "$plugin" threads=serialize
    grep -qx thread_model=serialize_requests <<<"$output"
    if nm -D "$(type -P nbdkit)" 2>/dev/null | grep -q nbdkit_disconnect; then
        expected=parallel
    fi
    run -0 nbdkit --dump-plugin "$plugin"
    grep -qx "thread_model=$expected" <<<"$output"
}

@test "--help, the manual page and --dump-plugin agree on keys and defaults" {
    local help pod dump key default

    help=$(nbdkit "$plugin" --help | sed -n '/^plugin:/,$p')
    pod=$(sed -n '/^=head1 PARAMETERS/,/^=head1 NOTES/p' \
              "$top_srcdir/plugin/nbdkit-dedup-plugin.pod")
    dump=$(nbdkit --dump-plugin "$plugin")

    for key in "${keys[@]}"; do
        grep -qE "^(\[$key=\]|$key=)" <<<"$help" || fail "--help: no $key"
        grep -qE "^=item (\[?B<)$key=" <<<"$pod" || fail "POD: no $key"
    done

    # There are no others.
    assert_eq "$(grep -cE '^\[?[a-z-]+=' <<<"$help")" "${#keys[@]}"
    assert_eq "$(grep -oE '^=item \[?B<[a-z-]+=' <<<"$pod" | sort -u |
                 grep -c .)" "${#keys[@]}"

    while IFS='=' read -r key default; do
        key=${key#default_}
        awk -v k="$key" 'index ($0, k "=") == 1 { on = 1; print; next }
                         /^[a-z\[]/ { on = 0 } on' <<<"$help" | tr '\n' ' ' |
            grep -qE "default: $default\b" || fail "--help: $key=$default"
        awk -v k="$key" 'index ($0, "=item B<" k "=") == 1 { on = 1 }
                         /^=item/ && index ($0, "=item B<" k "=") != 1 { on = 0 }
                         on' <<<"$pod" | tr '\n' ' ' |
            grep -qE "C<$default>" || fail "POD: $key=$default"
    done < <(grep ^default_ <<<"$dump")
    assert_eq "$(grep -c ^default_ <<<"$dump")" $((${#keys[@]} - 2))
}

#----------------------------------------------------------------------
# Exports

@test "the empty export name is the pool's only volume" {
    make_pool
    nbdedup create one 1M
    serve "$pool"
    assert_eq "$(nbdinfo --size "$uri")" 1048576
    assert_eq "$(nbdinfo --json "$uri" | jq -r '.exports[0]."export-size"')" \
              1048576
}

@test "the empty export name is volume= where that is given" {
    make_pool
    nbdedup create one 1M
    nbdedup create two 2M
    serve "$pool" volume=two
    assert_eq "$(nbdinfo --size "$uri")" 2097152
    assert_eq "$(nbdinfo --size "$(uri_of one)")" 1048576
}

@test "without volume= the empty export name is refused among several" {
    make_pool
    nbdedup create one 1M
    nbdedup create two 2M
    serve "$pool"
    run ! nbdinfo --size "$uri"
    grep -q "volume=NAME" "$server_log"
    assert_eq "$(nbdinfo --size "$(uri_of two)")" 2097152
}

@test "a pool without a volume is served, and has nothing to attach" {
    make_pool
    serve "$pool"
    run ! nbdinfo --size "$uri"
    grep -q "volume" "$server_log"
    assert_eq "$(nbdinfo --list --json "$uri" | jq '.exports | length')" 0
}

@test "an export that does not exist is refused, and the server goes on" {
    make_pool
    nbdedup create v 1M
    serve "$pool"
    for name in w v@nosuch v/../v "$(printf '%01000d' 1)" '%01' 'v%0Ax'; do
        run ! nbdinfo --size "$(uri_of "$name")"
    done
    assert_eq "$(nbdinfo --size "$(uri_of v)")" 1048576
}

@test "nbdinfo --list tells all volumes" {
    make_pool
    for v in b a c.d-e_f; do nbdedup create $v 1M; done
    serve "$pool"
    assert_eq "$(nbdinfo --list --json "$uri" |
                 jq -r '.exports[]."export-name"' | tr '\n' ' ')" \
              "a b c.d-e_f "
}

@test "only=on hides all other volumes" {
    make_pool
    nbdedup create one 1M
    nbdedup create two 2M
    serve "$pool" volume=two only=on
    assert_eq "$(nbdinfo --list --json "$uri" |
                 jq -r '.exports[]."export-name"')" two
    run ! nbdinfo --size "$(uri_of one)"
    assert_eq "$(nbdinfo --size "$(uri_of two)")" 2097152
    assert_eq "$(nbdinfo --size "$uri")" 2097152
}

@test "attach=exclusive refuses a second client of a volume" {
    make_pool
    nbdedup create one 1M
    nbdedup create two 2M
    serve "$pool" attach=exclusive
    assert_eq "$(nbdinfo --json "$(uri_of one)" |
                 jq '.exports[0].can_multi_conn')" false
    hold "$(uri_of one)" 'write 0 1'
    run ! nbdinfo --size "$(uri_of one)"
    grep "volume one has a client already: process $holder (qemu-io), uid \
$(id -u): end that one first, or serve the pool with attach=shared$" "$server_log"
    assert_eq "$(nbdinfo --size "$(uri_of two)")" 2097152
    let_go
    wait_for 30 nbdinfo --size "$(uri_of one)"
    # A snapshot does not change, so any number of clients may read it.
    nbdedup snapshot two@s
    qemu-io -r -f raw "$(uri_of two@s)" -c 'sleep 3600000' >/dev/null 2>&1 \
        3>&- 4>&- &
    holder=$!
    wait_for 30 snapshot_has_client
    assert_eq "$(nbdinfo --size "$(uri_of two@s)")" 2097152
    assert_eq "$(nbdinfo --json "$(uri_of two@s)" |
                 jq '.exports[0].can_multi_conn')" true
}

@test "a second writer on a volume is logged, and listed" {
    local first

    make_pool
    nbdedup create v 1M
    serve "$pool"
    # A second client that only reads is no writer, so the first one is alone.
    hold "$(uri_of v)" 'write -P 0x61 0 4k'
    io "$(uri_of v)" 'read -P 0x61 0 4k'
    assert_eq "$(nbdedup list --json | jq '.volumes[0].writers')" 1
    run ! grep 'write to it' "$server_log"

    first=$holder
    hold "$(uri_of v)" 'write -P 0x62 8k 4k' 'write -z 16k 4k'
    assert_eq "$(grep -c 'write to it' "$server_log")" 1
    grep "volume v: both process $holder (qemu-io) and process $first (qemu-io) write to it, " "$server_log"
    assert_eq "$(nbdedup list --json | jq '.volumes[0].writers')" 2
    nbdedup list | grep -E '^v .* 2 \(2 write\) '
    nbdedup list --tree | grep -E '^v .* 2 \(2 write\) '

    let_go
    kill -9 "$first"
    wait_for 30 no_clients
    assert_eq "$(nbdedup list --json | jq '.volumes[0].writers')" 0
}

@test "connections of one client are one writer" {
    make_pool
    nbdedup create v 8M
    serve "$pool"
    random_data 8M >data
    nbdcopy --connections=4 --requests=1 --request-size=65536 data "$(uri_of v)"
    run ! grep 'write to it' "$server_log"
    # The first client has gone when another process writes.
    io "$(uri_of v)" 'write -P 0x61 0 4k'
    run ! grep 'write to it' "$server_log"
}

@test "a volume with allow= is refused to other users" {
    make_pool
    nbdedup create v 1M
    serve "$pool"
    nbdedup set allow="$(( $(id -u) + 1 ))" v
    run ! nbdinfo --size "$(uri_of v)"
    nbdedup set allow="$(id -u)" v
    assert_eq "$(nbdinfo --size "$(uri_of v)")" 1048576
    # A list that can never match is refused, and changes nothing.
    for bad in root 99999999999 "" "1000," CN=web1,example CN= X=1 \
               CN=web1,O=Example; do
        run -2 nbdedup set "allow=$bad" v
        [[ $output == "nbdedup: set: allow: "* ]] || fail "$output"
    done
    assert_eq "$(nbdedup get allow v)" "$(id -u)"
    nbdedup set 'allow=CN=web1\,O=Example\,C=DE' v
    assert_eq "$(nbdedup get allow v)" 'CN=web1\,O=Example\,C=DE'
}

@test "the number of attached clients is told while they are attached" {
    make_pool
    nbdedup create v 1M
    serve "$pool"
    hold "$(uri_of v)" 'write 0 1'
    assert_eq "$(nbdedup list --json | jq '.volumes[0].clients')" 1
    let_go
    wait_for 30 no_clients
}

snapshot_has_client ()
{
    [ "$(nbdedup list --json | jq '.volumes[].snapshots[].clients')" = 1 ]
}

no_clients ()
{
    [ "$(nbdedup list --json | jq '.volumes[0].clients')" = 0 ]
}

#----------------------------------------------------------------------
# Start and end

@test "a server in the background answers when its command line returns" {
    make_pool
    nbdedup create v 1M
    nbdkit -U "$BATS_TEST_TMPDIR/s" -P "$BATS_TEST_TMPDIR/pid" \
           "$plugin" "$pool" 3>&- 4>&-
    run -0 nbdedup list --json
    assert_eq "$(jq -r '.volumes[0].name' <<<"$output")" v
    assert_eq "$(nbdinfo --size "nbd+unix:///v?socket=$BATS_TEST_TMPDIR/s")" \
              1048576
    kill "$(cat "$BATS_TEST_TMPDIR/pid")"
    wait_for 30 server_is_gone "$(cat "$BATS_TEST_TMPDIR/pid")"
}

@test "a pool that another server has is refused on the command line" {
    make_pool
    nbdedup create v 1M
    serve "$pool"
    refused "$pool" "$pool"
    run -1 nbdkit -U "$BATS_TEST_TMPDIR/s" "$plugin" "$pool"
    assert_eq "${#lines[@]}" 1
    assert_eq "$(nbdinfo --size "$(uri_of v)")" 1048576
}

@test "a pool that cannot be opened after the fork gives an error, not silence" {
    need_root
    need id nobody
    make_pool
    chmod 755 "$BATS_TEST_TMPDIR" "$pool"
    chmod a+r "$pool"/*

    # nbdkit changes its user between checking the pool and opening it.
    run -1 nbdkit -u nobody -U "$BATS_TEST_TMPDIR/s" "$plugin" "$pool"
    assert_eq "${#lines[@]}" 1 "$output"
    [[ $output == "nbdkit: error: "*"$pool"* ]]
    run -1 nbdkit -f -u nobody -U "$BATS_TEST_TMPDIR/s2" "$plugin" "$pool"
    [[ $output == "nbdkit: error: "*"$pool"* ]]
}

# logged REGEX: the number of such lines in the last server's log.
logged ()
{
    grep -cE "$1" "$server_log" || :
}

# read_until_logged REGEX: other clients continue meanwhile.
read_until_logged ()
{
    nbdcopy "$(uri_of v)" null:
    [ "$(logged "$1")" != 0 ]
}

@test "a refusal that comes again and again has one line, and one at its end" {
    local commands=() i

    need qemu-io --version
    make_pool
    nbdedup create v 8M --block-size 4K
    nbdedup set max-size=64K
    serve "$pool"
    for i in {1..200}; do
        commands+=(-c "write -P $i $((i * 4096)) 4096")
    done
    qemu-io -f raw "${commands[@]}" "$(uri_of v)" >"$BATS_TEST_TMPDIR/io" || :
    refused=$(grep -c 'No space left' "$BATS_TEST_TMPDIR/io")
    [ "$refused" -gt 50 ] || fail "only $refused were refused"
    assert_eq "$(logged 'error: write')" 1
    wait_for 30 read_until_logged "write: No space left on device: $refused requests were refused in [0-9]+ s"

    # After this write they are logged again.
    qemu-io -f raw -c 'write -P 201 7M 4096' -c 'write -P 202 7M 4096' \
            "$(uri_of v)" >/dev/null || :
    assert_eq "$(logged 'error: write')" 3
    stop
    assert_eq "$(logged 'error: write')" 4
    assert_eq "$(logged '2 requests were refused')" 1
}

@test "threads=parallel says what it risks with an old nbdkit" {
    make_pool
    nbdedup create v 1M
    serve "$pool" threads=parallel
    if nbdkit --dump-plugin "$plugin" | grep -q '^thread_model=parallel'; then
        assert_eq "$(logged 'error: threads=parallel: .*end this server')" 0
    else
        assert_eq "$(logged 'error: threads=parallel: .*end this server')" 1
    fi
}

@test "a server that does not start leaves no socket, and its parent does not wait" {
    local socket="$BATS_TEST_TMPDIR/s" port
    local preload=(env ${sanitizer_preload:+LD_PRELOAD="$sanitizer_preload"})

    need perl -MIO::Socket::UNIX -e 1
    make_pool
    cp "$pool/journal" "$BATS_TEST_TMPDIR/journal"
    truncate -s 100 "$pool/journal"
    run -1 nbdkit -U "$socket" "$plugin" "$pool"
    [[ $output == *journal* ]]
    [ ! -e "$socket" ]
    run -1 nbdkit -f -U "$socket" "$plugin" "$pool"
    [ ! -e "$socket" ]

    # The command of --run starts before the pool is open.
    export -f wait_for fail
    for i in 1 2 3; do
        run timeout 20 "${preload[@]}" nbdkit -U - "$plugin" "$pool" \
            --run 'unset LD_PRELOAD; nbdinfo "$uri"; r=$?
                   bash -c "wait_for 15 test ! -S $unixsocket"; exit $r'
        [ "$status" != 0 ] && [ "$status" != 124 ] || fail "$status: $output"
        # It prints this before it removes its socket.
        [[ $output == *journal* ]]
    done
    port=$(( 20000 + RANDOM % 20000 ))
    run timeout 20 "${preload[@]}" nbdkit -p $port -i 127.0.0.1 "$plugin" \
        "$pool" --run 'unset LD_PRELOAD; nbdinfo nbd://127.0.0.1:'$port
    [ "$status" != 0 ] && [ "$status" != 124 ] || fail "$status: $output"

    # A socket that was passed to it is not its own.
    run -1 "${preload[@]}" perl "$top_srcdir/tests/bats/socket-activate.pl" \
        "$socket" nbdkit -f "$plugin" "$pool"
    [ -S "$socket" ]

    cp "$BATS_TEST_TMPDIR/journal" "$pool/journal"
}

@test "a server that has ended leaves no socket, but one that is another's" {
    local socket="$BATS_TEST_TMPDIR/s" pid signal
    local preload=(env ${sanitizer_preload:+LD_PRELOAD="$sanitizer_preload"})

    make_pool
    nbdedup create v 1M
    for signal in TERM INT; do
        nbdkit -P "$BATS_TEST_TMPDIR/p" -U "$socket" "$plugin" "$pool"
        nbdinfo --size "nbd+unix:///v?socket=$socket"
        pid=$(cat "$BATS_TEST_TMPDIR/p")
        kill "-$signal" "$pid"
        wait_for 30 server_is_gone "$pid"
        [ ! -e "$socket" ]
    done

    # A file that replaced its socket stays.
    nbdkit -P "$BATS_TEST_TMPDIR/p" -U "$socket" "$plugin" "$pool"
    mv "$socket" "$socket.before"
    mkfifo "$socket"
    pid=$(cat "$BATS_TEST_TMPDIR/p")
    kill "$pid"
    wait_for 30 server_is_gone "$pid"
    [ -p "$socket" ]
    rm "$socket"

    # The commands in the manual page remove a dead socket, and keep a live one,
    # also of a server that refuses clients.
    serve "$pool" attach=exclusive
    page=$(sed -n '/^=head2 After a crash of/,/^=head2 Socket/p' \
               "$top_srcdir/plugin/nbdkit-dedup-plugin.pod" |
               sed -n '/^ nbdedup/,/rm -f/p' |
               sed "s,/run/nbdedup.sock,$sock,; s,/srv/pool,$pool,")
    [[ $page == *"status | "*" &&"*"rm -f $sock" ]] || fail "$page"
    hold "$(uri_of v)" 'write 0 1'
    eval "$page" || :
    [ -S "$sock" ]
    let_go
    crash
    [ -S "$sock" ]
    run nbdkit -U "$sock" "$plugin" "$pool"
    [[ $status = 1 && $output == *"Address already in use"* ]]
    eval "$page"
    [ ! -e "$sock" ]

    # A socket that was passed to it stays.
    need perl -MIO::Socket::UNIX -e 1
    "${preload[@]}" perl "$top_srcdir/tests/bats/socket-activate.pl" \
        "$socket" nbdkit -f -P "$BATS_TEST_TMPDIR/p2" "$plugin" "$pool" \
        3>&- 4>&- &
    wait_for 30 nbdinfo --size "nbd+unix:///v?socket=$socket"
    pid=$(cat "$BATS_TEST_TMPDIR/p2")
    kill "$pid"
    wait_for 30 server_is_gone "$pid"
    [ -S "$socket" ]
}

@test "--run has the command's status, and the pool is closed after it" {
    make_pool
    nbdedup create v 1M
    run -3 nbdkit -U - "$plugin" "$pool" --run \
        'unset LD_PRELOAD
         qemu-io -f raw -c "write -P 5 1 70000" "$uri" >/dev/null && exit 3'
    run -0 nbdkit -U - "$plugin" "$pool" --run \
        'unset LD_PRELOAD; qemu-io -f raw -c "read -P 5 1 70000" "$uri"'
    [[ $output != *failed* ]]
    nbdedup check
}

@test "socket activation as systemd does it" {
    need perl -MIO::Socket::UNIX -e 1
    make_pool
    nbdedup create v 1M
    sock="$BATS_TEST_TMPDIR/s"
    LD_PRELOAD="$sanitizer_preload" perl "$top_srcdir/tests/bats/socket-activate.pl" \
        "$sock" "$(type -P nbdkit)" -P "$BATS_TEST_TMPDIR/pid" \
        "$plugin" "$pool" 3>&- 4>&- &
    wait_for 30 test -s "$BATS_TEST_TMPDIR/pid"
    io "$(uri_of v)" 'write -P 1 0 1M' 'read -P 1 0 1M'
    kill "$(cat "$BATS_TEST_TMPDIR/pid")"
    wait_for 30 server_is_gone "$(cat "$BATS_TEST_TMPDIR/pid")"
}

@test "TLS with pre-shared keys, and none without" {
    local tls

    need psktool --version
    make_pool
    nbdedup create v 1M
    psktool -u alice -p "$BATS_TEST_TMPDIR/psk" >/dev/null
    nbdkit_args=(--tls=require "--tls-psk=$BATS_TEST_TMPDIR/psk")
    serve "$pool"
    random_data 1M 4 >"$BATS_TEST_TMPDIR/data"
    tls="nbds+unix://alice@/v?socket=$sock&tls-psk-file=$BATS_TEST_TMPDIR/psk"
    nbdcopy --flush "$BATS_TEST_TMPDIR/data" "$tls"
    nbdcopy "$tls" "$BATS_TEST_TMPDIR/back"
    cmp "$BATS_TEST_TMPDIR/data" "$BATS_TEST_TMPDIR/back"
    run ! nbdinfo --size "$(uri_of v)"
}

@test "a server over TCP" {
    local port try

    make_pool
    nbdedup create v 1M
    # nbdkit cannot let the kernel choose the port, so if the port is in use try
    # another.
    for try in 1 2 3 4 5; do
        port=$(( 20000 + (RANDOM + $$ + try) % 30000 ))
        if nbdkit -i 127.0.0.1 -p $port "$plugin" "$pool" \
                  --run "nbdinfo --size nbd://127.0.0.1:$port/v" \
                  >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err"; then
            assert_eq "$(cat "$BATS_TEST_TMPDIR/out")" 1048576
            return 0
        fi
    done
    fail "$(cat "$BATS_TEST_TMPDIR/err")"
}

@test "the old handshake gets the default export" {
    make_pool
    nbdedup create v 1M
    run -0 --separate-stderr nbdkit -o -U - "$plugin" "$pool" \
        --run 'nbdinfo --size "$uri"'
    assert_eq "$output" 1048576
}

@test "the plugin exports nothing but its entry point" {
    need nm --version
    assert_eq "$(nm -D --defined-only "$plugin" | awk '{ print $NF }' |
                 grep -v '^__asan\|^__odr' | sort | tr '\n' ' ')" "plugin_init "
}

@test "a pool with more exports than nbdkit takes lists those that fit" {
    need nbdinfo --version
    make_pool
    nbdedup create golden 1M
    nbdedup snapshot golden@v1
    nbdedup clone golden@v1 c --count 10050 >/dev/null
    serve "$pool"
    run -0 nbdinfo --list --json "$(uri_of "")"
    assert_eq "$(jq '.exports | length' <<<"$output")" 10000
    assert_eq "$(jq '[.exports[] | .["export-name"] | select(test("@"))] |
                     length' <<<"$output")" 0
    # An export that is not in the list is served, too.
    assert_eq "$(nbdinfo --size "$(uri_of golden@v1)")" 1048576
}
