-- Times are microseconds since 1970 in UTC; the view job_list shows them as timestamps. Names have COLLATE "C": they
-- compare byte by byte, whatever the database's own collation is.
--
-- The columns that we write as JSON (tags, options, progress, detail, body, scopes) are text, not jsonb: callers get
-- back the key order, the numbers and the \u0000 that they sent. Cast them to json to look into them.
--
-- There are no foreign keys. Each would cost a look-up on every insert of the hot path, and a lock on the parent row
-- that claims and settlements wait for; a data migration also replaces one table at a time. Removal deletes tags, logs
-- and dependencies in the transaction that deletes the job.
CREATE SEQUENCE {schema}.job_uids AS bigint;

-- Domains, because a CHECK of the table costs 6 microseconds in every statement that writes a job, and a domain costs 1,
-- in those that write the column.
CREATE DOMAIN {schema}.job_status AS text COLLATE "C" CHECK (VALUE IN (
    'CREATED', 'WAITING_CHILDREN', 'INITIAL_PENDING', 'RUNNING', 'CANCELLING', 'FAILED_RETRY', 'UNKNOWN_RETRY',
    'COMPLETED', 'STOPPED', 'UNSCHEDULED', 'UNKNOWN_STOPPED', 'DEAD'
));
CREATE DOMAIN {schema}.dependency_policy AS text CHECK (VALUE IN ('wait', 'stop', 'ignore'));

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
    sort_key bigint NOT NULL,
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
    announce_at bigint,
    cancel_asked_at bigint,
    last_event_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    lifo boolean NOT NULL,
    blocked boolean NOT NULL DEFAULT false,
    id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    status {schema}.job_status NOT NULL,
    idempotency_key text COLLATE "C",
    concurrency_key text COLLATE "C",
    parent_id text COLLATE "C",
    on_dependency_failure {schema}.dependency_policy NOT NULL,
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
COMMENT ON COLUMN {schema}.jobs.sort_key IS
    'The order within a priority: eligible_at for FIFO jobs; below -2^60 for LIFO jobs, the newest first';
COMMENT ON COLUMN {schema}.jobs.blocked IS 'The concurrency key has no free slot: claims do not read the job';
COMMENT ON COLUMN {schema}.jobs.job_seq IS 'The number of the job''s last event: the version that a write must match';
COMMENT ON COLUMN {schema}.jobs.epoch IS 'The number of claims: with lease_token, the fence against late settlements';
COMMENT ON COLUMN {schema}.jobs.announce_at IS 'When a delayed job''s job.promoted event is due; NULL once written';
COMMENT ON COLUMN {schema}.jobs.last_event_xid IS 'The xid of the job''s last event; see the table job_events';

CREATE UNIQUE INDEX jobs_by_id ON {schema}.jobs (id);
-- The claim order. It holds only jobs that a worker may claim.
CREATE INDEX jobs_claimable ON {schema}.jobs (queue, priority, sort_key, uid)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND NOT blocked;
-- The claim order of each type. The cast of blocked makes sure that statements with the same cast use this index only,
-- and statements without it never do.
CREATE INDEX jobs_of_type ON {schema}.jobs (queue, type, priority, sort_key, uid)
    WHERE status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY') AND blocked::int = 0;
CREATE INDEX jobs_blocked ON {schema}.jobs (queue, concurrency_key, type, priority, sort_key, uid) WHERE blocked;
CREATE INDEX jobs_held ON {schema}.jobs (lease_owner, lease_expires_at, uid) WHERE lease_token IS NOT NULL;
-- A job that succeeds at once is never in this index: other indexes serve its three statuses.
CREATE INDEX jobs_by_status ON {schema}.jobs (queue, status, uid)
    WHERE status NOT IN ('INITIAL_PENDING', 'RUNNING', 'COMPLETED');
CREATE INDEX jobs_by_end ON {schema}.jobs (queue, status, finalized_at) WHERE finalized_at IS NOT NULL;
CREATE INDEX jobs_expiring ON {schema}.jobs (expires_at)
    WHERE expires_at IS NOT NULL
    AND status IN ('WAITING_CHILDREN', 'INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY');
CREATE INDEX jobs_to_announce ON {schema}.jobs (announce_at, uid)
    WHERE announce_at IS NOT NULL AND status IN ('INITIAL_PENDING', 'FAILED_RETRY', 'UNKNOWN_RETRY');
CREATE INDEX jobs_cancelling ON {schema}.jobs (cancel_asked_at) WHERE status = 'CANCELLING';
CREATE UNIQUE INDEX jobs_by_key ON {schema}.jobs (queue, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- With uid: otherwise the planner walks back through all jobs until it meets one of this parent.
CREATE INDEX jobs_by_parent ON {schema}.jobs (parent_id, uid) WHERE parent_id IS NOT NULL;
CREATE INDEX jobs_by_schedule ON {schema}.jobs (schedule_id) WHERE schedule_id IS NOT NULL;

CREATE TABLE {schema}.job_tags (
    uid bigint NOT NULL,
    priority bigint NOT NULL,
    sort_key bigint NOT NULL,
    retry_count bigint NOT NULL,
    claimable boolean NOT NULL,
    tag text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    PRIMARY KEY (uid, tag)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE {schema}.job_tags IS
    'Copies what claims and counts by tag need, so that they do not visit the jobs';
CREATE INDEX job_tags_by_tag ON {schema}.job_tags (tag, uid);
CREATE INDEX job_tags_claimable ON {schema}.job_tags (tag, queue, priority, sort_key, uid) WHERE claimable;

CREATE TABLE {schema}.job_dependencies (
    dependent_uid bigint NOT NULL,
    position bigint NOT NULL,
    unsure boolean NOT NULL,
    depends_on text COLLATE "C" NOT NULL,
    policy {schema}.dependency_policy NOT NULL,
    state text NOT NULL CHECK (state IN ('waiting', 'satisfied', 'failed')),
    PRIMARY KEY (dependent_uid, depends_on)
);
COMMENT ON COLUMN {schema}.job_dependencies.unsure IS
    'The dependency could end unseen while this row was stored: the sweep checks it again';
CREATE INDEX job_dependencies_open ON {schema}.job_dependencies (depends_on) WHERE state <> 'satisfied';
CREATE INDEX job_dependencies_unsure ON {schema}.job_dependencies (dependent_uid) WHERE unsure;

CREATE TABLE {schema}.tombstones (
    uid bigint PRIMARY KEY,
    removed_at bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    type text NOT NULL,
    status {schema}.job_status NOT NULL,
    idempotency_key text COLLATE "C",
    request text COLLATE "C"
);
COMMENT ON TABLE {schema}.tombstones IS
    'Removed jobs: their idempotency keys and their last status answer for them for a while';
COMMENT ON COLUMN {schema}.tombstones.request IS
    'The digest of the request: the same key with another request is refused';
CREATE INDEX tombstones_by_id ON {schema}.tombstones (id);
CREATE INDEX tombstones_by_key ON {schema}.tombstones (queue, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX tombstones_by_age ON {schema}.tombstones (removed_at);

-- A follower reads in the order (xid, n) and stops before the oldest open transaction, so it never passes an event
-- whose transaction commits late. An event has the xid of its own transaction, or of the job's event before it if that
-- is later: so the events of one job are in order, too.
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
COMMENT ON TABLE {schema}.queues IS 'Queues whose settings differ from the defaults; all names are in queue_names';

-- The index is not unique: two transactions that bring the first job of a queue do not wait for each other.
CREATE TABLE {schema}.queue_names (name text COLLATE "C" NOT NULL);
CREATE INDEX queue_names_by_name ON {schema}.queue_names (name);
COMMENT ON TABLE {schema}.queue_names IS 'Every queue that ever had a job; a name may be stored more than once';

CREATE TABLE {schema}.queue_counts (
    jobs bigint NOT NULL,
    retries bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE {schema}.queue_counts IS
    'The exact count is the sum: each transaction adds rows and changes none, so that no one waits; a sweep merges rows';
-- Without this index the estimated cost of a claim under limits is so high that PostgreSQL before 18 compiles its plan,
-- which takes longer than the claim.
CREATE INDEX queue_counts_by_queue ON {schema}.queue_counts (queue, status);

CREATE TABLE {schema}.pruned_events (
    queue text COLLATE "C" PRIMARY KEY,
    deleted_xid xid8 NOT NULL,
    deleted_n bigint NOT NULL,
    seen_xid xid8 NOT NULL,
    seen_n bigint NOT NULL
);
COMMENT ON TABLE {schema}.pruned_events IS
    'Up to where the events of each queue are deleted, and up to where the log was read for more';

CREATE TABLE {schema}.concurrency_keys (
    running_count bigint NOT NULL,
    window_start bigint NOT NULL,
    window_count bigint NOT NULL,
    window_ends_at bigint,
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, key)
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}.concurrency_keys IS
    'The slots in use and the rate window of each key that has either; released_slots are still to be subtracted';
CREATE INDEX concurrency_keys_by_window_end ON {schema}.concurrency_keys (queue, window_ends_at)
    WHERE window_ends_at IS NOT NULL;

CREATE TABLE {schema}.released_slots (
    number bigint GENERATED ALWAYS AS IDENTITY,
    queue text COLLATE "C" NOT NULL,
    keys text[] COLLATE "C" NOT NULL,
    jobs bigint[] NOT NULL,
    PRIMARY KEY (queue, number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE {schema}.released_slots IS
    'Slots of keys that completed jobs released; the next claim takes them back, so that settling never waits for claims';

CREATE TABLE {schema}.schedules (
    id text COLLATE "C" PRIMARY KEY,
    paused boolean NOT NULL,
    next_run_at bigint,
    last_run_at bigint,
    run_count bigint NOT NULL DEFAULT 0,
    updated_at bigint,
    changed xid8 NOT NULL DEFAULT pg_current_xact_id(),
    last_job_id text COLLATE "C",
    body text NOT NULL
);
COMMENT ON COLUMN {schema}.schedules.body IS 'What a firing does not change, as JSON: thousands may fire at one moment';
CREATE INDEX schedules_due ON {schema}.schedules (next_run_at) WHERE next_run_at IS NOT NULL AND NOT paused;

CREATE TABLE {schema}.workers (
    id text COLLATE "C" PRIMARY KEY,
    seen_at bigint NOT NULL,
    body text NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE {schema}.staged_runs (
    run text COLLATE "C" PRIMARY KEY,
    touched_at bigint NOT NULL,
    offered bigint,
    inserted bigint
);
CREATE TABLE {schema}.staged_jobs (
    number bigint GENERATED BY DEFAULT AS IDENTITY,
    run text COLLATE "C" NOT NULL,
    part text COLLATE "C" NOT NULL,
    job text NOT NULL
);
COMMENT ON TABLE {schema}.staged_runs IS 'Bulk inserts: many processes stage jobs, and one transaction inserts them';
CREATE INDEX staged_jobs_by_run ON {schema}.staged_jobs (run);

CREATE TABLE {schema}.api_tokens (
    id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    hash text NOT NULL,
    scopes text NOT NULL,
    queues text,
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    last_used_at bigint
);

CREATE TABLE {schema}.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    log text NOT NULL,
    home text NOT NULL,
    lineage text NOT NULL,
    copy_state text,
    restored_at timestamptz
);
COMMENT ON COLUMN {schema}.meta.log IS 'The name of the event log, a part of every cursor and lease token';
COMMENT ON COLUMN {schema}.meta.home IS
    'The server, database, table and timeline that the log was written in: a copy elsewhere starts a new log';
COMMENT ON COLUMN {schema}.meta.lineage IS
    'The sequence of migrations that the numbers in the table migrations belong to';
COMMENT ON COLUMN {schema}.meta.copy_state IS 'The data migration into this schema, as JSON';
COMMENT ON COLUMN {schema}.meta.restored_at IS 'When a restored copy was detected; doctor reports it for a week';

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

INSERT INTO {schema}.meta (log, home, lineage) VALUES (left(gen_random_uuid()::text, 8), '', '2026-11');
