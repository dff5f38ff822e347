# SPDX-License-Identifier: BSD-3-Clause
#
# --help and the manual page say the same.

# helpers.bash and "run" set what seems to be unset; $'\n' stands in patterns
# shellcheck disable=SC2154,SC1011,SC2016,SC2030,SC2031

load helpers

setup ()
{
    unset NBDEDUP_POOL
    pod="$top_srcdir/tools/nbdedup.pod"
}

# commands: as "nbdedup --help" lists them.
commands ()
{
    nbdedup --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'
}

# pod_section COMMAND: what the manual page says about a command.
pod_section ()
{
    sed -n "/^=head2 $1\( \|\$\)/,/^=head[12] /p" "$pod" | sed 1d
}

# options_in: the long options in the text on stdin.
options_in ()
{
    grep -oE -e '--[a-z][a-z-]*' | sort -u
}

@test "nbdedup --help lists all commands, and the manual page has the same" {
    want="init create list get set resize rename destroy stat check scrub"
    want+=" import export bench"
    assert_eq "$(commands | xargs)" "$want"
    assert_eq "$(sed -n 's/^=head2 \([a-z]*\).*/\1/p' "$pod" | xargs)" "$want"
}

@test "every option of a command is in its section of the manual page" {
    common=$(sed -n '/^=head1 OPTIONS/,/^=head1 COMMANDS/p' "$pod" |
                 options_in)
    while read -r command; do
        nr=0
        while read -r option; do
            nr=$((nr + 1))
            { pod_section "$command" | options_in; echo "$common"; } |
                grep -qxe "$option" ||
                fail "$command: $option is not in the manual page"
        done < <(nbdedup "$command" --help | options_in)
        assert_num "$nr >= 3"
    done < <(commands)
}

@test "every option that the manual page has for a command exists" {
    while read -r command; do
        help=$(nbdedup "$command" --help | options_in)
        while read -r option; do
            grep -qxe "$option" <<<"$help" ||
                fail "$command: $option is not in --help"
        done < <(pod_section "$command" |
                     sed -n 's/^=item B<\(--[a-z-]*\)>.*/\1/p')
    done < <(commands)
}

@test "the synopsis has every option of every command" {
    synopsis=$(sed -n '/^=head1 SYNOPSIS/,/^=head1 DESC/p' "$pod" | tr '\n' ' ')
    while read -r command; do
        line=$(sed "s/.*\( $command .*\)/\1/; s/ nbdedup .*//" <<<"$synopsis")
        while read -r option; do
            case "$option" in
                --help|--usage|--version|--pool|--recursive) continue ;;
            esac
            [[ $line == *"$option"* ]] ||
                fail "$command: $option is not in the synopsis: $line"
        done < <(nbdedup "$command" --help | options_in)
    done < <(commands)
}

@test "--help, --usage and --version work everywhere and exit 0" {
    while read -r command; do
        run -0 --separate-stderr nbdedup "$command" --help
        [[ $output == "Usage: nbdedup $command "* ]]
        assert_eq "$stderr" ""
        run -0 nbdedup "$command" --usage
        [[ $output == "Usage: nbdedup $command "* ]]
        run -0 nbdedup "$command" --version
        assert_eq "$output" "nbdedup $version"
    done < <(commands)
    run -0 nbdedup --help
    run -0 nbdedup --usage
    run -0 nbdedup --version
    assert_eq "$output" "nbdedup $version"
}

@test "the manual page is good POD" {
    need type podchecker
    podchecker "$pod"
}
