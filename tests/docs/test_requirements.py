"""docs/requirements.md: every requirement has its rows, and every test that a row names is collected by a suite."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from perdure import Pipeline
from perdure.cli.serving import serve
from perdure.settings import Settings, variable
from perdure.watch.metrics import BY_NAME
from tests.suites import COMMANDS
from tests.watch.test_rules import alerts

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "requirements.md").read_text()
ROWS: list[tuple[str, str, str]] = re.findall(r"^\| (R\d+) \| (.+?) \| (.+) \|$", TABLE, re.M)
NAMED = sorted({name for _, _, proof in ROWS for name in re.findall(r"`(tests/[^`]+)`", proof)})
LAST = 41
#: Clauses that nothing proves yet. A new one needs a reason in the table and in the report of who adds it.
GAPS = {("R40", "a web dashboard with the same verbs")}


def test_every_requirement_has_rows_and_each_row_a_proof_or_a_reason() -> None:
    assert {row[0] for row in ROWS} == {f"R{n}" for n in range(1, LAST + 1)}
    assert len(ROWS) == len(re.findall(r"^\| R", TABLE, re.M)), "a row of another form"
    without = {(number, clause) for number, clause, proof in ROWS if not re.search("`tests/", proof)}
    assert without == GAPS
    assert all(proof.startswith(("`tests/", "gap: ")) for _, _, proof in ROWS)


@cache
def _functions(path: Path) -> dict[str, list[str]]:
    """The test functions of a file and how each is marked, as far as the source tells."""
    return {
        node.name: [ast.unparse(mark) for mark in node.decorator_list]
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("name", NAMED)
def test_every_named_test_exists_and_is_not_skipped(name: str) -> None:
    path, _, function = name.partition("::")
    marks = _functions(ROOT / path)
    assert function in marks, f"{path} has no {function}"
    assert not [mark for mark in marks[function] if "skip" in mark or "xfail" in mark]


@pytest.mark.full
def test_every_named_test_is_collected_by_a_suite() -> None:
    collected: set[str] = set()
    for suite in COMMANDS:
        files = sorted({name.partition("::")[0] for name in NAMED})
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", "--suite", suite, *files],
            cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert ended.returncode in (0, 5), ended.stdout[-2000:] + ended.stderr[-2000:]
        collected |= {line.partition("[")[0] for line in ended.stdout.splitlines() if "::" in line}
    assert not set(NAMED) - collected


def test_the_default_port_is_3001() -> None:
    assert inspect.signature(serve).parameters["port"].default == 3001


#: Names that users of the old systems know, letter by letter.
METRIC_NAMES = (
    "retry_job_documents_requeued_total retry_job_documents_skipped_backoff_total "
    "retry_job_documents_max_retries_exceeded_total retry_job_runs_total retry_job_errors_total "
    "retry_job_stuck_documents retry_job_failed_documents retry_job_duration_seconds perdure_stuck_oldest_seconds "
    "perdure_heartbeat_age_seconds perdure_audit_difference"
).split()
VARIABLES = {
    "RETRY_JOB_INTERVAL_SECONDS": 900, "RETRY_JOB_BASE_DELAY_SECONDS": 300, "RETRY_JOB_MAX_DELAY_SECONDS": 3600,
    "RETRY_JOB_STUCK_THRESHOLD_HOURS": 24, "RETRY_JOB_MAX_ATTEMPTS_ARCHIVES": 3, "RETRY_JOB_MAX_ATTEMPTS_MESSAGES": 3,
    "RETRY_JOB_MAX_ATTEMPTS_CHUNKS": 5, "RETRY_JOB_MAX_ATTEMPTS_THREADS": 5, "METRICS_BACKEND": "none",
    "PUSHGATEWAY_URL": None, "RABBITMQ_HOST": None, "RABBITMQ_PORT": 5672, "RABBITMQ_USERNAME": "guest",
    "RABBITMQ_PASSWORD": "guest",
}  # fmt: skip
ALERTS = {
    "StuckDocumentsWarning": ("max by (collection) (retry_job_stuck_documents) > 50", "1h", "warning"),
    "MaxRetriesExceededCritical": (
        "sum by (collection) (increase(retry_job_documents_max_retries_exceeded_total[1h])) > 10", "15m", "critical",
    ),
    "RetryJobFailed": (
        'sum(increase(retry_job_runs_total{status=~"failure|partial"}[30m])) > 0', "5m", "warning",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_every_metric_that_the_requirements_name_exists(name: str) -> None:
    assert name in BY_NAME


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_every_variable_that_the_requirements_name_has_its_default(name: str) -> None:
    (field,) = (field for key, field in Settings.model_fields.items() if variable(key) == name)
    assert field.default == VARIABLES[name]


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_the_alerts_are_as_the_requirements_spell_them(name: str) -> None:
    rule = alerts()[name]
    assert (rule["expr"], rule["for"], rule["labels"]["severity"]) == ALERTS[name]


def test_the_defaults_of_attempts_leases_and_slots() -> None:
    made, settings = Pipeline("any"), Settings()
    assert (made.attempts, made.backoff_s, made.lease_s) == (3, 2.0, 30)
    assert (settings.concurrency, settings.image_concurrency) == (3, 5)
    assert (settings.retention_age_s, settings.retention_count) == (3600, 1000)
    assert settings.stage_timeout_s == 1800
