# SPDX-License-Identifier: BSD-3-Clause
#
# The nbdedup command while a server has the pool open: it works through
# control.sock.  test-control.c is about the protocol.

# helpers.bash and "run" set what seems to be unset; $'\n' stands in patterns
# shellcheck disable=SC2154,SC1011,SC2016,SC2030,SC2031

load ../rigs/helpers

# serve_up POOL: serve, and wait until the server has the pool open: before that
# a command would open the pool itself.
serve_up ()
{
    serve "$@"
    wait_for 20 grep -q "^server $server_pid " "$pool/lock"
}

json ()
{
    nbdedup "$@" --json | jq -e .
}

# attached NAME N: check that N clients are attached to a volume.
attached ()
{
    [ "$(json list | jq ".volumes[] | select (.name == \"$1\") | .clients")" \
      = "$2" ]
}

# hold NAME: attach an NBD client to a volume until release.
hold ()
{
    mkfifo "$BATS_TEST_TMPDIR/hold"
    qemu-io -f raw "$(uri_of "$1")" <"$BATS_TEST_TMPDIR/hold" \
            >"$BATS_TEST_TMPDIR/hold.log" 2>&1 3>&- 4>&- &
    holder=$!
    exec 5>"$BATS_TEST_TMPDIR/hold"
    wait_for 20 attached "$1" 1
}

release ()
{
    exec 5>&-
    wait "$holder" || :
}

@test "every command works through a server" {
    make_pool
    serve_up "$pool"
    wait_for 20 test -S "$pool/control.sock"
    assert_eq "$(stat -c %a "$pool/control.sock")" 600

    nbdedup create web1 10M --block-size 64K
    nbdedup create web2 10M
    nbdedup rename web2 db1
    nbdedup resize db1 20M
    refused shrink resize db1 5M
    nbdedup set compress=none db1
    assert_eq "$(nbdedup get compress db1)" none
    assert_eq "$(json list | jq -c '[.volumes[] | [.name, .size]] | sort')" \
              '[["db1",20971520],["web1",10485760]]'
    assert_eq "$(json stat | jq -c '[.volumes[].name] | sort')" \
              '["db1","web1"]'
    nbdedup stat --prometheus | grep '^nbdedup_pool_logical_bytes 0$'
    nbdedup check
    nbdedup scrub
    assert_eq "$(json destroy db1 --dry-run | jq -c .destroyed)" '["db1"]'
    nbdedup destroy db1 --wait
    assert_eq "$(json list | jq -c '[.volumes[].name]')" '["web1"]'
}

@test "errors come through a server as they are" {
    local names

    make_pool
    nbdedup create web1 1M
    serve_up "$pool"
    refused web1 create web1 1M
    misused "" create a@b 1M
    misused "" create "$(printf '%0256d' 0)" 1M
    refused nonesuch destroy nonesuch
    refused nonesuch get all nonesuch
    misused frob set frob=1
    misused hash set hash=sha256
    refused nonesuch export nonesuch "$BATS_TEST_TMPDIR/out"
    refused web1 import web1 "$BATS_TEST_FILENAME"
    # Many names are one command, up to a limit.
    mapfile -t names < <(printf 'nonesuch-%0191d\n' {1..6000})
    refused "no volume" destroy "${names[@]:0:5000}"
    run -2 --separate-stderr nbdedup destroy "${names[@]}"
    [[ $stderr == "nbdedup: destroy: the arguments take more than the 1024 "* ]]
    # The server is not harmed.
    nbdedup check
}

@test "import and export go through a server, and NBD shows the same" {
    need qemu-img --version
    make_pool
    serve_up "$pool"
    truncate -s 30M "$BATS_TEST_TMPDIR/img"
    random_data 7000001 | dd of="$BATS_TEST_TMPDIR/img" bs=1000 seek=3001 \
                             conv=notrunc status=none
    nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    nbdedup import web2 - --block-size 4K < <(cat "$BATS_TEST_TMPDIR/img")
    qemu-img compare -f raw -F raw "$BATS_TEST_TMPDIR/img" "$(uri_of web1)"
    qemu-img compare -f raw -F raw "$BATS_TEST_TMPDIR/img" "$(uri_of web2)"
    nbdedup export web1 "$BATS_TEST_TMPDIR/out"
    cmp "$BATS_TEST_TMPDIR/img" "$BATS_TEST_TMPDIR/out"
    assert_num "$(stat -c %b "$BATS_TEST_TMPDIR/out") * 512 < 8000000"
    nbdedup export web2 - | cmp - "$BATS_TEST_TMPDIR/img"

    # The image is durable, even if the server is killed.
    crash
    nbdedup export web1 - | cmp - "$BATS_TEST_TMPDIR/img"
}

# all_succeed PID...: wait for these processes, none of which may fail.
all_succeed ()
{
    local each failed=0

    for each in "$@"; do
        wait "$each" || ((++failed))
    done
    assert_eq "$failed" 0 "commands that failed"
}

@test "many imports and exports at once all succeed, in pipes too" {
    local i pids=()

    make_pool
    random_data 3M >"$BATS_TEST_TMPDIR/img"
    serve_up "$pool"
    for i in {1..45}; do
        nbdedup import "im$i" "$BATS_TEST_TMPDIR/img" 3>&- 4>&- &
        pids+=("$!")
    done
    all_succeed "${pids[@]}"
    # Each import waits for its export, which holds what imports need.
    pids=()
    for i in {1..45}; do
        bash -o pipefail -c "nbdedup export im$i - | nbdedup import to$i -" \
             3>&- 4>&- &
        pids+=("$!")
    done
    all_succeed "${pids[@]}"
    assert_eq "$(json list | jq '.volumes | length')" 90
    nbdedup export to45 - | cmp - "$BATS_TEST_TMPDIR/img"
}

@test "an export that fails leaves no new file behind" {
    make_pool
    random_data 5M >"$BATS_TEST_TMPDIR/img"
    serve_up "$pool"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    # The server does the pool's writing, so this limits the export only.
    run ! bash -c 'ulimit -f 1000; nbdedup export web1 "$1"' - \
        "$BATS_TEST_TMPDIR/out"
    assert_eq "$status" 1
    [[ $output == "nbdedup: export: $BATS_TEST_TMPDIR/out: File too large" ]]
    [ ! -e "$BATS_TEST_TMPDIR/out" ]
}

@test "what NBD wrote is in the figures and in an export" {
    need qemu-io --version
    make_pool
    nbdedup create web1 10M --block-size 64K
    serve_up "$pool"
    qemu-io -f raw "$(uri_of web1)" -c 'write -P 0x61 0 65536' \
                                    -c 'write -P 0x62 65536 65536'
    assert_eq "$(volume_stat web1 logical_bytes)" 131072
    nbdedup export web1 - | cmp -n 131072 - \
        <(head -c 65536 /dev/zero | tr '\0' a
          head -c 65536 /dev/zero | tr '\0' b)
}

@test "a volume in use is not destroyed or shrunk, unless by force" {
    need qemu-io --version
    make_pool
    nbdedup create web1 10M
    serve_up "$pool"
    hold web1
    refused "use" destroy web1
    refused "" resize web1 5M --shrink
    nbdedup resize web1 20M
    nbdedup destroy web1 --force
    assert_eq "$(json list | jq -c .volumes)" '[]'
    echo 'read 0 512' >&5
    release
    grep -i 'failed\|error' "$BATS_TEST_TMPDIR/hold.log"
}

@test "clients of import and export count, and do not stay" {
    make_pool
    random_data 5M >"$BATS_TEST_TMPDIR/img"
    serve_up "$pool"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    attached web1 0
    nbdedup export web1 - | head -c 1000 >/dev/null || :
    wait_for 10 attached web1 0
    nbdedup destroy web1
}

# begin_import: start an import into web1 from descriptor 5; 20 MiB of it have
# come.
begin_import ()
{
    mkfifo "$BATS_TEST_TMPDIR/fifo"
    nbdedup import web1 - <"$BATS_TEST_TMPDIR/fifo" \
            2>"$BATS_TEST_TMPDIR/err" 3>&- 4>&- &
    pid=$!
    exec 5>"$BATS_TEST_TMPDIR/fifo"
    random_data 20M >&5
}

# import_fails: the import fails with status 1 when no more data comes.
import_fails ()
{
    exec 5>&-
    expect_failure "$pid"
}

@test "an interrupted import through a server leaves no volume behind" {
    make_pool
    serve_up "$pool"
    begin_import
    json list | jq -e '.volumes[0].clients > 0'
    kill -TERM "$pid"
    expect_failure "$pid"
    exec 5>&-
    assert_eq "$(json list | jq -c .volumes)" '[]'
}

@test "an import whose server is killed says so and leaves no volume behind" {
    make_pool
    serve_up "$pool"
    begin_import
    crash
    random_data 20M >&5 || :
    import_fails
    [[ $(cat "$BATS_TEST_TMPDIR/err") == *"the server went away"* ]]
    assert_eq "$(json list | jq -c .volumes)" '[]'
}

@test "a server goes down promptly while a client of its socket is idle" {
    make_pool
    serve_up "$pool"
    begin_import
    kill "$server_pid"
    wait_for 10 server_is_gone "$server_pid"
    [ ! -e "$pool/control.sock" ]
    import_fails
    assert_eq "$(json list | jq -c .volumes)" '[]'
}

@test "a socket that a crash left behind does not matter" {
    make_pool
    serve_up "$pool"
    wait_for 20 test -S "$pool/control.sock"
    crash
    [ -S "$pool/control.sock" ]
    nbdedup create web1 1M
    serve_up "$pool"
    nbdedup create web2 1M
    assert_eq "$(json list | jq '.volumes | length')" 2
}

@test "a pool with a long path has its socket too" {
    pool="$BATS_TEST_TMPDIR/$(printf '%0150d' 0)"
    export NBDEDUP_POOL="$pool"
    nbdedup init
    serve_up "$pool"
    nbdedup create web1 1M
    cd "$pool"
    assert_eq "$(nbdedup -p . list --json | jq -r '.volumes[0].name')" web1
}

@test "a command waits for a server that starts up or goes down" {
    make_pool
    nbdedup create web1 1M
    for _ in 1 2 3; do
        # Send a command as soon as the server has the lock.
        : >"$pool/lock"
        { until grep -q server "$pool/lock"; do sleep 0.01; done
          nbdedup list >"$BATS_TEST_TMPDIR/list"; } 3>&- 4>&- &
        pid=$!
        serve "$pool"
        wait "$pid"
        grep web1 "$BATS_TEST_TMPDIR/list"

        { for _ in 1 2 3 4 5; do nbdedup list || exit 1; done
        } >"$BATS_TEST_TMPDIR/list" 3>&- 4>&- &
        pid=$!
        kill "$server_pid"
        wait_for 20 server_is_gone "$server_pid"
        wait "$pid"
        assert_eq "$(grep -c web1 "$BATS_TEST_TMPDIR/list")" 5
    done
}

# says FILE TEXT: the command has said so, in one line.
says ()
{
    grep -q "^nbdedup: $2" "$1"
}

@test "a command that waits for another says for which, and ends by Ctrl-C" {
    local first second err=$BATS_TEST_TMPDIR/err

    make_pool
    random_data 8M >"$BATS_TEST_TMPDIR/img"
    serve_up "$pool"
    nbdedup import web1 "$BATS_TEST_TMPDIR/img"
    nbdedup set scrub-rate=1M
    nbdedup scrub >/dev/null 3>&- 4>&- &
    first=$!
    wait_for 10 eval 'nbdedup status | grep "^running  *scrub: .* records left"'
    nbdedup scrub >/dev/null 2>"$err" 3>&- 4>&- &
    second=$!
    wait_for 10 says "$err" "scrub: waiting: nbdedup scrub (PID $first) has \
been at work since 20..-..-.. ..:..:..$"
    kill "$second"
    wait "$second" || :
    assert_eq "$(sed 1d "$err")" "nbdedup: scrub: interrupted"
    kill "$first"
    wait "$first" || :
}

@test "a command says that the server does not answer, and what to do" {
    local err=$BATS_TEST_TMPDIR/err

    make_pool
    serve_up "$pool"
    # A server that is stopped before it listens is said to be starting.
    nbdedup list
    kill -STOP "$server_pid"
    nbdedup list 2>"$err" 3>&- 4>&- &
    wait_for 10 says "$err" "list: waiting for up to 30 s: the pool's server, \
.* (PID $server_pid), has not answered since 20"
    kill -CONT "$server_pid"
    wait "$!"
    assert_eq "$(wc -l <"$err")" 1
}
