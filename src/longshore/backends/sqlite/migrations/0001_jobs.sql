-- Times are microseconds since 1970 in UTC. Wide columns stand last, so that the narrow ones are read without them.
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
    on_dependency_failure TEXT NOT NULL,
    schedule_id TEXT,
    deps_total INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    deps_left INTEGER NOT NULL,
    status TEXT NOT NULL,
    run_at INTEGER,
    eligible_at INTEGER NOT NULL,
    place INTEGER NOT NULL,
    blocked INTEGER NOT NULL DEFAULT 0,
    executions INTEGER NOT NULL DEFAULT 0,
    retry_count INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0,
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
    tags TEXT NOT NULL,
    options TEXT NOT NULL,
    error_message TEXT NOT NULL DEFAULT '',
    progress TEXT,
    checkpoint BLOB,
    payload BLOB NOT NULL,
    result BLOB
) STRICT;

CREATE UNIQUE INDEX jobs_by_id ON jobs (id);
-- The claim leans on this one: only rows that may be claimed are in it, in the order they are claimed in.
CREATE INDEX jobs_claimable ON jobs (queue, priority, place)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked = 0;
CREATE INDEX jobs_blocked ON jobs (queue, concurrency_key, priority, place) WHERE blocked = 1;
CREATE INDEX jobs_held ON jobs (lease_owner, lease_expires_at) WHERE lease_token IS NOT NULL;
-- The three statuses of an untroubled life are left out: each has another index, and this one costs them nothing.
CREATE INDEX jobs_by_status ON jobs (queue, status) WHERE status NOT IN ('INITIAL_PENDING', 'RUNNING', 'COMPLETED');
CREATE INDEX jobs_by_end ON jobs (queue, status, finalized_at) WHERE finalized_at IS NOT NULL;
CREATE INDEX jobs_expiring ON jobs (expires_at)
    WHERE expires_at IS NOT NULL
    AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY', 'WAITING_CHILDREN');
CREATE UNIQUE INDEX jobs_by_key ON jobs (queue, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_by_parent ON jobs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX jobs_by_schedule ON jobs (schedule_id) WHERE schedule_id IS NOT NULL;

-- What a search by tag needs is copied here, so that neither claims nor statistics visit the jobs themselves.
CREATE TABLE job_tags (
    tag TEXT NOT NULL,
    uid INTEGER NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    place INTEGER NOT NULL,
    claimable INTEGER NOT NULL,
    status TEXT NOT NULL,
    retry_count INTEGER NOT NULL,
    PRIMARY KEY (tag, uid)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_tags_claimable ON job_tags (tag, queue, priority, place) WHERE claimable = 1;

CREATE TABLE job_dependencies (
    dependent_uid INTEGER NOT NULL,
    depends_on TEXT NOT NULL,
    policy TEXT NOT NULL,
    state TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (dependent_uid, depends_on)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_dependencies_open ON job_dependencies (depends_on) WHERE state <> 'satisfied';

CREATE TABLE tombstones (
    uid INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    status TEXT NOT NULL,
    idempotency_key TEXT,
    removed_at INTEGER NOT NULL
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

-- Exact counts, kept in the transaction of every change: nothing is ever counted by looking at the jobs.
CREATE TABLE queue_counts (
    queue TEXT NOT NULL,
    status TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    PRIMARY KEY (queue, status)
) STRICT, WITHOUT ROWID;

CREATE TABLE pruned_events (
    queue TEXT NOT NULL PRIMARY KEY,
    deleted_through INTEGER NOT NULL,
    seen_through INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE concurrency_keys (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    running_count INTEGER NOT NULL,
    window_start INTEGER NOT NULL,
    window_count INTEGER NOT NULL,
    window_ends_at INTEGER,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX concurrency_keys_waking ON concurrency_keys (queue, window_ends_at) WHERE window_ends_at IS NOT NULL;

CREATE TABLE schedules (
    id TEXT NOT NULL PRIMARY KEY,
    paused INTEGER NOT NULL,
    next_run_at INTEGER,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules (next_run_at) WHERE next_run_at IS NOT NULL AND paused = 0;

CREATE TABLE workers (
    id TEXT NOT NULL PRIMARY KEY,
    seen_at INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    log TEXT NOT NULL,
    next_uid INTEGER NOT NULL,
    next_event INTEGER NOT NULL
) STRICT;
INSERT INTO meta VALUES (1, lower(hex(randomblob(4))), 1, 1);
