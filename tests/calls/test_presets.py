"""Presets and the variables that change them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.calls import presets
from perdure.errors import PolicyInvalid, SettingInvalid


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Each test reads the environment anew."""
    for preset in presets.PRESETS.values():
        preset.cache_clear()
    yield
    for preset in presets.PRESETS.values():
        preset.cache_clear()


@pytest.mark.parametrize(
    ("name", "retries", "bounds"),
    [
        ("openai", 3, [2, 4, 8, 16, 30, 30]),
        ("google_vision", 3, [1, 2, 4, 8, 15, 15]),
        ("storage_upload", 3, [1, 2, 4, 8, 10, 10]),
        ("storage_download", 3, [1, 2, 4, 8, 10, 10]),
    ],
)
def test_the_defaults(name: str, retries: int, bounds: list[float]) -> None:
    policy = presets.PRESETS[name]()

    assert policy.retries == retries
    assert [policy.backoff.delay_s(n, lambda: 1.0) for n in range(6)] == bounds


def test_an_attempt_of_openai_may_take_ten_minutes() -> None:
    assert presets.openai().attempt_s == 600
    assert presets.storage_upload().attempt_s is None


@pytest.mark.parametrize(
    ("prefix", "name"),
    [("OPENAI", "openai"), ("GOOGLE_VISION", "google_vision"), ("STORAGE", "storage_upload")],
)
def test_the_environment_changes_them(monkeypatch: pytest.MonkeyPatch, prefix: str, name: str) -> None:
    monkeypatch.setenv(f"{prefix}_RETRY_MAX", "0")
    monkeypatch.setenv(f"{prefix}_RETRY_BASE_MS", "500")
    monkeypatch.setenv(f"{prefix}_RETRY_MAX_BACKOFF_MS", "600")

    policy = presets.PRESETS[name]()

    assert policy.retries == 0
    assert [policy.backoff.delay_s(n, lambda: 1.0) for n in range(3)] == [0.5, 0.6, 0.6]
    assert policy.hint_cap_s == 0.6


@pytest.mark.parametrize("wrong", ["-1", "three", "1.5", "٣"])
def test_what_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("OPENAI_RETRY_MAX", wrong)

    with pytest.raises(SettingInvalid, match="OPENAI_RETRY_MAX"):
        presets.openai()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("RETRY_MAX_BACKOFF_MS", "0"), ("RETRY_BASE_MS", "9" * 400), ("RETRY_MAX", "1.5"), ("RETRY_MAX", "-1")],
)
def test_a_number_out_of_its_range_is_refused_by_the_name_of_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"OPENAI_{variable}", value)
    with pytest.raises(
        PolicyInvalid, match=f"OPENAI_{variable} is .* a whole number from [01] to 999,999,999"
    ) as raised:
        presets.openai()
    assert isinstance(raised.value, ValueError)


def test_upload_and_download_are_one_dependency() -> None:
    up, down = presets.storage_upload(), presets.storage_download()

    assert up.dependency is down.dependency
    assert (up.operation, down.operation) == ("storage.upload", "storage.download")
