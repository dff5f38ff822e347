# SPDX-License-Identifier: BSD-3-Clause
"""The pools that damage-model damages, and servers for them.

A base is made once: a directory for each moment of its life, and the contents
of the exports at that moment.  Rounds work on copies.
"""

import hashlib
import importlib.util
import os
import pickle
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys

from nbd_client import Hangup, Nbd, NbdError, TIMEOUT, UNIT, connect

VOLUMES = {"a": (4096, 1 << 20), "b": (16384, 1 << 20), "c": (65536, 2 << 20),
           "d": (16384, 768 << 10)}
CLONES = {"ac": "a@s", "bc": "b@s"}


class Server:
    """nbdkit with a pool; it may end by itself, or refuse to start."""

    def __init__(self, env, pool, *args, environ=None):
        # Under a preloaded libasan nbdkit may hang after its pool is closed:
        # see "stop" in helpers.bash.
        self.preloaded = bool(env.preload)
        self.patience = 5 if env.preload else TIMEOUT
        self.killed = 0
        self.log = os.path.join(env.dir, "server.log")
        self.socket = os.path.join(env.dir, "s")
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        environ = env.environ(environ)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["nbdkit", "-f", "-U", self.socket, env.plugin,
                 "pool=" + pool, "commit-interval=600", *args],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environ)

    def runs(self):
        return self.process.poll() is None

    def ends(self):
        """True if it ends by itself, soon."""
        try:
            self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            if not self.preloaded:
                return False
            self.kill()
        return True

    def status(self):
        """Its exit status."""
        if re.search("AddressSanitizer|runtime error:", self.said()):
            return 128
        return self.killed or self.process.returncode

    def kill(self):
        self.killed = 1
        self.process.kill()
        self.process.wait()

    def open(self, export):
        """Open a connection.  None: the server has refused its pool."""
        s = connect(self.socket, self.runs)
        return None if s is None else Nbd(s, export)

    def end(self, sig):
        """Send a signal, and wait.  Returns the exit status."""
        if self.runs():
            self.process.send_signal(sig)
        try:
            self.process.wait(self.patience)
            return self.status()
        except subprocess.TimeoutExpired:
            self.kill()
            if self.preloaded:
                return self.status()
            raise Hangup("it does not end after signal %d" % sig) from None

    def said(self):
        with open(self.log, errors="replace") as f:
            return f.read()


class Env:
    """The paths of the programs, and a directory to work in."""

    def __init__(self, directory, plugin, nbdedup, preload):
        self.dir, self.plugin, self.nbdedup = directory, plugin, nbdedup
        self.preload = preload

    def command(self, pool, *args):
        subprocess.run([self.nbdedup, "-p", pool, *args], check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def environ(self, more=None):
        """A server's environment; LD_PRELOAD in 'more' is added."""
        environ = dict(os.environ, **(more or {}))
        if self.preload:
            environ["LD_PRELOAD"] = ":".join(
                [self.preload] + [p for p in [environ.get("LD_PRELOAD")] if p])
            environ.setdefault("ASAN_OPTIONS", "detect_leaks=0")
        return environ


def copy_pool(source, target):
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-r", "--sparse=always", source, target],
                   check=True)
    try:
        os.unlink(os.path.join(target, "control.sock"))
    except FileNotFoundError:
        pass


def some_block(rng, size):
    """Data: incompressible, with few different bytes, or one of a few."""
    kind = rng.random()
    if kind < 0.3:
        return rng.randbytes(size)
    if kind < 0.5:
        return random.Random(rng.randrange(12)).randbytes(size)
    words = [rng.randbytes(16) for _ in range(8)]
    return b"".join(rng.choice(words) for _ in range(size // 16))


class Image(bytearray):
    """A content, and the digests of all contents that units ever had."""

    def __init__(self, data, ever=()):
        super().__init__(data)
        self.ever = set(ever)

    def seen(self):
        """Note the present content as one of these."""
        self.put(0, bytes(self))

    def put(self, at, data):
        self[at:at + len(data)] = data
        self.ever |= {unit_key(i // UNIT, data[i - at:i - at + UNIT])
                      for i in range(at, at + len(data), UNIT)}

    def copy(self):
        return Image(self, self.ever)


def unit_key(unit, data):
    return unit, hashlib.blake2b(data, digest_size=16).digest()


def change(nbd, image, rng, block, share, holes=0.3):
    """Write to, or trim, about 'share' of an export's blocks."""
    for at in range(0, len(image), block):
        if rng.random() >= share:
            continue
        if rng.random() < holes:
            nbd.trim(at, block)
            image.put(at, bytes(block))
        else:
            data = some_block(rng, block)
            nbd.write(at, data)
            image.put(at, data)


def block_of(name):
    return VOLUMES[name[0]][0]


class Base:
    """moments: names of directories; the last one is of a killed server."""

    MOMENTS = ["first", "second", "clean", "killed"]

    def __init__(self, env, number):
        self.root = env.path("base%d" % number)
        self.meanings = {}
        saved = os.path.join(self.root, "images")
        if os.path.exists(saved):
            with open(saved, "rb") as f:
                self.images, self.ever = pickle.load(f)
            return
        shutil.rmtree(self.root, ignore_errors=True)
        os.mkdir(self.root)
        self.env, self.rng = env, random.Random("base %d" % number)
        self.images, self.now = {}, {}
        self.pool = env.path("new")
        self.make(["lz4", "zstd", "none"][number % 3],
                  ["sha256", "gmac"][number % 2])
        self.ever = {n: i.ever for n, i in self.now.items()}
        with open(saved, "wb") as f:
            pickle.dump((self.images, self.ever), f)

    def remove(self):
        shutil.rmtree(self.root)

    def make(self, compress, hash):
        shutil.rmtree(self.pool, ignore_errors=True)
        self.env.command(self.pool, "init", "--compress", compress,
                         "--hash", hash)
        for name, (block, size) in VOLUMES.items():
            self.env.command(self.pool, "create", name, str(size),
                             "--block-size", str(block))
            self.now[name] = Image(bytes(size))
        self.session([(0.7, 0.1)])
        self.keep("first")
        for origin in CLONES.values():
            self.env.command(self.pool, "snapshot", origin)
            self.now[origin] = self.now[origin[0]].copy()
        for clone, origin in CLONES.items():
            self.env.command(self.pool, "clone", origin, clone)
            self.now[clone] = self.now[origin].copy()
        share = self.rng.choice([0.02, 0.1, 0.3])
        self.session([(2 * share, 0.3)])
        self.keep("second")
        self.session([(share, 0.3), (0.03, 0.3)])
        self.keep("clean")

        server = Server(self.env, self.pool)
        self.write(server, share)
        self.env.command(self.pool, "stat")     # folds it
        self.write(server, 0.05)
        for share in (share, 0.01, 0.02):
            self.write(server, share)
        server.end(signal.SIGKILL)
        self.keep("killed")
        shutil.rmtree(self.pool)

    def write(self, server, share, holes=0.3):
        for name in self.now:
            if "@" in name:
                continue
            nbd = server.open(name)
            change(nbd, self.now[name], self.rng, block_of(name), share,
                   holes)
            nbd.flush()
            nbd.close()

    def session(self, shares):
        server = Server(self.env, self.pool)
        for share, holes in shares:
            self.write(server, share, holes)
        if server.end(signal.SIGTERM) != 0:
            raise RuntimeError(server.said())

    def keep(self, moment):
        for image in self.now.values():
            image.seen()
        copy_pool(self.pool, self.at(moment))
        self.images[moment] = {n: bytes(i) for n, i in self.now.items()}

    def at(self, moment):
        return os.path.join(self.root, moment)

    def older(self, moment, rng):
        """A moment of an earlier session."""
        before = self.MOMENTS[:3] if moment == "killed" else self.MOMENTS[:2]
        return rng.choice(before)


# ---------------------------------------------------------------------
# The meaning of a damaged place

def load_reader():
    models = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                          os.pardir, "models")
    sys.path.insert(0, models)          # for what it imports
    spec = importlib.util.spec_from_file_location(
        "format_reader", os.path.join(models, "format-reader.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Meaning:
    """Places at one moment of a base: the exports of records, and tables."""

    def __init__(self, base, moment):
        reader = load_reader()
        path = base.at(moment)
        pool = reader.Pool(path, True)
        pool.verify()
        self.records = []               # (first byte, end, exports)
        users = {}
        for name, ident, size, _ in pool.db.names():
            block = pool.layers[ident]["lsize"]
            for b in range(-(-size // block)):
                p = pool.find(ident, b)
                if p not in (None, reader.LOST):
                    users.setdefault((p.addr * pool.sector, p.psize),
                                     set()).add(name)
        for (at, n), names in users.items():
            self.records.append((at, at + n, names))
        self.tables = {}
        db = sqlite3.connect("file:%s?immutable=1" %
                             os.path.join(path, "pool.db"), uri=True)
        try:
            self.tables = dict(db.execute("SELECT pageno, name FROM dbstat"))
        except sqlite3.Error:
            pass                        # not in every build of SQLite
        db.close()

    def touched(self, first, end):
        out = set()
        for a, b, names in self.records:
            if a < end and first < b:
                out |= names
        return out

    def table(self, offset):
        return self.tables.get(offset // 8192 + 1, "free")


__all__ = ["Base", "Env", "Hangup", "Meaning", "NbdError", "Server",
           "block_of", "copy_pool", "some_block", "unit_key"]
