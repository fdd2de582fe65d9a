-- Jobs that many processes lay aside and one transaction makes jobs of; and what came of each such run.
CREATE TABLE staged_runs (
    run TEXT NOT NULL PRIMARY KEY,
    touched_at INTEGER NOT NULL,
    offered INTEGER,
    inserted INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE staged_jobs (
    number INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    part TEXT NOT NULL,
    job TEXT NOT NULL
) STRICT;
CREATE INDEX staged_jobs_by_run ON staged_jobs (run);
