#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""Be the native socket of systemd's journal: fake-journald.py SOCKET FILE

Append each entry to FILE as one line, a JSON object of its fields."""

import json
import socket
import struct
import sys


def fields(data):
    """Both forms: NAME=VALUE in one line, or NAME, length and bytes."""
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size, = struct.unpack_from("<Q", data)
            value = data[8:8 + size]
            assert data[8 + size:9 + size] == b"\n", data
            data = data[9 + size:]
        yield name.decode(), value.decode()


server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
server.bind(sys.argv[1])
with open(sys.argv[2], "w", buffering=1) as out:
    while True:
        out.write(json.dumps(dict(fields(server.recv(1 << 20)))) + "\n")
