#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
#
# manager.py SOCKET LOG COMMAND...: what systemd does for nbdedup@.service.
#
# Listen on a Unix socket, and run COMMAND with it.  Append to LOG the command's
# process id ("pid N") and its messages to the service manager, a line each.  If
# it does not end with success, run it again; on SIGTERM end it, and then this.

import os
import signal
import socket
import sys
import threading

path, log_path, command = sys.argv[1], sys.argv[2], sys.argv[3:]
stopping = False
child = None


def log(line):
    with open(log_path, "a", encoding="utf-8") as f:
        f.write(line + "\n")


def read_messages(messages):
    """Log what the socket has, until an empty message."""
    while message := messages.recv(4096):
        for line in message.decode().splitlines():
            log(line)


def end(status):
    """Exit, when all that the command has told is logged: its last message may
    still be in the socket when it has ended."""
    messages.sendto(b"", messages.getsockname())
    reader.join()
    sys.exit(os.waitstatus_to_exitcode(status))


def start(listener):
    """Start the command; descriptor 3 is the socket."""
    pid = os.fork()
    if pid == 0:
        os.dup2(listener.fileno(), 3)
        os.set_inheritable(3, True)
        os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()),
                          NOTIFY_SOCKET=path + ".notify")
        os.execvp(command[0], command)
    log(f"pid {pid}")
    return pid


def stop(_signal, _frame):
    global stopping
    stopping = True
    os.kill(child, signal.SIGTERM)


messages = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
messages.bind(path + ".notify")
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(path)
listener.listen(128)
reader = threading.Thread(target=read_messages, args=(messages,), daemon=True)
reader.start()

child = start(listener)
signal.signal(signal.SIGTERM, stop)
while True:
    _, status = os.waitpid(child, 0)
    if stopping or status == 0:
        end(status)
    child = start(listener)
