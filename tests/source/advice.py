#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
#
# advice.py TREE NBDEDUP PLUGIN: find advice to use what does not exist.
#
# It reads the string literals of lib/, tools/ and plugin/, the manual pages,
# and the Markdown pages for users.  It asks the built programs for what exists:
# commands and options (--help), parameters of the plugin (nbdkit PLUGIN
# --help), properties (get all).  It prints, by file:
#
#  - "nbdedup WORD" where WORD is no command;
#  - an option of a command that does not have it, or of none;
#  - KEY=VALUE where KEY is neither a parameter of the plugin nor a property;
#  - nbdedup-WORD(N) where there is no such page.

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

# Words that follow "nbdedup" in sentences of messages.
PROSE = set("begins can cannot command compares could does emptied is keeps "
            "knows made makes needs pool put reads renamed stores took tries "
            "wrote".split())

# Options of other programs, and these programs.
OTHERS = {
    "--all": "fstrim, swapoff", "--certificate-info": "certtool",
    "--chown": "rsync",
    "--discard": "blkdiscard", "--dump-config": "nbdkit",
    "--dump-plugin": "nbdkit", "--expand": "virt-resize",
    "--filter": "nbdkit", "--flush": "nbdcopy",
    "--fresh": "vm-images/provision", "--hostname": "virt-sysprep",
    "--keep": "tests/chroot", "--list": "nbdinfo", "--map": "nbdinfo",
    "--now": "systemctl", "--output": "qemu-img",
    "--output-format": "virt-resize", "--ro": "guestfish", "--run": "nbdkit",
    "--tls": "nbdkit",
    "--tls-certificates": "nbdkit", "--tls-psk": "nbdkit",
    "--tls-verify-peer": "nbdkit",
}

# KEY=VALUE of other programs, and these programs.
OTHER_KEYS = {
    "detect-zeroes": "QEMU's -blockdev", "device": "tune2fs -J",
    "discard": "QEMU's -drive", "disk": "a shell variable",
    "driver": "QEMU's -blockdev",
    "file": "QEMU's -drive",
    "format": "QEMU's -drive, --dump-plugin", "fuamode": "nbdkit-fua-filter",
    "immutable": "SQLite's URIs", "initial-scale": "HTML",
    "iothread": "QEMU's -device", "reconnect-delay": "QEMU's -blockdev",
    "werror": "QEMU's -device", "write-cache": "QEMU's -device",
}

# Fields of lines in the log.
FIELDS = set("by event outcome pid snapshot uid".split())

OPTION = r"--[a-z][a-z-]*[a-z]"
CSS = re.compile(r"var\(--[a-z]+\)|--[a-z]+:#")
ANY_OPTION = re.compile(rf"(?<![\w-]){OPTION}")
CALL = re.compile(r"\bnbdedup((?: (?:-p [\w/$]+|--read-only(?:=force)?))*)"
                  r" ([a-z][a-z-]*)\b(?!\()([^\"';|&)>]*)")
PAGE = re.compile(r"\b(nb(?:dedup|dkit-dedup)(?:-[a-z]+)*)\(([157])\)")
KEY = re.compile(r"(?:^|(?<=[ '(\[]))([a-z][a-z-]*)=(?=[A-Za-z0-9%/])")


def output(*args):
    return subprocess.run(args, check=True, stdout=subprocess.PIPE,
                          text=True).stdout


class Existing:
    """The commands, options, parameters and properties that exist."""

    def __init__(self, tree, nbdedup, plugin):
        text = output(nbdedup, "--help")
        self.shared = set(ANY_OPTION.findall(text))
        names = re.findall(r"^  ([a-z]+)  ", text.split("Commands:")[1],
                           re.MULTILINE)
        self.commands = {
            name: set(ANY_OPTION.findall(output(nbdedup, name, "--help")))
            for name in names}
        self.options = set().union(*self.commands.values())
        self.configure = self.read_configure()
        self.parameters = set(re.findall(
            r"^\[?([a-z-]+)=", output("nbdkit", plugin, "--help"),
            re.MULTILINE))
        self.properties = self.read_properties(nbdedup)
        self.pages = {os.path.basename(path).removesuffix(".pod")
                      for path in glob.glob(f"{tree}/*/*.pod")}

    @staticmethod
    def read_configure():
        path = os.path.join(os.path.dirname(__file__), "../../configure.ac")
        with open(path, encoding="utf-8") as file:
            return set(re.findall(r"AS_HELP_STRING\(\[(--[a-z-]+)",
                                  file.read()))

    @staticmethod
    def read_properties(nbdedup):
        with tempfile.TemporaryDirectory() as pool:
            output(nbdedup, "init", pool)
            output(nbdedup, "-p", pool, "create", "v", "1M")
            return {key for of in ([], ["v"])
                    for key in json.loads(output(
                        nbdedup, "-p", pool, "get", "all", *of, "--json"))
                    ["properties"]}


def literals(path):
    """The string literals of a C file, adjacent ones as one."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"/\*.*?\*/|'(?:\\.|[^'\\])'", " ", text, flags=re.DOTALL)
    text = re.sub(r"^ *# *include.*", "", text, flags=re.MULTILINE)
    string = r'"(?:\\.|[^"\\])*"'
    for run in re.findall(rf"{string}(?:(?:\s|[A-Z][A-Za-z0-9_]*)*{string})*",
                          text, re.DOTALL):
        parts = re.findall(string, run)
        text = "".join(part[1:-1] for part in parts)
        yield CSS.sub("", text.replace('\\"', '"').replace("\\n", "\n"))


def code_in_pod(path):
    """Verbatim lines, C<...>, B<...> and links of a page."""
    with open(path, encoding="utf-8") as file:
        paragraphs = re.split(r"\n(?:[ \t]*\n)+", file.read().strip())
    for paragraph in paragraphs:
        if paragraph[0] in " \t":
            yield from re.sub(r"\\\n", " ", paragraph).splitlines()
        else:
            yield from re.findall(r"\b[BCL]<+ ?([^>]*(?:->[^>]*)*)>",
                                  paragraph.replace("\n", " "))


def code_in_markdown(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    yield from re.findall(r"^    .*", text, re.MULTILINE)
    for code in re.findall(r"`([^`]+)`", text):
        yield code.replace("\n", " ")


def command_of(path):
    """The command that a file is about, or None."""
    match = re.fullmatch(r"(?:cmd|nbdedup)-([a-z]+)\.(?:c|pod)",
                         os.path.basename(path))
    return match and match[1]


def wrong_calls(text, existing):
    """Calls of nbdedup with a wrong command, or wrong options."""
    for _, command, rest in CALL.findall(text):
        if command not in existing.commands:
            if command not in PROSE:
                yield f"no command: nbdedup {command}"
            continue
        # "nbdedup export v - | ssh other ..." ends at the bar.
        for option in ANY_OPTION.findall(rest):
            if option not in existing.commands[command] | existing.shared:
                yield f"no option of {command}: {option}"
        if command == "set":
            for key in KEY.findall(rest):
                if key not in existing.properties:
                    yield f"no property: {key}"


def wrong_options(text, existing, own):
    """Options that stand alone, or behind a command's name."""
    for match in ANY_OPTION.finditer(text):
        option = match[0]
        before = re.search(r"(?<![\w-])(\w+)[\"'>]? $", text[:match.start()])
        if before and before[1] in existing.commands:
            if option not in existing.commands[before[1]]:
                yield f"no option of {before[1]}: {option}"
        elif (option not in OTHERS and option not in existing.configure and
              option not in (own | existing.shared if own
                             else existing.options)):
            yield f"no option: {option}"


def wrong_keys(text, existing):
    known = (existing.parameters | existing.properties | set(OTHER_KEYS) |
             FIELDS)
    for key in KEY.findall(text):
        if key not in known:
            yield f"no parameter or property: {key}="


def wrong_pages(text, existing):
    for page, _ in PAGE.findall(text):
        if page not in existing.pages:
            yield f"no page: {page}"


def check(path, texts, existing, own=None):
    """Report what is wrong in the texts of a file; how much is it?"""
    wrong = 0
    for text in texts:
        for what in sorted({*wrong_calls(text, existing),
                            *wrong_options(text, existing, own),
                            *wrong_keys(text, existing),
                            *wrong_pages(text, existing)}):
            print(f"{path}: {what}")
            wrong += 1
    return wrong


def main():
    tree, nbdedup, plugin = sys.argv[1:]
    existing = Existing(tree, nbdedup, plugin)
    wrong = 0
    os.chdir(tree)
    for room in "lib", "tools", "plugin":
        for path in sorted(glob.glob(f"{room}/**/*.[ch]", recursive=True)):
            own = existing.commands.get(command_of(path))
            wrong += check(path, literals(path), existing, own)
        for path in sorted(glob.glob(f"{room}/*.pod")):
            wrong += check(path, code_in_pod(path), existing)
    for path in "README.md", "CONTRIBUTING.md", "SECURITY.md":
        wrong += check(path, code_in_markdown(path), existing)
    return wrong > 0


sys.exit(main())
