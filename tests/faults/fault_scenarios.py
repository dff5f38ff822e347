# SPDX-License-Identifier: BSD-3-Clause
"""The scenarios of fault-sweep: a server's work, opening, each command.

A pool's content is a World: {export: Content}.  After an operation that
failed there are two: one with the operation, and one without.
"""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import threading

from damage_pools import Hangup, NbdError, Server, copy_pool, some_block
from nbd_client import UNIT

KIB, MIB = 1 << 10, 1 << 20
STOP_S = 3
PATIENCE = 60                   # commands wait for 30 s


class Wrong(Exception):
    """A failure of the test: (class, text)."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


class Content:
    """The allowed contents of an export: an image, and others by unit."""

    def __init__(self, image):
        self.image = bytearray(image)
        self.older = {}         # unit: contents that a crash may restore
        self.failed = {}        # unit: contents of failed writes

    def units(self, offset, data):
        for at in range(offset, offset + len(data), UNIT):
            yield at // UNIT, bytes(data[at - offset:at - offset + UNIT])

    def wrote(self, offset, data):
        for unit, _ in self.units(offset, data):
            at = unit * UNIT
            self.older.setdefault(unit, set()).add(
                bytes(self.image[at:at + UNIT]))
            self.older[unit] |= self.failed.pop(unit, set())
        self.image[offset:offset + len(data)] = data

    def did_not(self, offset, data):
        for unit, new in self.units(offset, data):
            self.failed.setdefault(unit, set()).add(new)

    def flushed(self):
        self.older = {}

    def frozen(self):
        """A durable copy for another export."""
        new = Content(self.image)
        new.failed = {u: set(s) for u, s in self.failed.items()}
        return new

    def resized(self, size):
        new = self.frozen()
        new.image = bytearray(bytes(self.image[:size]).ljust(size, b"\0"))
        return new

    def differs(self, units, size, strict):
        """The first difference, or None.  Units that were not read are None.
        A server that still runs does not go back behind an answered write."""
        if size != len(self.image):
            return "%d bytes" % size
        for unit, data in units:
            at = unit * UNIT
            if data is None or data == self.image[at:at + UNIT] or \
                    strict and data in self.older.get(unit, ()) or \
                    data in self.failed.get(unit, ()):
                continue
            return "unit %d: %s" % (unit, "zeroes" if not any(data)
                                    else "garbage")
        return None


def compare(worlds, found, strict):
    """found: {export: (size, [(unit, data or None)])}"""
    texts = []
    # The next import with this name destroys it.
    found = {n: f for n, f in found.items() if ".importing-" not in n}
    for world in worlds:
        wrong = None
        if strict and set(world) != set(found):
            wrong = "exports are " + " ".join(sorted(found))
        for name, (size, units) in found.items():
            if strict and any(data is None for _, data in units):
                raise Wrong("lost", name + ": EIO")
            if not wrong and name in world:
                text = world[name].differs(units, size, strict)
                wrong = text and "%s: %s" % (name, text)
        if not wrong:
            return
        texts.append(wrong)
    raise Wrong("wrong", " / ".join(sorted(set(texts))))


# ---------------------------------------------------------------------
# The initial pools

class Base:
    """clean: of a stopped server; killed: with flushes that are only in the
    journal; lost: that without its pool.db."""

    def __init__(self, env):
        self.env, self.rng = env, random.Random("faults")
        self.pool = env.path("new")
        self.world, self.worlds = {}, {}
        self.printed = {}       # by commands that change nothing
        self.command("init")
        for name, size, block in ("a", MIB, 4096), ("b", MIB, 16384):
            self.command("create", name, str(size), "--block-size",
                         str(block))
            self.world[name] = Content(bytes(size))
        self.session()
        self.command("snapshot", "a@s")
        self.command("snapshot", "b@s")
        self.command("clone", "a@s", "ac")
        self.world["a@s"] = self.world["a"].frozen()
        self.world["b@s"] = self.world["b"].frozen()
        self.world["ac"] = self.world["a"].frozen()
        self.session()
        self.command("snapshot", "a@s2")
        self.world["a@s2"] = self.world["a"].frozen()
        self.session()
        self.keep("clean")
        server = Server(env, self.pool, "dirty-max=4M")
        for name, n, size in ("a", 12, 4096), ("ac", 3, 5 * 4096), \
                ("b", 1, 512 * KIB), ("a", 6, 4096):
            self.write(server, name, n, size)
        server.end(signal.SIGKILL)
        self.keep("killed")
        for name in os.listdir(self.pool):
            if name.startswith("pool.db") and "copy" not in name:
                os.unlink(os.path.join(self.pool, name))
        self.keep("lost")
        shutil.rmtree(self.pool)

    def command(self, *args):
        self.env.command(self.pool, *args)

    def write(self, server, name, n, size):
        nbd = server.open(name)
        content = self.world[name]
        for _ in range(n):
            at = self.rng.randrange((nbd.size - size) // UNIT + 1) * UNIT
            data = some_block(self.rng, size)
            nbd.write(at, data)
            content.wrote(at, data)
            nbd.flush()
            content.flushed()
        nbd.close()

    def session(self):
        server = Server(self.env, self.pool)
        for name in self.world:
            if "@" not in name:
                self.write(server, name, 4, 64 * KIB)
                self.write(server, name, 6, 4096)
        if server.end(signal.SIGTERM) != 0:
            raise RuntimeError(server.said())

    def keep(self, state):
        copy_pool(self.pool, self.env.path(state))
        self.worlds[state] = {n: c.frozen() for n, c in self.world.items()}


# ---------------------------------------------------------------------
# Runs

class Run:
    """One scenario, with a fault or (no FAULT_CALL in environ) without."""

    state = "clean"
    arms = False                # the fault waits until the server serves
    must_go_on = False          # the fault is no reason to stop a pool

    def __init__(self, env, base, environ):
        self.env, self.base, self.environ = env, base, environ
        self.nr_requests = 0
        self.at_request = {}    # number: the event right before it
        self.rng = random.Random("run")
        self.pool = env.path("pool")
        self.server = None
        self.notes = []
        copy_pool(env.path(self.state), self.pool)
        self.worlds = [{n: c.frozen() for n, c in
                        base.worlds[self.state].items()}]

    def note(self, text, limit=300):
        text = " ".join(text.split()).replace(self.env.dir + "/", "")
        if text not in self.notes:
            self.notes.append(text[:limit])

    # -- with the fault

    def child(self, *args, faulty, judged=True):
        """Run a command.  Returns (status, stdout, stderr)."""
        environ = self.environ if faulty else {}
        process = subprocess.Popen(
            [self.env.nbdedup, "-p", self.pool, *args],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=self.env.environ(environ),
            cwd=self.env.dir)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            text = backtrace(self.server.process.pid if self.server
                             else process.pid)
            process.send_signal(signal.SIGABRT)
            process.communicate()
            raise Wrong("hang", "%s: %s" % (args[0], text)) from None
        err = err.decode(errors="replace")
        status = process.returncode
        if status < 0 or "Sanitizer" in err or "runtime error:" in err:
            raise Wrong("crash", "%s: status %d: %s" % (args[0], status,
                                                        err[-600:]))
        if status != 0 and judged:
            self.judge_error(args[0], status, err)
        return status, out, err

    def judge_error(self, command, status, err):
        lines = [line for line in err.splitlines()
                 if line.startswith(("nbdedup: %s: " % command,
                                     "nbdedup: no memory to print",
                                     "nbdedup: out of memory"))
                 and "cannot destroy the incomplete volume" not in line
                 and ": waiting for up to " not in line]
        # A command without any memory cannot undo what it has begun.
        if len(lines) == 2 and lines[1] == "nbdedup: %s: no memory" % command:
            lines.pop()
        self.note("%s: %s" % (command, (lines or [err])[-1]))
        if self.must_go_on and "the pool has stopped" in err:
            raise Wrong("stopped", err)
        # "status" has the exit statuses of monitoring.
        last = 3 if command == "status" else 1
        # A temporary error is no reason to restore a backup, or to repair.
        advice = "restore" in err or "run nbdedup check" in err
        bad_advice = (advice and not (self.reads_fail() and self.lasts())) or \
            (re.search("errors? found|damaged", "".join(lines)) and
             not self.reads_fail())
        if bad_advice or not 1 <= status <= last or \
                len(lines) != (status == 3 or last == 1):
            raise Wrong("message", "%s: status %d: %s" % (command, status,
                                                          err))

    def reads_fail(self):
        return self.environ.get("FAULT_ERRNO") == str(errno.EIO) or \
            "FAULT_SHORT" in self.environ

    def lasts(self):
        return self.environ.get("FAULT_COUNT") != "1"

    def export(self, name):
        """Open a connection.  None: the server answers with an error."""
        try:
            return self.server.open(name)
        except NbdError:
            self.note("%s cannot be opened" % name)
            return None

    def content(self, name):
        """The content, if it is the same in all worlds, or None."""
        found = [w.get(name) for w in self.worlds]
        return found[0] if all(c is found[0] for c in found) else None

    def tick(self):
        self.nr_requests += 1
        self.at_request.get(self.nr_requests, lambda run: None)(self)

    def request(self, name, nbd, offset, data, trim=False):
        self.tick()
        content = self.content(name)
        if content is None or nbd is None:
            return
        try:
            if trim:
                nbd.trim(offset, len(data))
            else:
                nbd.write(offset, data)
        except NbdError as e:
            self.note("write: " + str(e))
            content.did_not(offset, data)
            return
        content.wrote(offset, data)

    def flush(self, name, nbd):
        self.tick()
        content = self.content(name)
        if content is None or nbd is None:
            return
        try:
            nbd.flush()
        except NbdError as e:
            self.note("flush: " + str(e))
            return
        content.flushed()

    def change(self, new, *args, faulty=False):
        """Run a command that changes a world to new(world)."""
        self.tick()
        if len(self.worlds) > 1:
            return None
        status, out, _ = self.child(*args, faulty=faulty)
        after = dict(self.worlds[0])
        new(after)
        self.worlds = [after] if status == 0 else self.worlds + [after]
        return out if status == 0 else None

    def read_all(self, strict):
        found = {}
        nbd = self.server.open(None)
        if nbd is None:
            raise Wrong("refused", self.server.said()[-600:])
        names = nbd.exports()
        nbd.close()
        if not strict:
            names = [n for n in names if any(n in w for w in self.worlds)]
        errors = (errno.EIO,) if strict else (errno.EIO, errno.ENOMEM)
        for name in names:
            nbd = self.server.open(name) if strict else self.export(name)
            if nbd is None:
                continue
            found[name] = nbd.size, list(nbd.read_units(errors))
            nbd.close()
        compare(self.worlds, found, strict)

    # -- and without it

    def end(self, sig):
        status = self.server.end(sig)
        if sig == signal.SIGTERM and status not in (0, 1):
            raise Wrong("crash", "the server ends with %d: %s" %
                        (status, self.server.said()[-600:]))

    def finish(self, sig):
        """Use the pool again, without the fault: nothing may be lost."""
        if self.server:
            self.end(sig)
            for line in self.server.said().splitlines():
                if "the pool has stopped and writes" in line:
                    self.note(line)
                    if self.must_go_on:
                        raise Wrong("stopped", line)
        self.server = Server(self.env, self.pool)
        self.read_all(True)
        self.end(signal.SIGTERM)
        self.server = None
        status, out, err = self.child("check", faulty=False)
        if status != 0:
            raise Wrong("check", out.decode() + err)

    def run(self, sig):
        try:
            self.work()
            self.finish(sig)
        except Hangup as e:
            self.hangup(e)
        except NbdError as e:
            raise Wrong("lost", "%s: %s" % (e, self.server.said()[-300:])) \
                from None
        finally:
            if self.server and self.server.runs():
                self.server.kill()

    def hangup(self, e):
        process = self.server.process
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            text = backtrace(process.pid)
            process.send_signal(signal.SIGABRT)
            process.wait()
            raise Wrong("hang", "%s %s" % (e, text)) from None
        raise Wrong("crash", "%s: the server ends with %d: %s" % (
            e, process.returncode, self.server.said()[-600:])) from None


def backtrace(pid):
    """The backtrace of a process that hangs, if there is a debugger."""
    try:
        out = subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex",
                              "thread apply all bt"], timeout=60, check=False,
                             stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return " ".join(line for line in out.decode(errors="replace").split("\n")
                    if line.startswith("#"))


class Serve(Run):
    arms = True

    def work(self):
        self.server = Server(self.env, self.pool, "dirty-max=4M",
                             "drift-interval=1", environ=self.environ)
        nbd = self.server.open(None)
        if nbd is None:
            raise Wrong("refused", self.server.said()[-600:])
        nbd.close()
        with open(self.environ["FAULT_ARM"], "w"):
            pass
        self.load()
        self.read_all(False)
        os.unlink(self.environ["FAULT_ARM"])

    def load(self):
        raise NotImplementedError

    def jump(self, seconds):
        """Make the server's time of day wrong from now on."""
        with open(self.environ["FAULT_CLOCK"], "w") as f:
            f.write(str(seconds))

    def stop(self):
        """Stop the server for a while, during which a request comes."""
        process = self.server.process
        process.send_signal(signal.SIGSTOP)
        threading.Timer(STOP_S, process.send_signal,
                        [signal.SIGCONT]).start()


class SmallFlushes(Serve):
    """Small writes, each flushed; snapshots, clones, rollback, destroy."""

    def load(self):
        a, b = self.export("a"), self.export("b")
        rng = self.rng
        for i in range(8):
            name, nbd = ("b", b) if i % 3 == 2 else ("a", a)
            self.request(name, nbd, rng.randrange(200) * UNIT,
                         some_block(rng, UNIT))
            self.flush(name, nbd)
        self.request("a", a, 16 * UNIT, bytes(8 * UNIT), True)
        self.request("b", b, 210 * UNIT, bytes(UNIT), True)
        self.flush("a", a)
        self.change(lambda w: w.update({"a@t": w["a"].frozen()}),
                    "snapshot", "a@t")
        self.request("a", a, 5 * UNIT, some_block(rng, 3 * UNIT))
        self.change(lambda w: w.update(n=w["a@t"].frozen()),
                    "clone", "a@t", "n")
        self.flush("a", a)
        self.change(lambda w: w.pop("ac"), "destroy", "ac")
        self.change(lambda w: w.update(b=w["b@s"].frozen()),
                    "rollback", "b@s", "--force")
        self.request("a", a, 40 * UNIT, some_block(rng, UNIT))
        self.flush("a", a)
        for nbd in a, b:
            if nbd:
                nbd.close()


class LargeFlushes(Serve):
    """Much data and one flush; the same again over it."""

    def load(self):
        a, b = self.export("a"), self.export("b")
        rng = self.rng
        for at in 0, 512 * KIB, 256 * KIB:
            self.request("b", b, at, some_block(rng, 512 * KIB))
            self.request("a", a, at, rng.randbytes(256 * KIB))
            self.flush("b", b)
        self.change(lambda w: w.update({"b@t": w["b"].frozen()}),
                    "snapshot", "b@t")
        self.request("a", a, 128 * KIB, rng.randbytes(512 * KIB))
        self.flush("a", a)
        self.request("b", b, 0, bytes(256 * KIB), True)
        self.flush("b", b)
        for nbd in a, b:
            if nbd:
                nbd.close()


class Open(Run):
    """A server starts on a pool whose last server was killed."""

    state = "killed"

    def work(self):
        self.server = Server(self.env, self.pool, "dirty-max=4M",
                             environ=self.environ)
        try:
            nbd = self.server.open(None)
            if nbd:
                nbd.close()
        except Hangup:
            # It listens before it opens the pool.
            if not self.server.ends():
                raise
            nbd = None
        if nbd is None:
            if self.server.ends() and self.server.status() != 1:
                raise Wrong("crash", "the server ends with %d: %s" % (
                    self.server.status(), self.server.said()[-600:]))
            lines = [line for line in self.server.said().splitlines()
                     if "error:" in line]
            self.note("refused: " + (lines or ["without a word"])[0])
            self.server = None
            return
        self.read_all(False)
        a = self.export("a")
        self.request("a", a, 7 * UNIT, some_block(self.rng, UNIT))
        self.flush("a", a)
        if a:
            a.close()


class Command(Run):
    """A command, on a pool without a server."""

    def __init__(self, env, base, environ, args, new, state):
        self.args, self.new, self.state = args, new, state
        super().__init__(env, base, environ)

    def work(self):
        self.change(self.new or (lambda w: None), *self.args, faulty=True)


class Init(Run):
    def work(self):
        shutil.rmtree(self.pool)
        status, _, _ = self.child("init", faulty=True)
        self.worlds = [{}]
        # A partly made directory is not a pool, and may be removed.
        if status != 0 and \
                self.child("list", faulty=False, judged=False)[0] != 0:
            shutil.rmtree(self.pool, ignore_errors=True)
            self.child("init", faulty=False)
        self.change(lambda w: w.update(v=Content(bytes(MIB))),
                    "create", "v", "1M")


class Reader(Command):
    """A command that prints figures: they must be right, or it fails."""

    def work(self):
        key = " ".join(self.args)
        expected = self.base.printed
        if key not in expected:
            _, out, _ = self.child(*self.args, faulty=False)
            expected[key] = self.figures(out)
            copy_pool(self.env.path(self.state), self.pool)
        status, out, _ = self.child(*self.args, faulty=True)
        if status == 0 and self.figures(out) != expected[key]:
            raise Wrong("wrong", "%s prints %s" % (self.args[0],
                                                   self.figures(out)))

    # They depend on the file system, or on the length of the WAL.
    VOLATILE = ("metadata_bytes", "file_bytes", "ddt", "reduction",
                "writable_bytes", "writable_min_bytes")

    def figures(self, out):
        try:
            figures = self.strip(json.loads(out))
        except ValueError as e:
            raise Wrong("wrong", "no JSON: %s" % e) from None
        if self.args[0] == "drift":
            figures.pop("time", None)
        return figures

    def strip(self, value):
        if isinstance(value, list):
            return [self.strip(v) for v in value]
        if isinstance(value, dict):
            return {k: self.strip(v) for k, v in value.items()
                    if k not in self.VOLATILE}
        return value


class Export(Command):
    def work(self):
        path = self.env.path("image")
        if os.path.exists(path):
            os.unlink(path)
        status, _, _ = self.child("export", "a", path, faulty=True)
        if status != 0:
            return
        with open(path, "rb") as f:
            if f.read() != self.worlds[0]["a"].image:
                raise Wrong("wrong", "another image")


class Import(Command):
    def work(self):
        path = self.env.path("disk.raw")
        rng = random.Random("import")
        image = some_block(rng, 96 * KIB) + bytes(96 * KIB) + \
            rng.randbytes(64 * KIB)
        with open(path, "wb") as f:
            f.write(image)
        self.change(lambda w: w.update(i=Content(image)),
                    "import", "i", path, faulty=True)


class Recover(Command):
    """It may fail, but must succeed without the fault."""

    def work(self):
        status, _, _ = self.child("recover", faulty=True)
        if status != 0 and self.child("recover", faulty=False)[0] != 0:
            raise Wrong("lost", "recover fails for good")


class Rewrite(Command):
    """All records change their form, and so move; "compact" moves some."""

    def work(self):
        for codec in "none", "lz4":
            self.child("set", "compress=" + codec, "a", faulty=False)
            if codec == "none":
                self.child("rewrite", "a", faulty=False)
        self.change(lambda w: None, *self.args, faulty=True)


def put(**names):
    """Add volumes with the contents of others: put(n="a@s")"""
    def new(world):
        for name, origin in names.items():
            world[name.replace("_at_", "@")] = world[origin].frozen()
    return new


def drop(*names):
    def new(world):
        for name in names:
            world.pop(name)
    return new


def resize(name, size):
    def new(world):
        world[name] = world[name].resized(size)
    return new


def rename(old, new_name):
    def new(world):
        for name in list(world):
            if name.split("@")[0] == old:
                world[name.replace(old, new_name, 1)] = world.pop(name)
    return new


def create(world):
    world["c"] = Content(bytes(MIB))


COMMANDS = {
    "create": (Command, ["create", "c", "1M"], create),
    "snapshot": (Command, ["snapshot", "b@t"], put(b_at_t="b")),
    "clone": (Command, ["clone", "a@s", "n"], put(n="a@s")),
    "rollback": (Command, ["rollback", "a@s"], put(a="a@s")),
    "rebase": (Command, ["rebase", "ac", "a@s2"], None),
    "destroy": (Command, ["destroy", "ac"], drop("ac")),
    "destroy-wait": (Command, ["destroy", "-r", "--wait", "b"],
                     drop("b", "b@s")),
    "destroy-snapshot": (Command, ["destroy", "a@s", "--force"],
                         drop("a@s")),
    "resize": (Command, ["resize", "b", "2M"], resize("b", 2 * MIB)),
    "shrink": (Command, ["resize", "--shrink", "b", "512K"],
               resize("b", 512 * KIB)),
    "rename": (Command, ["rename", "b", "bb"], rename("b", "bb")),
    "set": (Command, ["set", "compress=zstd", "b"], None),
    "set-pool": (Command, ["set", "max-size=1G"], None),
    "set-copy": (Command, ["set", "metadata-copy=off"], None),
    "scrub": (Command, ["scrub"], None),
    "prune": (Command, ["prune", "--percent", "100"], None),
    "rewrite": (Rewrite, ["rewrite", "a"], None),
    "compact": (Rewrite, ["compact"], None),
    "check": (Command, ["check"], None),
    "status": (Command, ["status"], None),
    "list": (Reader, ["list", "--json"], None),
    "get": (Reader, ["get", "--json", "all"], None),
    "stat": (Reader, ["stat", "--json"], None),
    "diff": (Reader, ["diff", "--json", "a@s", "a@s2"], None),
    "drift": (Reader, ["drift", "--json", "a@s"], None),
    "export": (Export, [], None),
    "import": (Import, [], None),
    "recover": (Recover, [], None),
}


def make(name, env, base, environ):
    if name == "serve-small":
        return SmallFlushes(env, base, environ)
    if name == "serve-large":
        return LargeFlushes(env, base, environ)
    if name == "open":
        return Open(env, base, environ)
    if name == "init":
        return Init(env, base, environ)
    kind, args, new = COMMANDS[name]
    return kind(env, base, environ, args, new,
                "lost" if name == "recover" else "clean")


NAMES = ["serve-small", "serve-large", "open", "init"] + list(COMMANDS)
