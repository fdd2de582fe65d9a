"""The data pipeline on Spark: sessions, jobs and events as DataFrames, the lake, the audit and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longshore.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from longshore.spark.audit.audit import AuditReport as AuditReport
    from longshore.spark.audit.audit import findings as findings
    from longshore.spark.audit.audit import from_store as from_store
    from longshore.spark.audit.audit import judged_lives as judged_lives
    from longshore.spark.audit.audit import run_audit as run_audit
    from longshore.spark.lake.lake import Lake as Lake
    from longshore.spark.pipeline import run_pipeline as run_pipeline
    from longshore.spark.report.page import write_report as write_report
    from longshore.spark.sink import enqueue_report as enqueue_report
    from longshore.spark.spark_session import pipeline_session as pipeline_session
    from longshore.spark.spark_session import session as session

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "longshore.spark.audit.audit": ["AuditReport", "findings", "from_store", "judged_lives", "run_audit"],
        "longshore.spark.lake.lake": ["Lake"],
        "longshore.spark.pipeline": ["run_pipeline"],
        "longshore.spark.report.page": ["write_report"],
        "longshore.spark.sink": ["enqueue_report"],
        "longshore.spark.spark_session": ["pipeline_session", "session"],
    },
)
