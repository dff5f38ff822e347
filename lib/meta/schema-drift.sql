-- SPDX-License-Identifier: BSD-3-Clause
-- pool.db, format 1: tables that pools of earlier versions lack.  nbdedup
-- creates them when it opens such a pool (IF NOT EXISTS); older programs do
-- not touch them.

-- The history of "drift".
CREATE TABLE IF NOT EXISTS drift (
  id INTEGER PRIMARY KEY,           -- ascending as recorded, never reused
  golden INTEGER NOT NULL,          -- id of a snapshot, maybe destroyed since
  time INTEGER NOT NULL,            -- seconds since the epoch
  codec INTEGER NOT NULL,           -- of data, as in pointers
  length INTEGER NOT NULL,          -- of the document, in bytes
  flags INTEGER NOT NULL,           -- 1: requested by a user
  data BLOB NOT NULL                -- the document, JSON, compressed
) STRICT;

-- The last report of each kind: recovery, scrub.
CREATE TABLE IF NOT EXISTS report (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL               -- a JSON document
) STRICT, WITHOUT ROWID;

-- The pool's history: the newest events.
CREATE TABLE IF NOT EXISTS event (
  id INTEGER PRIMARY KEY,           -- ascending as recorded, without gaps
  time INTEGER NOT NULL,            -- seconds since the epoch
  data TEXT NOT NULL                -- a JSON object
) STRICT;

-- Copies of records (property "copies"): the same stored bytes elsewhere.
CREATE TABLE IF NOT EXISTS copy (
  addr INTEGER PRIMARY KEY,         -- of the primary; 0: the total
  data BLOB NOT NULL                -- its copies' addresses, 8 bytes each;
                                    -- row 0: sectors of all copies
) STRICT;

-- Reference counts that are newer than the records.
CREATE TABLE IF NOT EXISTS count (
  grp INTEGER PRIMARY KEY,          -- as in table record
  data BLOB NOT NULL
) STRICT;

-- Pointers that are newer than the leaves.
CREATE TABLE IF NOT EXISTS delta (
  branch INTEGER NOT NULL,
  area INTEGER NOT NULL,            -- leaf / 64
  seq INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (branch, area, seq)
) STRICT, WITHOUT ROWID;

-- Every column that thinning reads.
CREATE INDEX IF NOT EXISTS drift_golden ON drift (golden, id, time, flags);
