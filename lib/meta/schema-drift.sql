-- SPDX-License-Identifier: BSD-3-Clause
-- pool.db, format 1: what a pool that was made before has not got.  It is
-- given to it when it is opened (IF NOT EXISTS); older programs leave it
-- alone.

-- What "drift" found, over time.
CREATE TABLE IF NOT EXISTS drift (
  id INTEGER PRIMARY KEY,           -- ascending as recorded, never reused
  golden INTEGER NOT NULL,          -- id of a snapshot, maybe destroyed since
  time INTEGER NOT NULL,            -- seconds since the epoch
  codec INTEGER NOT NULL,           -- of data, as in pointers
  length INTEGER NOT NULL,          -- of the document, in bytes
  flags INTEGER NOT NULL,           -- 1: asked for, not the server's own
  data BLOB NOT NULL                -- the document, JSON, compressed
) STRICT;

-- The last one of each kind: what recovery did, what scrub found.
CREATE TABLE IF NOT EXISTS report (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL               -- a document, JSON
) STRICT, WITHOUT ROWID;

-- Copies of records (property "copies"): more of the same stored bytes.
CREATE TABLE IF NOT EXISTS copy (
  addr INTEGER PRIMARY KEY,         -- of the primary; 0: not one
  data BLOB NOT NULL                -- its copies' addresses, 8 bytes each;
                                    -- of 0: sectors of all copies
) STRICT;

-- All that thinning asks for.
CREATE INDEX IF NOT EXISTS drift_golden ON drift (golden, id, time, flags);
