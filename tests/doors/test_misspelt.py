"""Variables that look like settings and are none: each is warned about once, with the setting that was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import settings
from tests.doors.command import perdure, refused


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PERDURE_STROE", "PERDURE_STORE"),
        ("PERDURE_CONCURENCY", "PERDURE_CONCURRENCY"),
        ("RETRY_JOB_INTERVAL_SECOND", "RETRY_JOB_INTERVAL_SECONDS"),
        ("RETRY_JOB_MAX_ATTEMPTS_CHUNK", "RETRY_JOB_MAX_ATTEMPTS_CHUNKS"),
        ("OPENAI_RETRY_MAXIMUM", "OPENAI_RETRY_MAX"),
        ("STORAGE_RETRY_BASE_SM", "STORAGE_RETRY_BASE_MS"),
        ("RABBITMQ_USER", "RABBITMQ_USERNAME"),
    ],
)
def test_the_setting_that_was_meant_is_named(name: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert (name, meant) in settings.misspelt()


@pytest.mark.parametrize(
    "name", ["AWS_RETRY_MODE", "RABBITMQ_DEFAULT_VHOST", "RETRY_COUNT", "PERDURE_TEST_SUITE"]
)
def test_variables_of_other_programs_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert name not in dict(settings.misspelt())


def test_every_setting_and_preset_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [*map(settings.variable, settings.Settings.model_fields), *settings.PRESETS]
    for name in known:
        monkeypatch.setenv(name, "1")
    assert not {name for name, _ in settings.misspelt()} & set(known)


def test_a_command_warns_once_and_goes_on(tmp_path: Path) -> None:
    perdure("migrate", cwd=tmp_path)
    ended = perdure("status", cwd=tmp_path, PERDURE_CONCURENCY="4", PERDURE_XYZZY="1")
    assert ended.returncode == 0
    assert ended.stderr.count("PERDURE_CONCURENCY is not a setting; did you mean PERDURE_CONCURRENCY?") == 1
    assert ended.stderr.count("PERDURE_XYZZY is not a setting; docs/reference.md lists the settings") == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PERDURE_EMBEDDER", "openai"),
        ("PERDURE_LOG_LEVEL", "loud"),
        ("PERDURE_LOG_FORMAT", "xml"),
        ("PERDURE_VECTORS", "faiss"),
        ("RETRY_JOB_INTERVAL_SECONDS", "soon"),
    ],
)
def test_a_wrong_value_is_refused_at_the_start(name: str, value: str, tmp_path: Path) -> None:
    wrong: Any = {name: value}
    for command in (("status",), ("add", "--text", "a"), ("serve", "--port", "0"), ("sweep", "--once")):
        said = refused(2, "setting_invalid", *command, cwd=tmp_path, **wrong)
        assert f"{name} is {value!r}" in said


def test_openai_needs_a_key(tmp_path: Path) -> None:
    command = ("add", "--text", "a", "--work")
    said = refused(
        2, "setting_invalid", *command, cwd=tmp_path, PERDURE_EMBEDDER=settings.OPENAI, OPENAI_API_KEY=""
    )
    assert "which needs a key; set PERDURE_EMBED_KEY or OPENAI_API_KEY" in said
