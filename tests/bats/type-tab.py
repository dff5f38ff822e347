#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""type-tab.py SHELL LINE: type LINE and a tab in an interactive SHELL.

SHELL is bash, zsh or fish, and has the completion of nbdedup in the present
directory.  Prints the words of the completed line, as the shell would run it.
"""

import os
import pty
import select
import subprocess
import sys
import time

TIMEOUT = 60

START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"],
             "source /usr/share/bash-completion/bash_completion; "
             "source ./nbdedup; bind 'set bell-style none'"),
    "zsh": (["zsh", "-f", "-i"],
            "fpath=($PWD $fpath); autoload -U compinit; compinit -u -D; "
            "unsetopt beep"),
    "fish": (["fish", "--no-config", "-i"],
             "source ./nbdedup.fish; set -g fish_greeting"),
}


class Terminal:
    def __init__(self, argv):
        self.seen = b""
        environment = dict(os.environ, TERM="xterm", PS1="",
                           TMPDIR=os.getcwd())
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, environment)
        subprocess.run(["stty", "cols", "200"], stdin=self.fd, check=True)

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, path):
        """Read what the shell prints until the file is there."""
        end = time.monotonic() + TIMEOUT
        while not os.path.exists(path):
            if time.monotonic() > end:
                sys.exit("type-tab.py: gave up: %r" % self.seen[-2000:])
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.fd, 65536)
                except OSError:
                    sys.exit("type-tab.py: the shell ended: %r" % self.seen)


def main():
    shell, line = sys.argv[1:]
    argv, start = START[shell]
    done = os.path.abspath("typed")
    for path in (done, done + ".ready"):
        if os.path.exists(path):
            os.remove(path)
    terminal = Terminal(argv)
    terminal.type(start + "; touch typed.ready\r")
    terminal.wait_for(done + ".ready")
    # Control-A goes to the beginning of the line, Control-E to its end.
    terminal.type(line + "\t\x01printf '%s ' \x05 >typed.new; "
                  "mv typed.new typed\r")
    terminal.wait_for(done)
    with open(done, encoding="utf-8") as file:
        print(file.read().strip())
    terminal.type("\x15exit\r")
    os.close(terminal.fd)
    os.waitpid(terminal.pid, 0)


main()
