# SPDX-License-Identifier: BSD-3-Clause
#
# For the tests of "nbdedup drift --files".

# helpers.bash sets what seems to be unset
# shellcheck disable=SC2154

# make_golden IMAGE [OPTION...]: golden@v1, in a new pool.
make_golden ()
{
    make_pool --compress none "${@:2}"
    nbdedup import golden "$1"
    nbdedup snapshot golden@v1
}

# write_content NAME IMAGE: let the volume have the image's content.
write_content ()
{
    serve "$pool"
    qemu-img convert -n -f raw -O raw "$2" "$(uri_of "$1")"
    stop
}

# write_clone NAME IMAGE: the same for a new clone.
write_clone ()
{
    nbdedup clone golden@v1 "$1"
    write_content "$1" "$2"
}

# put_file IMAGE FILE PATH: into an ext file system.
put_file ()
{
    debugfs -w -R "write $2 $3" "$1" 2>/dev/null >&2
}

# bytes_of CLONE CLASS PATH: from the document in "json".
bytes_of ()
{
    jq --arg c "$1" --arg k "$2" --arg p "$3" '[.clones[] |
       select (.name == $c).files[] | select (.path == $p)[$k]] | add // 0' json
}

# check_sums [FILE]: of each clone and class, over what is no tree: the files
# and the causes.
check_sums ()
{
    jq -e '.block_size as $b | all (.clones[]; . as $c |
        all ("sibling", "unique"; . as $k | ($c[$k] * $b) as $n |
            ([$c.files[] | select (.path | endswith ("/") | not)[$k]] | add
             // 0) == $n and
            ([$c.causes[][$k]] | add // 0) == $n))' "${1:-json}" >/dev/null ||
        fail "the sums differ from the classes"
}

# plain_helper: make a helper in plain/ that makes no map of a golden image, so
# that each clone is parsed by itself.
plain_helper ()
{
    mkdir -p plain
    cat >plain/nbdedup-files <<END
#!/usr/bin/python3 -IS
import os, sys
if sys.argv[2:] == ["map"]:
    sys.exit(1)
os.execv("$NBDEDUP_LIBEXEC/nbdedup-files", sys.argv)
END
    chmod +x plain/nbdedup-files
}

# same_without_map [OPTION...]: what the map of the golden image tells of the
# clones is what they tell themselves.
same_without_map ()
{
    plain_helper
    nbdedup drift golden@v1 --files --json "$@" | jq 'del (.time)' >with
    NBDEDUP_LIBEXEC=$PWD/plain nbdedup drift golden@v1 --files --json "$@" |
        jq 'del (.time)' >without
    diff without with
}
