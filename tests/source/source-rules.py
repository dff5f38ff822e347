#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""Rules of the source itself: source-rules.py TOP

Prints each violation on a line of its own, as FILE:LINE: WHAT or
FILE: WHAT; exit status 1 if there is any.

 - Layers.  lib/ is divided into rooms, its folders.  The figure in
   CONTRIBUTING.md ("The layers") names each of them once.  A file includes
   headers of its own room and of rooms on the lines below; never of a line
   above, nor of a room beyond a "|".  A header is included by its path below
   lib/.  NAME-int.h is for its own room.
 - plugin/ and tools/ include only nbdedup.h and, of base/, headers that need
   no more of lib/.
 - A file calls no function that a room above its own defines, whichever header
   declares it.
 - A function that a header of lib/ declares is called by another file of lib/,
   tools/ or plugin/, or by its own file and a test.
 - Two files of a room of lib/ do not define structs of one name; nor do two
   files of lib/ if a header names the struct.
 - Only lib/meta/ has SQL; only lib/meta/ and lib/vfs/ call SQLite.
 - Only plugin/ uses nbdkit; lib/ has its name in comments only.
 - Messages of lib/ do not begin with a command's name: the command adds it.
 - tests/ is divided into rooms, too: the figure in tests/README.md ("The
   rooms") names them.  The same rule holds for the files that a test includes
   (by their path below tests/), for those that a .bats or .bash file loads,
   and for the programs and scripts of other rooms that it starts.  The top of
   tests/ has only files that people start by name.
 - Lines of lib/, plugin/ and tools/ have at most COLUMNS_MAX columns, and no
   tabs; manual pages may have longer ones.
 - A function of lib/, plugin/ or tools/ has at most FUNCTION_MAX lines, from
   one brace to the other.  One of lib/ that asserts that a lock (a member of
   this name) is held ends in _locked; functions that need another mutex,
   which a whole command holds, do not.  One that ends in _locked and that
   other files call asserts it.
 - Every source file has its licence, and not more than LINES_MAX lines;
   lib/, plugin/, tools/ and tests/ list all their files in Makefile.am, or in
   what it includes.
"""

import os
import re
import sys

LINES_MAX = 1000
FUNCTION_MAX = 71
FIGURE_MAX = 11
# What only tests call: the engine's API for a program that has a pool open.
TESTS_CALL = ("nbdedup_call",)
COLUMNS_MAX = 80
FOLDERS = ("lib", "plugin", "tools")
LICENCE = "SPDX-License-Identifier: BSD-3-Clause"
# Files that implement or use a part of the public header include it.
PUBLIC = "nbdedup.h"
FOR_ALL = (PUBLIC, "base/array.h", "base/cleanup.h", "base/clock.h",
           "base/hashtable.h", "base/mix.h")
# Parts of the tool's "drift".
ENGINE_COMMANDS = ("drift-alerts", "drift-freed", "drift-history")
# The files of tests/ that are in no room.
TESTS_TOP = ("Makefile.am", "README.md", "chroot", "env.bash.in", "lists.mk",
             "other-release", "packages", "prepare", "programs.mk", "run",
             "skipped", "skips")
GENERATED = ("meta/schema-drift-sql.h", "meta/schema-sql.h")

TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'
                   r"'(?:\\.|[^'\\\n])*'", re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+(?:"([^"]+)"|<([^>]+)>)',
                     re.M)
# Its name begins a line, and its braces are alone on theirs.
FUNCTION = re.compile(r"^(\w+) \([^;{}]*\)\s*^\{\n(.*?)^\}", re.M | re.S)
ASSERT_LOCK = re.compile(r"\bassert_held \([^;]*(?:->|\.)lock\)")
KNOWS_LOCK = re.compile(r"\bassert_held \(|\block_is_held \(|"
                        r"\b(\w+_)?assert_\w+_locked \(|"
                        r"\bWITH_CONSISTENT \(")
# How a .bats or .bash file of tests/ uses files of a room.
LOAD = re.compile(r"^load \.\./(\w+)/([\w-]+)$", re.M)
START = re.compile(r"(?:\$test_programs|\$top_(?:src|build)dir/tests)/(\w+)/"
                   r"([\w./-]+)")
SQL = re.compile(r"\bSELECT\b.*\bFROM\b|\bINSERT (OR \w+ )?INTO\b|"
                 r"\bREPLACE INTO\b|\bUPDATE\b.*\bSET\b|\bDELETE FROM\b|"
                 r"\b(CREATE|DROP|ALTER) (TABLE|INDEX|VIEW|TRIGGER)\b|"
                 r"\bPRAGMA \w|^\s*(BEGIN|COMMIT|ROLLBACK|SAVEPOINT|VACUUM)\b",
                 re.S)

problems = []


def problem(where, what):
    problems.append("%s: %s" % (where, what))


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def without_comments(text):
    """The same lines, with comments blanked."""
    return TOKEN.sub(lambda m: blank(m[0]) if m[0][0] == "/" else m[0], text)


def without_strings(text):
    return TOKEN.sub(lambda m: blank(m[0]), text)


def strings(text):
    """Yield (line, text) of each literal; adjacent ones are one."""
    for m in re.finditer(r'(?:"(?:\\.|[^"\\\n])*"\s*)+', text):
        parts = re.findall(r'"((?:\\.|[^"\\\n])*)"', m[0])
        yield text.count("\n", 0, m.start()) + 1, "".join(parts)


def is_static(text, function):
    """'function': a match of FUNCTION in the text."""
    return re.search(r"\bstatic\b[^;{}]*$", text[:function.start()])


def at(path, text, match):
    return "%s:%d" % (path, text.count("\n", 0, match.start()) + 1)


# ----------------------------------------------------------------------
# The figure

class Place:
    """The place of a room in the figure: line 0 is the lowest."""
    def __init__(self, line, column):
        self.line = line
        self.column = column


def read_figure(path, section, folder):
    """Read the figure in a section, below a line 'folder': {room: Place}."""
    m = re.search(r"^## %s\n(.*?)^## " % section, read(path), re.M | re.S)
    if m is None:
        sys.exit("%s: has no section \"%s\"" % (path, section))
    lines = [l for l in m[1].split("\n") if l.startswith("    ")]
    if folder in (l.strip() for l in lines):
        lines = lines[[l.strip() for l in lines].index(folder) + 1:]
    if len(lines) > FIGURE_MAX:
        problem(path, "has a figure of %d lines: at most %d"
                % (len(lines), FIGURE_MAX))
    # The rooms come first; a remark may follow after two spaces.
    rows = [re.split(r" {2,}", l.strip())[0] for l in lines]
    places = {}
    for i, row in enumerate(reversed(rows)):
        for j, room in enumerate(row.split("|")):
            room = room.strip()
            if room in places:
                problem(path, "names %s twice" % room)
            if not os.path.isdir(folder + room):
                problem(path, "names %s, which is no folder of %s"
                        % (room, folder))
            places[room] = Place(i, j)
    if len(rows) < 3:
        sys.exit("%s: its figure of the layers cannot be read" % path)
    return places


def may_know(where, verb, name, mine, other, figure):
    """Check that a file of the room at 'mine' may use 'name' of 'other'."""
    if other.line > mine.line:
        problem(where, "%s %s, which stands above it in the figure of %s"
                % (verb, name, figure))
    elif other.line == mine.line and other.column != mine.column:
        problem(where, "%s %s, which stands beside it in the figure of %s"
                % (verb, name, figure))
    else:
        return True
    return False


def check_layers(files, places, figure):
    for path in files:
        if not path.startswith("lib/") or path == "lib/" + PUBLIC:
            continue
        room = os.path.dirname(path[4:])
        if room not in places:
            problem(path, "is in no room of the figure of %s" % figure)
            continue
        mine = places[room]
        text = without_comments(read(path))
        for m in INCLUDE.finditer(text):
            name = m[1]
            if name is None or name == PUBLIC or name in GENERATED:
                continue
            of = os.path.dirname(name)
            other = places.get(of)
            if "lib/" + name not in files:
                problem(at(path, text, m), "includes %s, no header of lib/"
                        % name)
            elif other is None:
                pass            # reported with the header itself
            elif may_know(at(path, text, m), "includes", name, mine, other,
                          figure) and name.endswith("-int.h") and of != room:
                problem(at(path, text, m), "includes %s, which is for its "
                        "own room" % name)


def check_calls(texts, places):
    """'texts': {path: text without comments}; 'places': as read_figure."""
    rooms = {}
    for path, text in texts.items():
        if path.startswith("lib/"):
            for m in FUNCTION.finditer(text):
                if not is_static(text, m):
                    rooms[m[1]] = os.path.dirname(path[4:])
    for path, text in texts.items():
        mine = places.get(os.path.dirname(path[4:]))
        if not path.startswith("lib/") or mine is None:
            continue
        own = {m[1] for m in FUNCTION.finditer(text)}
        for m in re.finditer(r"\b([a-z]\w+) \(", without_strings(text)):
            other = places.get(rooms.get(m[1])) if m[1] not in own else None
            if other is not None and other.line > mine.line:
                problem(at(path, text, m), "calls %s, of a room above it"
                        % m[1])


# ----------------------------------------------------------------------
# Includes

def check_knowledge(path, files):
    folder = path.split("/")[0]
    text = without_comments(read(path))
    bare = without_strings(text)
    is_meta = path.startswith("lib/meta/")
    may_sqlite = is_meta or path.startswith("lib/vfs/")

    for m in INCLUDE.finditer(text):
        name = m[1] or m[2]
        if folder != "lib" and name not in FOR_ALL and \
           "lib/" + re.sub(r"^(\.\./)*lib/", "", name) in files:
            problem(at(path, text, m), "includes %s, which is lib/'s own"
                    % name)
        if name.startswith("nbdkit") and folder != "plugin":
            problem(at(path, text, m), "includes %s: only plugin/ may" % name)
        if name.startswith("sqlite3") and not may_sqlite:
            problem(at(path, text, m), "includes %s: only lib/meta/ and "
                    "lib/vfs/ may" % name)

    if folder != "plugin":
        for m in re.finditer(r"\bnbdkit_\w+", bare):
            problem(at(path, text, m), "%s: only plugin/ knows nbdkit" % m[0])
    if not may_sqlite:
        for m in re.finditer(r"\bsqlite3_\w+", bare):
            problem(at(path, text, m), "%s: only lib/meta/ and "
                    "lib/vfs/ know SQLite" % m[0])
    for line, literal in strings(text):
        if folder == "lib" and re.search(r"nbdkit", literal):
            problem("%s:%d" % (path, line), "names nbdkit")
        m = re.match(r"([a-z-]+): ", literal)
        if folder == "lib" and m and \
           ("tools/cmd-%s.c" % m[1] in files or m[1] in ENGINE_COMMANDS):
            problem("%s:%d" % (path, line), "begins with the command %s"
                    % m[1])
        if not is_meta and SQL.search(literal):
            problem("%s:%d" % (path, line), "has SQL: only lib/meta/ may")


# ----------------------------------------------------------------------
# Functions

def check_functions(path, text):
    """'text': without comments."""
    for m in FUNCTION.finditer(text):
        lines = m[2].count("\n") + 2
        if lines > FUNCTION_MAX:
            problem(at(path, text, m), "%s has %d lines: at most %d; has it "
                    "one purpose?" % (m[1], lines, FUNCTION_MAX))
        if path.startswith("lib/") and m[1].endswith("_locked") and \
           not m[1].endswith("_assert_consistent_locked") and \
           not is_static(text, m) and not KNOWS_LOCK.search(m[2]):
            problem(at(path, text, m), "%s does not assert that the lock is "
                    "held" % m[1])
        if path.startswith("lib/") and ASSERT_LOCK.search(m[2]) and \
           not m[1].endswith("_locked"):
            problem(at(path, text, m), "%s asserts that a lock is held: its "
                    "name must end in _locked" % m[1])


# ----------------------------------------------------------------------
# Tests

def check_tests(paths):
    """paths: the sources below tests/."""
    figure = "tests/README.md"
    places = read_figure(figure, "The rooms", "tests/")
    makefile = "".join(read("tests/" + name) for name in
                       ("Makefile.am", "lists.mk", "programs.mk"))
    known = {path[6:] for path in paths}

    for path in paths:
        name = path[6:]
        room = name.split("/")[0]
        if room in TESTS_TOP:
            continue
        if room not in places:
            problem(path, "is in no room of the figure of %s" % figure)
            continue
        # They need not name the source of a program with only one.
        if not re.search(r"(?<![\w./-])%s(?![\w.-])" %
                         re.escape(name).replace("\\.c", "(\\.c)?"), makefile):
            problem(path, "is in no makefile of tests/")
        text = read(path)
        if name.endswith((".c", ".h")):
            text = without_comments(text)
            found = [(m, "includes", m[1]) for m in INCLUDE.finditer(text)
                     if m[1]]
        elif name.endswith((".bats", ".bash")):
            found = [(m, "loads", m[1] + "/" + m[2] + ".bash")
                     for m in LOAD.finditer(text)]
            found += [(m, "starts", m[1] + "/" + m[2])
                      for m in START.finditer(text)]
        else:
            continue
        for m, verb, other in found:
            of = other.split("/")[0]
            if verb == "includes" and other not in known:
                if any(k.endswith("/" + other) for k in known):
                    problem(at(path, text, m), "includes %s without its room"
                            % other)
            elif of in places:
                may_know(at(path, text, m), verb, other, places[room],
                         places[of], figure)


# ----------------------------------------------------------------------
# One of each, and none too many

def check_structs(texts):
    """'texts': {path: text without comments} of lib/."""
    defined = {}
    public = {name for path, text in texts.items() if path.endswith(".h")
              for name in re.findall(r"\bstruct (\w+)", text)}
    for path in sorted(texts, key=lambda p: (p.endswith(".c"), p)):
        for name in set(re.findall(r"\bstruct (\w+)\s*\{", texts[path])):
            scope = "" if name in public else os.path.dirname(path)
            other = defined.setdefault((scope, name), path)
            if other != path:
                problem(path, "defines struct %s, and so does %s"
                        % (name, other))


def check_callers(texts, tests):
    """Each function of a header has a caller beside its own tests."""
    users = {}
    for path, text in texts.items():
        for word in set(re.findall(r"\w+", text)):
            users.setdefault(word, set()).add(path)
    tested = set(re.findall(r"\w+", " ".join(tests)))
    for path, text in sorted(texts.items()):
        if not (path.startswith("lib/") and path.endswith(".h")):
            continue
        for name in re.findall(r"^extern [^;(]*?\b(\w+) \(", text, re.M):
            own = [p for p in users[name] if p.endswith(".c") and
                   re.search(r"^%s \(" % name, texts[p], re.M)]
            if not own:
                problem(path, "declares %s, which no file defines" % name)
            elif users[name] - {path, *own} or name in TESTS_CALL or \
                    name.endswith("_assert_consistent_locked"):
                continue        # called, or called by a macro
            elif name not in tested:
                problem(path, "declares %s, which only %s uses: make it static"
                        % (name, own[0]))
            elif len(re.findall(r"\b%s\b" % name, texts[own[0]])) == 1:
                problem(path, "declares %s, which only tests call" % name)


# ----------------------------------------------------------------------
# Files

def find_sources():
    """The files that must name their licence."""
    for folder in FOLDERS + ("tests", "vm-images", ".ci"):
        for where, dirs, names in os.walk(folder):
            dirs[:] = sorted(d for d in dirs if not d.startswith((".", "_")))
            for name in sorted(names):
                path = os.path.join(where, name)
                if path[4:] in GENERATED or os.path.islink(path):
                    continue
                if name.endswith((".c", ".h", ".bats", ".bash", ".py", ".pl",
                                  ".sql", ".syms", ".am", ".in", ".mk")) and \
                   name != "Makefile.in":
                    yield path
                elif "." not in name and name not in ("Makefile", ".") and \
                        begins_as_source(path):
                    yield path
    for path in ("Makefile.am", "common.mk", "configure.ac"):
        yield path


def begins_as_source(path):
    """A script, or a file that already names a licence (source/mutants.d)."""
    with open(path, "rb") as f:
        return f.readline().startswith((b"#!", b"# SPDX"))


def check_lines(path, text):
    for i, line in enumerate(text.split("\n"), 1):
        if len(line) > COLUMNS_MAX:
            problem("%s:%d" % (path, i), "has %d columns: at most %d"
                    % (len(line), COLUMNS_MAX))
        if "\t" in line:
            problem("%s:%d" % (path, i), "has a tab")


# Libtool writes wrappers of programs into a build directory: scripts, but
# no sources.
def is_generated(text):
    return "Generated by libtool" in text[:1000] or \
        "generated by GNU Autoconf" in text[:1000] or \
        "Generated from env.bash.in by configure" in text[:1000]


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: source-rules.py TOP")
    os.chdir(sys.argv[1])

    files = {os.path.join(where, f) for d in FOLDERS
             for where, _, names in os.walk(d) for f in names
             if f.endswith((".c", ".h"))} - {"lib/" + g for g in GENERATED}
    figure = "CONTRIBUTING.md"
    places = read_figure(figure, "The layers", "lib/")
    check_layers(sorted(files), places, figure)
    texts = {path: without_comments(read(path)) for path in files}
    check_calls(texts, places)
    check_structs({p: t for p, t in texts.items() if p.startswith("lib/")})
    for path in sorted(files):
        check_knowledge(path, files)
        check_lines(path, read(path))
        check_functions(path, texts[path])
        folder, name = path.split("/", 1)
        if not re.search(r"(?<![\w./-])%s(?![\w.-])" % re.escape(name),
                         read(folder + "/Makefile.am")):
            problem(path, "is not in %s/Makefile.am" % folder)
    sources = [(path, text) for path, text in
               ((path, read(path)) for path in find_sources())
               if not is_generated(text)]
    check_tests([path for path, _ in sources if path.startswith("tests/")])
    check_callers(texts, [text for path, text in sources
                          if path.startswith("tests/") and
                          path.endswith((".c", ".h"))])
    for path, text in sources:
        if LICENCE not in text:
            problem(path, "does not say \"%s\"" % LICENCE)
        lines = text.count("\n")
        if lines > LINES_MAX:
            problem(path, "has %d lines: at most %d; is it one concept?"
                    % (lines, LINES_MAX))

    for p in problems:
        print(p)
    sys.exit(1 if problems else 0)


main()
