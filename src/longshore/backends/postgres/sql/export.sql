-- Statements that read or copy whole tables: exports to Spark, and data migrations out of and into this schema.
-- A data migration copies blocks of uids (events: of n), compares digests of both sides and copies again what differs.

-- name: event_after(after_xid, after_n, last_xid, last_n, skip)
SELECT xid::text::bigint, n FROM {schema}.job_events
WHERE (xid, n) > (:after_xid::xid8, :after_n) AND (xid, n) <= (:last_xid::xid8, :last_n)
ORDER BY job_events.xid, job_events.n LIMIT 1 OFFSET :skip

-- name: count_events(after_xid, after_n, last_xid, last_n)
SELECT count(*) FROM {schema}.job_events
WHERE (xid, n) > (:after_xid::xid8, :after_n) AND (xid, n) <= (:last_xid::xid8, :last_n)

-- name: state_to_copy()
-- The name of the log, the next uid and n, and the snapshot that is copied.
SELECT log, uids.last_value + uids.is_called::integer, events.last_value + events.is_called::integer,
    pg_current_snapshot()::text
FROM {schema}.meta, {schema}.job_uids AS uids, {schema}.job_events_n_seq AS events

-- name: events_outside(snapshot)
SELECT count(*) FROM {schema}.job_events
WHERE xid >= pg_snapshot_xmin(:snapshot::pg_snapshot) AND NOT pg_visible_in_snapshot(xid, :snapshot::pg_snapshot)

-- name: undecided_edges()
SELECT count(*) FROM {schema}.job_dependencies WHERE unsure

-- name: workers_heard_since(after)
SELECT id, seen_at FROM {schema}.workers
WHERE seen_at > :after AND body::json ->> 'state' IS DISTINCT FROM 'stopped' ORDER BY id

-- name: leases_in_force(now)
SELECT lease_owner, count(*), max(coalesce(lease_expires_at, 9223372036854775807)) FROM {schema}.jobs
WHERE lease_token IS NOT NULL AND (lease_expires_at IS NULL OR lease_expires_at > :now) GROUP BY lease_owner

-- fragment: copied_xid
-- The lowest xid there can be: copied events come before all that are written here.
'3'::xid8

-- name: span_of_job_events()
SELECT min(n), max(n) FROM {schema}.job_events WHERE xid = {copied_xid}

-- name: blocks_of_events(size)
-- The range of xids of each block of events, by which the primary key finds its rows.
SELECT n / :size, min(n), max(n), min(xid::text::bigint), max(xid::text::bigint) FROM {schema}.job_events GROUP BY 1

-- fragment: in_block_of_events
n >= :first AND n < :end AND xid >= :first_xid::text::xid8 AND xid <= :last_xid::text::xid8

-- fragment: in_block_of_copied_events
xid = {copied_xid} AND n >= :first AND n < :end

-- fragment: status_number
-- A number for each status that both dialects can compute: length and first letter tell all statuses apart.
(length(status) * 128 + ascii(status))

-- name: digest_of_job_events(first, end)
SELECT count(*), sum((n % 997 + 1) * job_seq)::bigint, sum((n % 997 + 1) * (occurred_at % 1000003))::bigint
FROM {schema}.job_events WHERE {in_block_of_copied_events}

-- name: digest_of_block_of_events(first, end, first_xid, last_xid)
SELECT count(*), sum((n % 997 + 1) * job_seq)::bigint, sum((n % 997 + 1) * (occurred_at % 1000003))::bigint
FROM {schema}.job_events WHERE {in_block_of_events}

-- name: rows_of_job_events(first, end, first_xid, last_xid)
SELECT n, {event_columns} FROM {schema}.job_events WHERE {in_block_of_events} ORDER BY n

-- name: any_rows()
SELECT EXISTS (SELECT 1 FROM {schema}.jobs) OR EXISTS (SELECT 1 FROM {schema}.tombstones)
    OR EXISTS (SELECT 1 FROM {schema}.job_events) OR EXISTS (SELECT 1 FROM {schema}.queues)
    OR EXISTS (SELECT 1 FROM {schema}.schedules) OR EXISTS (SELECT 1 FROM {schema}.api_tokens)

-- name: copy_state()
-- The lock makes two copies into one schema take turns: the one that began last continues, and the other fails.
SELECT copy_state FROM {schema}.meta FOR UPDATE

-- name: put_copy_state(copy_state)
UPDATE {schema}.meta SET copy_state = :copy_state

-- name: allow_copy()
-- Lets this transaction pass the trigger of lock_schema, without a time limit.
SELECT set_config('longshore.copying', 'on', true), set_config('statement_timeout', '0', true)

-- name: lock_schema()
-- A process that opened the schema before the copy would claim jobs of an incomplete copy: its writes are refused.
CREATE OR REPLACE FUNCTION {schema}.refuse_while_moving() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('longshore.copying', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'longshore migrate-data into this schema was not finished; run it again'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER copy_guard BEFORE INSERT OR UPDATE OR DELETE ON {schema}.jobs
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_while_moving();
CREATE TRIGGER copy_guard BEFORE INSERT ON {schema}.job_events
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_while_moving();
CREATE TRIGGER copy_guard BEFORE INSERT OR UPDATE OR DELETE ON {schema}.queues
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_while_moving();
CREATE TRIGGER copy_guard BEFORE INSERT OR UPDATE OR DELETE ON {schema}.schedules
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_while_moving()

-- name: unlock_schema()
DROP FUNCTION {schema}.refuse_while_moving() CASCADE

-- name: fill_jobs()
COPY {schema}.jobs ({job_columns}) FROM STDIN

-- name: clear_job_tags(first, end)
DELETE FROM {schema}.job_tags WHERE {in_block}

-- name: fill_job_tags(first, end)
INSERT INTO {schema}.job_tags ({tag_columns})
SELECT carried.tag, uid, queue, priority, sort_key, {eligible}, status, retry_count
FROM {schema}.jobs CROSS JOIN LATERAL json_array_elements_text(nullif(tags, '')::json) AS carried (tag)
WHERE {in_block}

-- name: fill_job_dependencies()
COPY {schema}.job_dependencies ({edge_columns}, unsure) FROM STDIN

-- name: fill_job_logs()
COPY {schema}.job_logs ({log_columns}) FROM STDIN

-- name: fill_tombstones()
COPY {schema}.tombstones ({tombstone_columns}) FROM STDIN

-- name: clear_job_events(first, end)
DELETE FROM {schema}.job_events WHERE {in_block_of_copied_events}

-- name: fill_job_events()
COPY {schema}.job_events (xid, n, {event_columns}) FROM STDIN

-- name: analyze_tables()
-- Otherwise the planner takes the tables for empty until the next ANALYZE.
ANALYZE {schema}.jobs, {schema}.job_tags, {schema}.job_events, {schema}.job_dependencies, {schema}.job_logs

-- name: fill_queues()
COPY {schema}.queues ({queue_columns}) FROM STDIN

-- name: fill_concurrency_keys()
COPY {schema}.concurrency_keys ({key_columns}) FROM STDIN

-- name: fill_schedules()
COPY {schema}.schedules ({schedule_fields}) FROM STDIN

-- name: fill_api_tokens()
COPY {schema}.api_tokens ({token_columns}) FROM STDIN

-- name: set_sequences(next_uid, next_event)
SELECT
    setval($name${schema}.job_uids$name$, :next_uid::bigint, false),
    setval(pg_get_serial_sequence($name${schema}.job_events$name$, 'n'), :next_event::bigint, false)
