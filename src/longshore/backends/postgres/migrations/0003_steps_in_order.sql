-- The jobs of one parent in their order: with the parent alone in the index, the planner would rather walk back through
-- all jobs there are until it meets one of them, and a flow that is over has none to meet.
DROP INDEX {schema}.jobs_by_parent;
CREATE INDEX jobs_by_parent ON {schema}.jobs (parent_id, uid) WHERE parent_id IS NOT NULL;
