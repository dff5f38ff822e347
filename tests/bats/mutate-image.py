#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""Damage an image: mutate-image.py FROM TO SEED

Copies FROM to TO and changes 1 to 16 bytes, most of them in places of headers
and tables.  The same seed makes the same changes.
"""

import random
import shutil
import sys

source, target, seed = sys.argv[1:]
rng = random.Random(int(seed))
shutil.copyfile(source, target)
with open(target, "r+b") as f:
    size = f.seek(0, 2)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        region = rng.choice((128, 512, 512, 4096, 1 << 18))
        if rng.random() < 0.1:
            where = size - 1 - rng.randrange(min(512, size))
        else:
            where = rng.randrange(min(region, size))
        f.seek(where)
        old = f.read(1)[0]
        new = rng.choice((0, 1, 0x7f, 0x80, 0xff, old ^ 1 << rng.randrange(8),
                          rng.randrange(256)))
        f.seek(where)
        f.write(bytes((new,)))
