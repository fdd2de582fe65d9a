-- Fragments that several files include. In all files a parameter in the plural, such as :uids, is a JSON array.

-- fragment: job_columns
{common_job_columns}, relative

-- fragment: waiting
-- The condition of the indexes jobs_claimable and jobs_of_type: SQLite uses a partial index only for its exact terms.
jobs.status IN ({claim_sources}) AND jobs.blocked = 0

-- fragment: uncommon_status
-- The condition of the index jobs_by_status.
status NOT IN ({accept_target}, {claim_target}, {complete_target})

-- fragment: has_other_tags
-- The row of `job_tags` named `tagged` belongs to a job that has these tags, too.
NOT EXISTS (
    SELECT 1 FROM json_each(:other_tags) AS other
    WHERE NOT EXISTS (SELECT 1 FROM job_tags WHERE tag = other.value AND uid = tagged.uid)
)
