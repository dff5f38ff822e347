# SPDX-License-Identifier: BSD-3-Clause
"""A small NBD client for tests, which distinguishes all errors.

NbdError: the server answered with an error.  Hangup: it closed the
connection, or did not answer in time.
"""

import os
import socket
import struct
import time

OPTION, OPTION_REPLY = b"IHAVEOPT", 0x3e889045565a9
SIMPLE, STRUCTURED = 0x67446698, 0x668e33ef
READ, WRITE, DISC, FLUSH, TRIM, STATUS = 0, 1, 2, 3, 4, 7
CHUNK = 128 << 10
UNIT = 4096
TIMEOUT = 60


class NbdError(Exception):
    """The server's answer is an error: errno."""

    def __init__(self, errno):
        super().__init__(os.strerror(errno))
        self.errno = errno


class Hangup(Exception):
    """The server does not answer."""


def connect(path, server_runs):
    """Connect to a server that may not listen yet.  Returns the socket."""
    end = time.monotonic() + TIMEOUT
    while True:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(TIMEOUT)
        try:
            s.connect(path)
            return s
        except (FileNotFoundError, ConnectionRefusedError):
            s.close()
            if not server_runs():
                return None
            if time.monotonic() > end:
                raise Hangup("it does not listen") from None
            time.sleep(0.004)


class Nbd:
    """One connection.  With 'export' None it can only list exports."""

    def __init__(self, s, export):
        self.s = s
        self.size = None
        greeting = self.take(18)
        if greeting[:16] != b"NBDMAGIC" + OPTION:
            raise Hangup("no greeting")
        s.sendall(struct.pack(">I", 3))
        if export is None:
            return
        name = export.encode()
        self.option(8, b"")
        query = b"base:allocation"
        self.option(10, struct.pack(">I", len(name)) + name +
                    struct.pack(">II", 1, len(query)) + query)
        for kind, data in self.option(
                7, struct.pack(">I", len(name)) + name + b"\0\0"):
            if kind == 3 and data[:2] == b"\0\0":
                self.size, = struct.unpack_from(">Q", data, 2)

    def take(self, n):
        parts = []
        while n:
            try:
                part = self.s.recv(min(n, 1 << 20))
            except socket.timeout:
                raise Hangup("no answer in %d s" % TIMEOUT) from None
            except OSError as e:
                raise Hangup(str(e)) from None
            if not part:
                raise Hangup("connection closed")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    def send(self, data):
        try:
            self.s.sendall(data)
        except OSError as e:
            raise Hangup(str(e)) from None

    def option(self, number, data):
        """Send an option.  Returns all replies: [(kind, data)]."""
        self.send(OPTION + struct.pack(">II", number, len(data)) + data)
        out = []
        while True:
            magic, _, kind, n = struct.unpack(">QIII", self.take(20))
            if magic != OPTION_REPLY:
                raise Hangup("no option reply")
            reply = self.take(n)
            if kind & 1 << 31:
                raise NbdError(5)
            if kind == 1:
                return out
            out.append((kind, reply))

    def exports(self):
        names = []
        for _, data in self.option(3, b""):
            n, = struct.unpack_from(">I", data)
            names.append(data[4:4 + n].decode())
        return names

    def request(self, kind, offset=0, length=0, data=b""):
        """Send a request.  Returns all chunks of the answer: [(kind, data)]."""
        self.send(struct.pack(">IHHQQI", 0x25609513, 0, kind, 1, offset,
                              length) + data)
        chunks, error = [], 0
        while True:
            magic, = struct.unpack(">I", self.take(4))
            if magic == SIMPLE:
                error, _ = struct.unpack(">IQ", self.take(12))
                break
            if magic != STRUCTURED:
                raise Hangup("no reply")
            flags, chunk, _, n = struct.unpack(">HHQI", self.take(16))
            reply = self.take(n)
            if chunk & 1 << 15:
                error, = struct.unpack_from(">I", reply)
            else:
                chunks.append((chunk, reply))
            if flags & 1:
                break
        if error:
            raise NbdError(error)
        return chunks

    def read(self, offset, length):
        out = bytearray(length)
        for kind, data in self.request(READ, offset, length):
            if kind == 1:
                at, = struct.unpack_from(">Q", data)
                out[at - offset:at - offset + len(data) - 8] = data[8:]
        return bytes(out)

    def write(self, offset, data):
        self.request(WRITE, offset, len(data), data)

    def trim(self, offset, length):
        self.request(TRIM, offset, length)

    def flush(self):
        self.request(FLUSH)

    def read_units(self, errors=(5,)):
        """Yield (number, content or None for an error) of all 4 KiB units."""
        for offset in range(0, self.size, CHUNK):
            n = min(CHUNK, self.size - offset)
            try:
                data = self.read(offset, n)
                for at in range(0, n, UNIT):
                    yield (offset + at) // UNIT, data[at:at + UNIT]
                continue
            except NbdError as e:
                whole = e
            if whole.errno not in errors:
                raise whole
            for at in range(offset, offset + n, UNIT):
                try:
                    yield at // UNIT, self.read(at, UNIT)
                except NbdError as e:
                    if e.errno not in errors:
                        raise
                    yield at // UNIT, None

    def holes(self):
        """(offset, length) of the ranges that are reported as zeroes."""
        offset = 0
        while offset < self.size:
            chunks = self.request(STATUS, offset, self.size - offset)
            start = offset
            for kind, data in chunks:
                if kind != 5:
                    continue
                for n, flags in struct.iter_unpack(">II", data[4:]):
                    if flags & 2:
                        yield offset, min(n, self.size - offset)
                    offset += n
            if offset == start:
                raise Hangup("extents without an end")

    def close(self):
        try:
            self.s.sendall(struct.pack(">IHHQQI", 0x25609513, 0, DISC, 1,
                                       0, 0))
        except OSError:
            pass
        self.s.close()
