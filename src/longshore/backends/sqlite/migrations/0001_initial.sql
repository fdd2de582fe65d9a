-- Times are microseconds since 1970 in UTC. Booleans are 0 and 1. Wide columns stand last: SQLite reads a row from its
-- start, and most statements need the narrow ones only.
--
-- Checks that compare one word at a time are written with OR: SQLite would build a table of an IN list for every row.
--
-- There are no foreign keys. Each would cost a look-up on every insert of the hot path, and a data migration replaces
-- one table at a time. Removal deletes tags, logs and dependencies in the transaction that deletes the job.
CREATE TABLE jobs (
    uid INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    priority INTEGER NOT NULL,
    lifo INTEGER NOT NULL,
    delay INTEGER,
    expires_at INTEGER,
    timeout INTEGER,
    max_attempts INTEGER NOT NULL,
    max_crashes INTEGER,
    idempotency_key TEXT,
    concurrency_key TEXT,
    parent_id TEXT,
    on_dependency_failure TEXT NOT NULL CHECK (
        on_dependency_failure = 'wait' OR on_dependency_failure = 'stop' OR on_dependency_failure = 'ignore'
    ),
    schedule_id TEXT,
    deps_total INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    deps_left INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (
        status = 'INITIAL_PENDING' OR status = 'RUNNING' OR status = 'COMPLETED' OR status = 'FAILED_RETRY'
        OR status = 'CREATED' OR status = 'WAITING_CHILDREN' OR status = 'CANCELLING' OR status = 'UNKNOWN_RETRY'
        OR status = 'STOPPED' OR status = 'UNSCHEDULED' OR status = 'UNKNOWN_STOPPED' OR status = 'DEAD'
    ),
    run_at INTEGER,
    eligible_at INTEGER NOT NULL,
    -- The order within a priority: eligible_at for FIFO jobs; below -2^60 for LIFO jobs, the newest first.
    sort_key INTEGER NOT NULL,
    -- The concurrency key has no free slot: claims do not read the job.
    blocked INTEGER NOT NULL DEFAULT 0,
    executions INTEGER NOT NULL DEFAULT 0,
    retry_count INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    -- The number of claims: with lease_token, the fence against late settlements.
    epoch INTEGER NOT NULL DEFAULT 0,
    -- The number of the job's last event: the version that a write must match.
    job_seq INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    started_at INTEGER,
    finalized_at INTEGER,
    last_retry_at INTEGER,
    assigned_at INTEGER,
    assignee_id TEXT,
    lease_owner TEXT,
    lease_token TEXT,
    lease_expires_at INTEGER,
    -- When a delayed job's job.promoted event is due; NULL once written.
    announce_at INTEGER,
    cancel_asked_at INTEGER,
    -- The run_at was given as a duration, or is a backoff: it moves with a step of the machine's clock.
    relative INTEGER NOT NULL DEFAULT 0,
    tags TEXT NOT NULL,
    options TEXT NOT NULL,
    error_message TEXT NOT NULL DEFAULT '',
    progress TEXT,
    checkpoint BLOB,
    payload BLOB NOT NULL,
    result BLOB
) STRICT;

CREATE UNIQUE INDEX jobs_by_id ON jobs (id);
-- The claim order. It holds only jobs that a worker may claim.
CREATE INDEX jobs_claimable ON jobs (queue, priority, sort_key)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0;
-- The claim order of each type.
CREATE INDEX jobs_of_type ON jobs (queue, type, priority, sort_key)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0;
CREATE INDEX jobs_blocked ON jobs (queue, concurrency_key, type, priority, sort_key) WHERE blocked = 1;
CREATE INDEX jobs_held ON jobs (lease_owner, lease_expires_at) WHERE lease_token IS NOT NULL;
-- A job that succeeds at once is never in this index: other indexes serve its three statuses.
CREATE INDEX jobs_by_status ON jobs (queue, status) WHERE status NOT IN ('INITIAL_PENDING', 'RUNNING', 'COMPLETED');
CREATE INDEX jobs_by_end ON jobs (queue, status, finalized_at) WHERE finalized_at IS NOT NULL;
CREATE INDEX jobs_expiring ON jobs (expires_at)
    WHERE expires_at IS NOT NULL
    AND status IN ('WAITING_CHILDREN', 'INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY');
CREATE INDEX jobs_to_announce ON jobs (announce_at)
    WHERE announce_at IS NOT NULL AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY');
CREATE INDEX jobs_cancelling ON jobs (cancel_asked_at) WHERE status IN ('CANCELLING');
CREATE UNIQUE INDEX jobs_by_key ON jobs (queue, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_by_parent ON jobs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX jobs_by_schedule ON jobs (schedule_id) WHERE schedule_id IS NOT NULL;

-- Copies what claims and counts by tag need, so that they do not visit the jobs.
CREATE TABLE job_tags (
    tag TEXT NOT NULL,
    uid INTEGER NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    sort_key INTEGER NOT NULL,
    claimable INTEGER NOT NULL,
    status TEXT NOT NULL,
    retry_count INTEGER NOT NULL,
    PRIMARY KEY (tag, uid)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_tags_claimable ON job_tags (tag, queue, priority, sort_key) WHERE claimable = 1;

CREATE TABLE job_dependencies (
    dependent_uid INTEGER NOT NULL,
    depends_on TEXT NOT NULL,
    policy TEXT NOT NULL CHECK (policy = 'wait' OR policy = 'stop' OR policy = 'ignore'),
    state TEXT NOT NULL CHECK (state = 'waiting' OR state = 'satisfied' OR state = 'failed'),
    position INTEGER NOT NULL,
    PRIMARY KEY (dependent_uid, depends_on)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_dependencies_open ON job_dependencies (depends_on) WHERE state <> 'satisfied';

-- Removed jobs: their idempotency keys and their last status answer for them for a while.
CREATE TABLE tombstones (
    uid INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN (
        'CREATED', 'WAITING_CHILDREN', 'INITIAL_PENDING', 'RUNNING', 'CANCELLING', 'FAILED_RETRY', 'UNKNOWN_RETRY',
        'COMPLETED', 'STOPPED', 'UNSCHEDULED', 'UNKNOWN_STOPPED', 'DEAD'
    )),
    idempotency_key TEXT,
    removed_at INTEGER NOT NULL,
    -- The digest of the request: the same key with another request is refused.
    request TEXT
) STRICT;
CREATE INDEX tombstones_by_id ON tombstones (id);
CREATE INDEX tombstones_by_key ON tombstones (queue, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX tombstones_by_age ON tombstones (removed_at);

CREATE TABLE job_events (
    n INTEGER PRIMARY KEY,
    job_uid INTEGER,
    job_id TEXT,
    job_seq INTEGER NOT NULL,
    queue TEXT NOT NULL,
    type TEXT,
    event TEXT NOT NULL,
    from_status TEXT,
    to_status TEXT,
    epoch INTEGER NOT NULL,
    execution INTEGER NOT NULL,
    assignee_id TEXT,
    actor TEXT NOT NULL,
    occurred_at INTEGER NOT NULL,
    detail TEXT
) STRICT;
CREATE INDEX job_events_by_job ON job_events (job_id) WHERE job_id IS NOT NULL;

CREATE TABLE job_logs (
    uid INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    level TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (uid, number)
) STRICT, WITHOUT ROWID;

-- Queues whose settings differ from the defaults; all names are in queue_counts.
CREATE TABLE queues (
    name TEXT NOT NULL PRIMARY KEY,
    paused INTEGER NOT NULL,
    running_limit INTEGER,
    per_key INTEGER,
    rate_count INTEGER,
    rate_per INTEGER,
    key_rate_count INTEGER,
    key_rate_per INTEGER,
    window_start INTEGER NOT NULL,
    window_count INTEGER NOT NULL,
    keep_finished INTEGER,
    keep_dead INTEGER,
    keep_events INTEGER
) STRICT, WITHOUT ROWID;

-- Exact counts, changed in the transaction of every change of a job.
CREATE TABLE queue_counts (
    queue TEXT NOT NULL,
    status TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    PRIMARY KEY (queue, status)
) STRICT, WITHOUT ROWID;

-- Up to where the events of each queue are deleted, and up to where the log was read for more.
CREATE TABLE pruned_events (
    queue TEXT NOT NULL PRIMARY KEY,
    deleted_through INTEGER NOT NULL,
    seen_through INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The slots in use and the rate window of each key that has either.
CREATE TABLE concurrency_keys (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    running_count INTEGER NOT NULL,
    window_start INTEGER NOT NULL,
    window_count INTEGER NOT NULL,
    window_ends_at INTEGER,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX concurrency_keys_by_window_end ON concurrency_keys (queue, window_ends_at)
    WHERE window_ends_at IS NOT NULL;

-- The body is what a firing does not change, as JSON: thousands may fire at one moment.
CREATE TABLE schedules (
    id TEXT NOT NULL PRIMARY KEY,
    paused INTEGER NOT NULL,
    next_run_at INTEGER,
    last_run_at INTEGER,
    last_job_id TEXT,
    run_count INTEGER NOT NULL DEFAULT 0,
    updated_at INTEGER,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules (next_run_at) WHERE next_run_at IS NOT NULL AND paused = 0;

CREATE TABLE workers (
    id TEXT NOT NULL PRIMARY KEY,
    seen_at INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Bulk inserts: many processes stage jobs, and one transaction inserts them.
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

CREATE TABLE api_tokens (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    hash TEXT NOT NULL,
    scopes TEXT NOT NULL,
    queues TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    last_used_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    -- The sequence of migrations that the file's user_version counts.
    lineage TEXT NOT NULL,
    -- The name of the event log, a part of every cursor and lease token.
    log TEXT NOT NULL,
    next_uid INTEGER NOT NULL,
    next_event INTEGER NOT NULL,
    -- The machine's clocks when they were last compared, and the last step of the wall clock.
    boot_id TEXT,
    clock_wall INTEGER,
    clock_since_boot INTEGER,
    stepped_at INTEGER,
    stepped_by INTEGER
) STRICT;
INSERT INTO meta (one, lineage, log, next_uid, next_event) VALUES (1, '2026-11', lower(hex(randomblob(4))), 1, 1);

-- Detects an unclean close: the mark names the file and its log while a process may write it, and log_lost_at is when
-- the log of a marked file was found missing.
CREATE TABLE open_mark (mark TEXT NOT NULL, log_lost_at INTEGER) STRICT;
INSERT INTO open_mark VALUES ('', NULL);
