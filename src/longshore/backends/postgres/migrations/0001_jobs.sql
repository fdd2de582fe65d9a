-- Times are microseconds since 1970 in UTC, as everywhere in Longshore; the view job_list shows them as timestamps.
-- Names are compared byte by byte (COLLATE "C"), whatever the database's own collation is.
CREATE SEQUENCE {schema}.job_uids AS bigint;

CREATE TABLE {schema}.jobs (
    uid bigint PRIMARY KEY,
    priority bigint NOT NULL,
    delay bigint,
    expires_at bigint,
    timeout bigint,
    max_attempts bigint NOT NULL,
    max_crashes bigint,
    deps_total bigint NOT NULL,
    created_at bigint NOT NULL,
    deps_left bigint NOT NULL,
    run_at bigint,
    eligible_at bigint NOT NULL,
    place bigint NOT NULL,
    executions bigint NOT NULL DEFAULT 0,
    retry_count bigint NOT NULL DEFAULT 0,
    crashes bigint NOT NULL DEFAULT 0,
    epoch bigint NOT NULL DEFAULT 0,
    job_seq bigint NOT NULL,
    updated_at bigint NOT NULL,
    started_at bigint,
    finalized_at bigint,
    last_retry_at bigint,
    assigned_at bigint,
    lease_expires_at bigint,
    last_event_xid xid8 NOT NULL DEFAULT pg_current_xact_id(), -- where its last event stands in the log; see job_events
    lifo boolean NOT NULL,
    blocked boolean NOT NULL DEFAULT false,
    id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C",
    concurrency_key text COLLATE "C",
    parent_id text COLLATE "C",
    on_dependency_failure text NOT NULL,
    schedule_id text COLLATE "C",
    assignee_id text COLLATE "C",
    lease_owner text COLLATE "C",
    lease_token text COLLATE "C",
    tags text NOT NULL,
    options text NOT NULL,
    error_message text COLLATE "C" NOT NULL DEFAULT '',
    progress text,
    checkpoint bytea,
    payload bytea NOT NULL,
    result bytea
) WITH (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1
);

CREATE UNIQUE INDEX jobs_by_id ON {schema}.jobs (id);
-- The claim leans on this one: only rows that may be claimed are in it, in the order they are claimed in.
CREATE INDEX jobs_claimable ON {schema}.jobs (queue, priority, place, uid)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND NOT blocked;
CREATE INDEX jobs_blocked ON {schema}.jobs (queue, concurrency_key, priority, place, uid) WHERE blocked;
CREATE INDEX jobs_held ON {schema}.jobs (lease_owner, lease_expires_at, uid) WHERE lease_token IS NOT NULL;
-- The three statuses of an untroubled life are left out: each has another index, and this one costs them nothing.
CREATE INDEX jobs_by_status ON {schema}.jobs (queue, status, uid)
    WHERE status NOT IN ('INITIAL_PENDING', 'RUNNING', 'COMPLETED');
CREATE INDEX jobs_by_end ON {schema}.jobs (queue, status, finalized_at) WHERE finalized_at IS NOT NULL;
CREATE INDEX jobs_expiring ON {schema}.jobs (expires_at)
    WHERE expires_at IS NOT NULL
    AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY', 'WAITING_CHILDREN');
CREATE UNIQUE INDEX jobs_by_key ON {schema}.jobs (queue, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_by_parent ON {schema}.jobs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX jobs_by_schedule ON {schema}.jobs (schedule_id) WHERE schedule_id IS NOT NULL;

-- What a search by tag needs is copied here, so that neither claims nor statistics visit the jobs themselves.
CREATE TABLE {schema}.job_tags (
    uid bigint NOT NULL,
    priority bigint NOT NULL,
    place bigint NOT NULL,
    retry_count bigint NOT NULL,
    claimable boolean NOT NULL,
    tag text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    PRIMARY KEY (uid, tag)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX job_tags_by_tag ON {schema}.job_tags (tag, uid);
CREATE INDEX job_tags_claimable ON {schema}.job_tags (tag, queue, priority, place, uid) WHERE claimable;

-- An edge is unsure if what it depends on could change unseen while it was stored: the sweep looks again.
CREATE TABLE {schema}.job_dependencies (
    dependent_uid bigint NOT NULL,
    position bigint NOT NULL,
    unsure boolean NOT NULL,
    depends_on text COLLATE "C" NOT NULL,
    policy text NOT NULL,
    state text NOT NULL,
    PRIMARY KEY (dependent_uid, depends_on)
);
CREATE INDEX job_dependencies_open ON {schema}.job_dependencies (depends_on) WHERE state <> 'satisfied';
CREATE INDEX job_dependencies_unsure ON {schema}.job_dependencies (dependent_uid) WHERE unsure;

CREATE TABLE {schema}.tombstones (
    uid bigint PRIMARY KEY,
    removed_at bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    type text NOT NULL,
    status text NOT NULL,
    idempotency_key text COLLATE "C"
);
CREATE INDEX tombstones_by_id ON {schema}.tombstones (id);
CREATE INDEX tombstones_by_key ON {schema}.tombstones (queue, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX tombstones_by_age ON {schema}.tombstones (removed_at);

-- A follower reads in the order (xid, n), and only up to the oldest transaction still open: so it never passes an
-- event whose transaction commits late. An event stands under its own transaction, or under that of the job's event
-- before it where that began later: so one job's events are in order, too.
CREATE TABLE {schema}.job_events (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    n bigint GENERATED BY DEFAULT AS IDENTITY,
    job_uid bigint,
    job_seq bigint NOT NULL,
    epoch bigint NOT NULL,
    execution bigint NOT NULL,
    occurred_at bigint NOT NULL,
    job_id text COLLATE "C",
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C",
    event text NOT NULL,
    from_status text,
    to_status text,
    assignee_id text,
    actor text NOT NULL,
    detail text,
    PRIMARY KEY (xid, n)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX job_events_by_job ON {schema}.job_events (job_id, xid, n) WHERE job_id IS NOT NULL;

CREATE TABLE {schema}.job_logs (
    uid bigint NOT NULL,
    number bigint NOT NULL,
    at bigint NOT NULL,
    level text NOT NULL,
    message text NOT NULL,
    PRIMARY KEY (uid, number)
);

CREATE TABLE {schema}.queues (
    name text COLLATE "C" PRIMARY KEY,
    paused boolean NOT NULL,
    running_limit bigint,
    per_key bigint,
    rate_count bigint,
    rate_per bigint,
    key_rate_count bigint,
    key_rate_per bigint,
    window_start bigint NOT NULL,
    window_count bigint NOT NULL,
    keep_finished bigint,
    keep_dead bigint,
    keep_events bigint,
    changed xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (fillfactor = 50);

-- Every queue that ever had a job. No unique index: two who bring the first job of a queue must not wait for each other.
CREATE TABLE {schema}.queue_names (name text COLLATE "C" NOT NULL);
CREATE INDEX queue_names_by_name ON {schema}.queue_names (name);

-- Exact counts as a sum: every transaction adds rows and changes none, so that nobody waits for anybody. Now and then
-- somebody puts many rows together into a few.
CREATE TABLE {schema}.queue_counts (
    jobs bigint NOT NULL,
    retries bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {schema}.pruned_events (
    queue text COLLATE "C" PRIMARY KEY,
    deleted_xid xid8 NOT NULL,
    deleted_n bigint NOT NULL,
    seen_xid xid8 NOT NULL,
    seen_n bigint NOT NULL
);

CREATE TABLE {schema}.concurrency_keys (
    running_count bigint NOT NULL,
    window_start bigint NOT NULL,
    window_count bigint NOT NULL,
    window_ends_at bigint,
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, key)
) WITH (fillfactor = 50);
CREATE INDEX concurrency_keys_waking ON {schema}.concurrency_keys (queue, window_ends_at) WHERE window_ends_at IS NOT NULL;

CREATE TABLE {schema}.schedules (
    id text COLLATE "C" PRIMARY KEY,
    paused boolean NOT NULL,
    next_run_at bigint,
    body text NOT NULL,
    changed xid8 NOT NULL DEFAULT pg_current_xact_id()
);
CREATE INDEX schedules_due ON {schema}.schedules (next_run_at) WHERE next_run_at IS NOT NULL AND NOT paused;

CREATE TABLE {schema}.workers (
    id text COLLATE "C" PRIMARY KEY,
    seen_at bigint NOT NULL,
    body text NOT NULL
) WITH (fillfactor = 50);

-- `home` is the database this log was written in: a dump restored elsewhere begins a log of its own. `copy_state` tells of
-- a move into this schema: where from, and whether it is finished.
CREATE TABLE {schema}.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    log text NOT NULL,
    home text NOT NULL,
    copy_state text
);

CREATE VIEW {schema}.job_list AS
SELECT
    id, queue, type, status, priority,
    to_timestamp(created_at / 1e6) AS created_at,
    to_timestamp(run_at / 1e6) AS run_at,
    to_timestamp(started_at / 1e6) AS started_at,
    to_timestamp(finalized_at / 1e6) AS finalized_at,
    executions, retry_count, crashes, lease_owner,
    to_timestamp(lease_expires_at / 1e6) AS lease_expires_at,
    error_message, encode(payload, 'escape') AS payload, tags, uid
FROM {schema}.jobs;

INSERT INTO {schema}.meta (log, home) VALUES (left(gen_random_uuid()::text, 8), '');
