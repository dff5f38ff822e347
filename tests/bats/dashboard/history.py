#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause

"""A history for promtool, from readings of "nbdedup stat --prometheus":

  history.py END STEP INSTANCE=FOLDER...

Prints OpenMetrics text.  The files in a FOLDER, in the order of their names,
were read STEP seconds apart, the last one at END.  All get the labels that
Prometheus would give them.
"""

import os
import re
import sys

families = {}                   # name: (type, samples)


def read(path, labels, when):
    family = None
    with open(path, encoding="utf-8") as f:
        for text in f:
            found = re.fullmatch(r"# TYPE (\w+) (\w+)\n", text)
            if found:
                # OpenMetrics has "_total" in the samples' names only.
                family = families.setdefault(
                    re.sub(r"_total$", "", found.group(1)),
                    (found.group(2), []))[1]
            elif not text.startswith("#"):
                name, rest, value = re.fullmatch(r"(\w+){(.*)} (\S+)\n",
                                                 text).groups()
                family.append("%s{%s,%s} %s %d\n"
                              % (name, labels, rest, value, when))


def main():
    end, step = int(sys.argv[1]), int(sys.argv[2])
    for argument in sys.argv[3:]:
        instance, folder = argument.split("=", 1)
        names = sorted(os.listdir(folder))
        for nr, name in enumerate(names):
            read(os.path.join(folder, name),
                 'instance="%s",job="node"' % instance,
                 end - (len(names) - 1 - nr) * step)
    for name, (kind, samples) in families.items():
        sys.stdout.write("# TYPE %s %s\n%s" % (name, kind, "".join(samples)))
    print("# EOF")


main()
