-- SPDX-License-Identifier: BSD-3-Clause
-- pool.db, format 1.  nbdedup-format(5) describes every column.
-- format.h and segment.h describe the blobs.  A column's name says whether it
-- counts bytes, blocks or sectors.

-- One row: the state of the whole pool as of the last transaction.
CREATE TABLE state (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  uuid BLOB NOT NULL CHECK (length (uuid) = 16),
  epoch INTEGER NOT NULL,           -- of the session that has it open
  opening INTEGER NOT NULL,         -- 1: the other files may be one behind
  features_incompat INTEGER NOT NULL,
  features_compat INTEGER NOT NULL,
  features_autoclear INTEGER NOT NULL,
  sector_bytes INTEGER NOT NULL,
  hash INTEGER NOT NULL,            -- enum hash_id
  folded INTEGER NOT NULL,          -- the last journal batch that is in
  journal_position INTEGER NOT NULL,-- where recovery expects the next
  fold INTEGER NOT NULL,            -- number of folds: births in summaries
  next_id INTEGER NOT NULL,         -- of volumes, layers: never reused
  records INTEGER NOT NULL,         -- with at least one reference
  record_bytes INTEGER NOT NULL,    -- their lsize
  stored_sectors INTEGER NOT NULL,
  index_entries INTEGER NOT NULL
) STRICT;

CREATE TABLE property (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE domain (
  id INTEGER PRIMARY KEY,           -- hashed in front of a domain's blocks
  name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE layer (
  id INTEGER PRIMARY KEY,           -- never reused
  branch INTEGER NOT NULL,          -- a volume with its snapshots
  seq INTEGER NOT NULL,             -- position within the branch
  parent INTEGER,                   -- layer below; NULL: none
  overlap INTEGER NOT NULL,         -- blocks inherited from the parent
  block_size INTEGER NOT NULL,
  flags INTEGER NOT NULL,           -- 1: dying, references being dropped
  pointers INTEGER NOT NULL CHECK (pointers >= 0),
  blocks INTEGER NOT NULL CHECK (blocks >= 0), -- no holes; with inherited
  UNIQUE (branch, seq)
) STRICT;

CREATE TABLE volume (
  id INTEGER PRIMARY KEY,           -- never reused
  name TEXT NOT NULL UNIQUE,
  layer INTEGER NOT NULL REFERENCES layer (id),
  size INTEGER NOT NULL,
  flags INTEGER NOT NULL,           -- 1: blocks past the end to drop,
                                    -- 2: its import has not ended
  compress TEXT NOT NULL,
  dedup TEXT NOT NULL,
  domain INTEGER NOT NULL,          -- 0: none
  allow TEXT NOT NULL,
  origin INTEGER                    -- the snapshot it is a clone of
) STRICT;

CREATE TABLE snapshot (
  id INTEGER PRIMARY KEY,           -- never reused
  volume INTEGER REFERENCES volume (id), -- NULL: destroyed, clones live on
  name TEXT NOT NULL,               -- destroyed: VOLUME@NAME, the last name
  layer INTEGER REFERENCES layer (id), -- destroyed: NULL, or has its content
  size INTEGER NOT NULL,
  time INTEGER NOT NULL,            -- seconds since the epoch
  origin INTEGER,                   -- its volume was a clone of this one
  UNIQUE (volume, name)
) STRICT;

CREATE TABLE leaf (
  branch INTEGER NOT NULL,
  leaf INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (branch, leaf, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE record (
  grp INTEGER PRIMARY KEY,          -- first sector / 256
  data BLOB NOT NULL
) STRICT;

CREATE TABLE ddt (
  key INTEGER PRIMARY KEY,          -- run and lowest prefix
  entries BLOB NOT NULL
) STRICT;

CREATE TABLE segment (
  id INTEGER PRIMARY KEY,
  nr_free INTEGER NOT NULL,
  largest_run INTEGER NOT NULL,
  map BLOB NOT NULL
) STRICT;

-- Records without a reference that an unfolded write may still refer to.
CREATE TABLE limbo (
  addr INTEGER PRIMARY KEY
) STRICT;
