"""Every environment variable: type, default, one sentence. The prefix is PERDURE_, except where it is well known."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from perdure.errors import SettingInvalid, address_shown, hide, hide_password

#: How variables begin that are called as everybody calls them.
OTHERS = ("METRICS_BACKEND", "PUSHGATEWAY_", "RABBITMQ_", "RETRY_JOB_")


#: Settings that are secrets, and those that are addresses, which may have a password in them.
SECRETS = ("embed_key", "summary_key", "vision_key", "rabbitmq_password", "secret_key")
SECRETS_OF_OTHERS = ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
EMBEDDERS = ("auto", "minilm", "wordllama", "hashing")
OPENAI = "https://api.openai.com/v1"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
#: Variables that the presets of `perdure.calls` read.
PRESETS = tuple(
    f"{service}_RETRY_{number}"
    for service in ("OPENAI", "GOOGLE_VISION", "STORAGE")
    for number in ("MAX", "BASE_MS", "MAX_BACKOFF_MS")
)
#: Numbers of one dependency, by its name (`core.knobs`).
KNOBS = (
    "TOKENS", "EARNED", "FLOOR_PER_S", "PATIENCE_S", "PATIENCE_OUTSIDE_S", "SLOT_S", "FAILURES", "FAILING_SHARE",
    "FAILING_LEAST", "FAILING_WINDOW_S", "PROBE_S", "PROBE_MAX_S",
)  # fmt: skip
DEPENDENCY = re.compile(rf"PERDURE_DEPENDENCY_[A-Z0-9_]+_({'|'.join(KNOBS)})")
#: Beginnings that are ours alone: each such variable is a setting or a mistake. Those after them are not for people.
OURS = ("PERDURE_", "RETRY_JOB_")
INTERNAL = ("PERDURE_TEST_", "PERDURE_DEMO_", "PERDURE_BENCH_", "PERDURE_MUTANT_", "PERDURE_CHILD")
ALIKE, MUCH_ALIKE = 0.6, 0.84  # of all characters: enough for a hint, enough to say that ours was meant
ADDRESSES = ("store", "direct_url", "blobs", "embedder", "summary_url", "vision_url", "pushgateway_url")
#: In a process of an isolated stage, in the place of the store's address.
WITHHELD = "sqlite:////dev/null/withheld"
WITHHELD_SERVER = "postgresql://withheld.invalid/withheld"


def absolute_store(url: str) -> str:
    """The address of a store; a relative file is made absolute, so that it stays the same file wherever code goes."""
    path = url.removeprefix("sqlite:///")
    if path == url or path in ("", "/") or path.startswith(":memory:"):
        return url
    return f"sqlite:///{_absolute(path)}"


def absolute_place(place: str) -> str:
    """A directory, made absolute likewise; an address (`s3://…`, `file:///…`) as it is."""
    return place if "://" in place or not place else _absolute(place)


def service_address(address: str | None) -> str | None:
    """The address of a service. Raises: ValueError unless it is http:// or https:// and names a host."""
    if address and not (address.startswith(("http://", "https://")) and urlsplit(address).hostname):
        raise ValueError("must be a URL such as https://host/v1")
    return address


def embedder_named(kind: str) -> str:
    """The name of an embedder or the address of a service. Raises: ValueError."""
    if kind not in EMBEDDERS:
        try:
            service_address(kind or "-")
        except ValueError:
            words = f"must be {', '.join(EMBEDDERS)} or a URL such as https://host/v1"
            raise ValueError(f"{words}; OpenAI's is {OPENAI}") from None
    return kind


def level_named(level: str) -> str:
    """The name of a log level, in capitals. Raises: ValueError."""
    name = level.strip().upper()
    if name not in LEVELS:
        raise ValueError(f"must be one of {', '.join(LEVELS)}")
    return name


def _absolute(path: str) -> str:
    try:
        return str(Path(path).absolute())
    except FileNotFoundError:  # the directory that we are in was removed; only what uses the path fails
        return path


class Settings(BaseSettings):
    """What can be set from outside; arguments given in code or on the command line win. SettingInvalid."""

    model_config = SettingsConfigDict(env_prefix="PERDURE_", extra="ignore", populate_by_name=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            wrong = (
                _wrong(str(e["loc"][0]), e["input"], e["msg"].removeprefix("Value error, "))
                for e in error.errors()
            )
            raise SettingInvalid("; ".join(wrong)) from None
        for value in (*(getattr(self, name) for name in SECRETS), *map(os.environ.get, SECRETS_OF_OTHERS)):
            hide(value)
        for key in (self.secret_key or "").split(","):
            hide(key)
        for name in ADDRESSES:
            hide_password(getattr(self, name))
        warn_misspelt()

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            if name not in SECRETS:
                yield name, address_shown(value) if name in ADDRESSES and value else value

    store: Annotated[str, AfterValidator(absolute_store)] = Field(
        default="sqlite:///perdure.db", validate_default=True, description="Address of the store."
    )
    operator: str | None = Field(
        default=None,
        max_length=200,
        description="Who acts, in the trail of acts; by default the user's name.",
    )
    direct_url: str | None = Field(
        default=None,
        description="Unpooled address of PostgreSQL, for locks and wake-ups, where `store` is a pooler's.",
    )
    blobs: Annotated[str, AfterValidator(absolute_place)] | None = Field(
        default=None,
        description="Where large content lives: s3://bucket/prefix or a directory; by default beside the store.",
    )
    file_mode: Literal["0600", "0660"] = Field(
        default="0600",
        description="Mode of the files of a SQLite store, its blobs and archives; 0660: the group may use them.",
    )
    concurrency: int = Field(
        default=3, ge=1, le=2000, description="How many documents a worker runs at a time."
    )
    large_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=0,
        description="From which size on a document is large and waits in a lane of its own; 0: none is.",
    )
    large_slots: int | None = Field(
        default=None,
        ge=0,
        le=2000,
        description="Slots beyond the concurrency for small documents beside large ones; by default half, at least 1.",
    )
    cells_memory_mb: int | None = Field(
        default=None,
        ge=1,
        description="What the cells of a worker may take of memory together, by their limits; by default all there is.",
    )
    grace_s: float = Field(
        default=10.0, ge=0, description="How long a stopping worker lets running stages finish."
    )
    loop_stall_s: float = Field(
        default=60.0,
        ge=0,
        description="How long a worker's event loop may stand still; then the worker is replaced. 0: for any time.",
    )
    stage_timeout_s: float = Field(
        default=1_800.0,
        ge=0,
        description="How long a run of a stage may take that has neither timeout nor stall. 0: any time.",
    )
    stage_stall_s: float = Field(
        default=1_800.0,
        ge=0,
        description="How long such a stage may show no progress. 0: any time.",
    )
    suspect_stall_s: float = Field(
        default=21_600.0,
        gt=0,
        description="How long a suspect may show no progress in a stage that has no limit at all.",
    )
    poll_s: float = Field(
        default=1.0, gt=0, description="How often an idle worker looks for work when nothing wakes it."
    )
    document_bytes_max: int = Field(
        default=512 * 1024 * 1024, ge=1, description="The largest document that is taken in."
    )
    retention_age_s: int = Field(
        default=3600, ge=0, description="How long queue rows of finished jobs are kept."
    )
    retention_count: int = Field(
        default=1000, ge=0, description="How many queue rows of finished jobs a queue keeps at most."
    )
    dead_age_s: int | None = Field(
        default=None,
        ge=0,
        description="How long dead documents are kept; then they are archived and deleted.",
    )
    dead_count: int | None = Field(
        default=None,
        ge=0,
        description="How many dead documents a queue keeps; older ones are archived and deleted.",
    )
    done_age_s: int | None = Field(
        default=None,
        ge=0,
        description="How long done and cancelled documents are kept; then they are deleted.",
    )
    archive: Annotated[str, AfterValidator(absolute_place)] | None = Field(
        default=None, description="The directory that dead documents are exported to before they are deleted."
    )
    retry_metrics_age_s: int = Field(
        default=30 * 86_400, ge=0, description="How long the records behind the KPIs of calls are kept."
    )
    contact: str | None = Field(
        default=None,
        max_length=200,
        pattern=r"^[\x21-\x27\x2a-\x5b\x5d-\x7e]+$",
        description="A web page or mail address that hosts can turn to; sent with every fetch of a URL.",
    )
    allow_loopback: bool = Field(
        default=False, description="Whether URLs may lead to this very machine; for trials and tests."
    )
    embedder: Annotated[str, AfterValidator(embedder_named)] = Field(
        default="auto",
        description="What makes vectors: minilm, wordllama, hashing, the URL of an OpenAI-compatible service, or auto.",
    )
    embed_model: str = Field(
        default="text-embedding-3-small", description="The model that the service is asked for."
    )
    embed_dimensions: int | None = Field(
        default=None, ge=1, le=16_384, description="How many numbers a vector of the service has."
    )
    embed_key: str | None = Field(
        default=None, description="The key for that service; otherwise OPENAI_API_KEY."
    )
    vectors: Literal["auto", "numpy", "pgvector"] = Field(
        default="auto",
        description="Who searches vectors: this process (numpy), PostgreSQL (pgvector), or PostgreSQL where it can.",
    )
    summary_url: Annotated[str | None, AfterValidator(service_address)] = Field(
        default=None,
        description="The OpenAI-compatible service that summarises threads; without it summaries are extractive.",
    )
    summary_model: str = Field(default="gpt-4o-mini", description="The model that this service is asked for.")
    summary_key: str | None = Field(
        default=None, description="The key for that service; otherwise OPENAI_API_KEY."
    )
    search_memory_mb: int = Field(
        default=512, ge=1, description="What vectors may take of memory in a process that searches."
    )
    image_pixels_max: int = Field(
        default=100_000_000, ge=1, description="The most pixels that an image may have to be decoded."
    )
    image_concurrency: int = Field(
        default=5,
        ge=1,
        le=500,
        description="How many jobs of images a worker runs at a time, besides documents.",
    )
    image_private: bool = Field(
        default=True,
        description="Whether places, owners, serial numbers and comments in images are left out.",
    )
    vision_url: Annotated[str | None, AfterValidator(service_address)] = Field(
        default=None,
        description="An OpenAI-compatible service that describes images (https://…/v1); none: they stay degraded.",
    )
    vision_model: str = Field(default="gpt-4o-mini", description="The model that it is asked for.")
    vision_key: str | None = Field(
        default=None, description="The key for that service; otherwise OPENAI_API_KEY."
    )
    rabbitmq_host: str | None = Field(
        default=None,
        validation_alias="RABBITMQ_HOST",
        description="The broker through which stages elsewhere are told and answer; none: their events wait.",
    )
    rabbitmq_port: int = Field(
        default=5672, ge=1, le=65_535, validation_alias="RABBITMQ_PORT", description="Its port."
    )
    rabbitmq_username: str = Field(
        default="guest", validation_alias="RABBITMQ_USERNAME", description="Who we are there."
    )
    rabbitmq_password: str = Field(
        default="guest", validation_alias="RABBITMQ_PASSWORD", repr=False, description="Our password there."
    )
    rabbitmq_vhost: str = Field(
        default="/", validation_alias="RABBITMQ_VHOST", description="The part of the broker that is ours."
    )
    retry_job_interval_seconds: float = Field(
        default=900,
        ge=1,
        validation_alias="RETRY_JOB_INTERVAL_SECONDS",
        description="How often documents that do not get on are looked for.",
    )
    retry_job_stuck_threshold_hours: float = Field(
        default=24,
        gt=0,
        le=8760,
        validation_alias="RETRY_JOB_STUCK_THRESHOLD_HOURS",
        description="How long past its due time a document that does not get on is stuck.",
    )
    retry_job_base_delay_seconds: float = Field(
        default=300,
        ge=0,
        validation_alias="RETRY_JOB_BASE_DELAY_SECONDS",
        description="How long archives, messages and threads wait for their second attempt.",
    )
    retry_job_max_delay_seconds: float = Field(
        default=3600,
        gt=0,
        validation_alias="RETRY_JOB_MAX_DELAY_SECONDS",
        description="The longest that they wait for one.",
    )
    retry_job_max_attempts_archives: int = Field(
        default=3,
        ge=1,
        validation_alias="RETRY_JOB_MAX_ATTEMPTS_ARCHIVES",
        description="Attempts of an archive of mail.",
    )
    retry_job_max_attempts_messages: int = Field(
        default=3,
        ge=1,
        validation_alias="RETRY_JOB_MAX_ATTEMPTS_MESSAGES",
        description="Attempts of a message.",
    )
    retry_job_max_attempts_chunks: int = Field(
        default=5,
        ge=1,
        validation_alias="RETRY_JOB_MAX_ATTEMPTS_CHUNKS",
        description="Attempts to embed and index the chunks of a message or a thread.",
    )
    retry_job_max_attempts_threads: int = Field(
        default=5,
        ge=1,
        validation_alias="RETRY_JOB_MAX_ATTEMPTS_THREADS",
        description="Attempts of a thread.",
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Where a worker serves /metrics, or at the next free port of 16; 0: a server shows its counters.",
    )
    metrics_host: str = Field(default="127.0.0.1", description="The address that it is served at.")
    runbook_url: str = Field(
        default="docs/runbooks/",
        max_length=1_000,
        pattern=r"^[^\s'\"]+$",
        description="Where alert rules link to runbooks; {name} in it is the runbook's, else NAME.md is put behind it.",
    )
    metrics_open: bool = Field(
        default=False,
        description="Whether the HTTP server shows /metrics to whoever reaches it, without a key.",
    )
    metrics_backend: Literal["none", "prometheus_pushgateway"] = Field(
        default="none",
        validation_alias="METRICS_BACKEND",
        description="Where `perdure sweep`, which may be gone before anybody asks it, and workers bring metrics.",
    )
    pushgateway_url: str | None = Field(
        default=None,
        pattern=r"^https?://",
        validation_alias="PUSHGATEWAY_URL",
        description="The Pushgateway that is meant.",
    )
    secret_key: str | None = Field(
        default=None,
        repr=False,
        description="Keys that secrets of webhooks are derived from, separated by commas; the first makes new ones.",
    )
    api_rate_per_s: float = Field(
        default=500, gt=0, description="How often an organisation may ask one HTTP server in a second."
    )
    api_json_bytes_max: int = Field(
        default=32 * 1024 * 1024, ge=1024, description="The largest JSON body that the HTTP server reads."
    )
    api_json_values_max: int = Field(
        default=500_000, ge=100, description="How many keys and values a JSON body may have."
    )
    api_streams_max: int = Field(
        default=1000, ge=1, description="How many streams of events an HTTP server has open at a time."
    )
    api_streams_per_org: int = Field(
        default=200, ge=1, description="How many of them one organisation may have."
    )
    api_downloads_max: int = Field(
        default=100,
        ge=1,
        description="How many downloads of documents and outputs an HTTP server sends at a time.",
    )
    api_downloads_per_org: int = Field(
        default=8, ge=1, description="How many of them one organisation may have."
    )
    api_connections_max: int = Field(
        default=4000,
        ge=2,
        description="How many connections an HTTP server holds, as far as its file descriptors allow.",
    )
    api_connections_per_address: int | None = Field(
        default=None, ge=1, description="How many of them one address may have; by default half of them."
    )
    api_head_s: float = Field(
        default=15, gt=0, description="How long the head of a request may take to come."
    )
    api_idle_s: float = Field(
        default=5, gt=0, description="How long a connection is kept open for the next request."
    )
    upload_pause_s: float = Field(
        default=30, gt=0, description="How long an upload may stand still before it is given up."
    )
    upload_bytes_per_s: int = Field(
        default=500, ge=0, description="The least pace of an upload, beyond the pause that it may make."
    )
    upload_total_s: float = Field(default=3600, gt=0, description="How long an upload may take as a whole.")
    download_pause_s: float = Field(
        default=30,
        gt=0,
        description="How long a client may take for 64 KiB of a download before it is cut off.",
    )
    traces: bool | None = Field(
        default=None,
        description="Whether a worker sends spans by OTLP; by default where OTEL_EXPORTER_OTLP_ENDPOINT is set.",
    )
    sandbox: Literal["auto", "off", "require"] = Field(
        default="auto",
        description="Whether readers of files run without network and rights; require: no worker starts without.",
    )
    cell_env: str | None = Field(
        default=None,
        description="Variables that cells get in addition: names or patterns such as AWS_*, separated by commas.",
    )
    log_level: Annotated[str, AfterValidator(level_named)] = Field(
        default="INFO", description="The least severe log line that is written."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto",
        description="How log lines are written: json, text for people, or auto: text on a terminal.",
    )

    @property
    def pushes(self) -> bool:
        """Whether metrics are brought to a Pushgateway."""
        return self.metrics_backend == "prometheus_pushgateway"

    def gateway(self) -> str:
        """The Pushgateway that metrics are brought to. Raises: SettingInvalid if none is set."""
        if self.pushgateway_url is None:
            raise SettingInvalid(f"METRICS_BACKEND is {self.metrics_backend!r}, which needs PUSHGATEWAY_URL")
        return self.pushgateway_url


def _wrong(name: str, value: object, why: str) -> str:
    """Say what is wrong with a setting, without its password."""
    secret = name.lower() in SECRETS or name in map(variable, SECRETS)
    shown = "not shown" if secret else repr(address_shown(value) if isinstance(value, str) else value)
    return f"{variable(name)} is {shown}: {why}"


def misspelt() -> list[tuple[str, str]]:
    """Variables of the environment that look like settings and are none, each with the setting that was meant, if
    any comes near."""
    knobs = [name.upper() for name in os.environ if DEPENDENCY.fullmatch(name.upper())]
    known = [*map(variable, Settings.model_fields), *PRESETS, *knobs]
    found = []
    for name in sorted({name.upper() for name in os.environ} - set(known)):
        ours = name.startswith(OURS) and not name.startswith(INTERNAL)
        if not ours and not name.startswith(OTHERS) and "_RETRY_" not in name:
            continue
        prefix = next((prefix for prefix in OURS if name.startswith(prefix)), "")
        rest = {one.removeprefix(prefix): one for one in known if one.startswith(prefix)}
        near = get_close_matches(name.removeprefix(prefix), rest, n=1, cutoff=ALIKE if ours else MUCH_ALIKE)
        if ours or near:
            found.append((name, rest[near[0]] if near else ""))
    return found


_warned: set[str] = set()


def warn_misspelt() -> None:
    """Warn about each of them once in this process."""
    for name, meant in misspelt():
        if name not in _warned:
            _warned.add(name)
            hint = f"did you mean {meant}?" if meant else "docs/reference.md lists the settings"
            logging.getLogger("perdure.settings").warning("%s is not a setting; %s", name, hint)


def forgo_warnings() -> None:
    """Warn about nothing: the process that started this one did."""
    _warned.update(name for name, _ in misspelt())


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return name.upper() if name.upper().startswith(OTHERS) else f"PERDURE_{name.upper()}"


_GIVEN: ContextVar[Settings | None] = ContextVar("perdure_settings", default=None)


def given() -> Settings | None:
    """The settings that the app at work was made with; None if it follows the environment."""
    return _GIVEN.get()


@contextmanager
def using(settings: Settings | None) -> Iterator[None]:
    """Have these for current in what is done and begun within."""
    token = _GIVEN.set(settings)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def current() -> Settings:
    """Those that the app at work was made with, or else what the environment says now."""
    return _GIVEN.get() or _environment()


def _environment() -> Settings:
    # reading it takes milliseconds, so that is done when it has changed
    return _read(
        tuple(
            (name, value)
            for name, value in os.environ.items()
            if name.upper().startswith(("PERDURE_", *OTHERS))
        )
    )


@lru_cache(maxsize=4)
def _read(_environment: tuple[tuple[str, str], ...]) -> Settings:
    return Settings()
