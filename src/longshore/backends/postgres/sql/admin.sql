-- Statements of operators: settings of queues, forced settlements, tokens, workers and the doctor.

-- name: put_queue(name, paused, running_limit, per_key, rate_count, rate_per, key_rate_count, key_rate_per,
--     window_start, window_count, keep_finished, keep_dead, keep_events)
INSERT INTO {schema}.queues ({queue_columns}) VALUES ({parameters})
ON CONFLICT (name) DO UPDATE SET
    paused = excluded.paused, running_limit = excluded.running_limit, per_key = excluded.per_key,
    rate_count = excluded.rate_count, rate_per = excluded.rate_per, key_rate_count = excluded.key_rate_count,
    key_rate_per = excluded.key_rate_per, window_start = excluded.window_start, window_count = excluded.window_count,
    keep_finished = excluded.keep_finished, keep_dead = excluded.keep_dead, keep_events = excluded.keep_events,
    changed = pg_current_xact_id()

-- name: all_blocked(queue)
SELECT uid FROM {schema}.jobs WHERE queue = :queue AND blocked ORDER BY uid FOR UPDATE

-- name: running_by_key(queue)
SELECT concurrency_key, count(*) FROM {schema}.jobs
WHERE lease_token IS NOT NULL AND queue = :queue AND concurrency_key IS NOT NULL GROUP BY concurrency_key

-- name: jobs_held(queue)
SELECT {job_columns} FROM {schema}.jobs
WHERE lease_token IS NOT NULL AND (:queue::text IS NULL OR queue = :queue) ORDER BY uid FOR UPDATE

-- name: jobs_held_by(owner)
SELECT {job_columns} FROM {schema}.jobs WHERE lease_owner = :owner AND lease_token IS NOT NULL ORDER BY uid FOR UPDATE

-- name: same_log(log, table_oid)
SELECT coalesce(pg_current_xact_id_if_assigned()::text::bigint, 0), log = :log AND tableoid::bigint = :table_oid
FROM {schema}.meta

-- name: durability()
SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') ORDER BY name

-- name: size_of_schema(schema_name)
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = :schema_name AND c.relkind = 'r'

-- name: dead_rows(schema_name)
SELECT relname::text, n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = :schema_name ORDER BY relname

-- name: restored_lately()
SELECT (extract(epoch FROM restored_at) * 1000000)::bigint FROM {schema}.meta
WHERE restored_at > clock_timestamp() - interval '7 days'

-- name: oldest_snapshot()
-- Dead rows stay while a session of this database or a prepared transaction may still see them.
SELECT (extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint, who
FROM (
    SELECT xact_start AS since,
        concat_ws(' ', 'session', pid::text, nullif(application_name, ''), nullif(usename, ''), state) AS who
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND backend_xmin IS NOT NULL AND xact_start IS NOT NULL
    UNION ALL
    SELECT prepared, 'the prepared transaction ' || gid FROM pg_prepared_xacts WHERE database = current_database()
) AS held
ORDER BY since LIMIT 1
