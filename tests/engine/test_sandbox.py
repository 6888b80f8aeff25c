"""A cell in a sandbox reads its own file and reaches nothing else; no cell has Perdure's secrets."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Document, Perdure, Pipeline
from perdure.engine import sandbox
from perdure.engine.cell_env import environment, passes, settings_for_cell
from perdure.engine.isolate import SandboxUnavailable
from perdure.engine.syscalls import MACHINES, filter_program
from perdure.errors import PipelineInvalid, SettingInvalid
from perdure.settings import WITHHELD, WITHHELD_SERVER, Settings, current
from perdure.testing import drain, trial
from tests.engine.confined import drawings, escapes, pages, plain, shelf

LARGE = 200_000  # not in its row but in a blob

confining = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() not in MACHINES, reason="no sandbox here"
)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Sockets that anybody on this machine can connect to."""
    with socket.create_server(("127.0.0.1", 0)) as net, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "socket"))
        local.listen()
        yield {"port": net.getsockname()[1], "unix": str(tmp_path / "socket")}


@confining
def test_nothing_outside_can_be_reached(tmp_path: Path, listening: dict[str, Any]) -> None:
    (tmp_path / "outside").mkdir()
    outside, store = tmp_path / "outside" / "secret", tmp_path / "a.db"
    outside.write_text("secret")
    with Perdure(f"sqlite:///{store}", pipelines=[escapes]) as app:
        meta = {"worker": os.getpid(), "outside": str(outside), "store": str(store), **listening}
        id_ = app.add(data=b"whale" * LARGE, meta=meta, pipeline=escapes).id
        assert app.run_until_idle().done == 1
        tries = app.output(id_, "escape")
        assert len(tries) > 20
        assert tries.pop("link from outside") == "EXDEV"  # Landlock's word for it
        assert {name: how for name, how in tries.items() if how not in ("EPERM", "EACCES")} == {}
        assert app.output(id_, "at_home") == ["scratch", "whale", "a", 5 * LARGE]
    assert [path.name for path in outside.parent.iterdir()] == ["secret"]


@confining
def test_a_process_that_serves_several_documents_sees_each_file_alone() -> None:
    with trial(shelf, cells=True, concurrency=1) as app:
        words = ["whale", "squid", "shark"]
        ids = [app.add(data=word.encode() * LARGE, pipeline=shelf).id for word in words]
        assert drain(app).done == 3
        seen = [app.output(id_, "both") for id_ in ids]
        assert len({pid for pid, _, _ in seen}) == 1
        assert sorted(start for _, start, _ in seen) == sorted(words)
        assert all(there == ["document", "tmp"] for _, _, there in seen)


def test_cells_do_not_have_our_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {
        "OPENAI_API_KEY": "sk-theirs", "PERDURE_EMBED_KEY": "sk-ours-alone", "SAME_KEY": "sk-ours-alone",
        "PGPASSWORD": "secret", "RABBITMQ_PASSWORD": "secret", "AWS_SECRET_ACCESS_KEY": "secret",
        "PERDURE_SECRET_KEY": "sk-of-webhooks-with-32-characters-0", "PERDURE_CONTACT": "ann@example.org",
        "PERDURE_POLL_S": "0.5", "MINE": "mine",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    store = f"sqlite:///{tmp_path / 'a.db'}"
    monkeypatch.setenv("PERDURE_STORE", store)
    monkeypatch.setenv("DATABASE_URL", store)
    asked = json.dumps([*given, "PERDURE_STORE", "DATABASE_URL"])
    settings = Settings(
        vision_url="https://ann:pw@host.example:8/v1", cell_env="RABBITMQ_*, PERDURE_SECRET_KEY"
    )
    with Perdure(store, pipelines=[plain], settings=settings) as app:
        id_ = app.add(text=asked, pipeline=plain).id
        assert app.run_until_idle().done == 1
        passed = {"RABBITMQ_PASSWORD": "secret", "PERDURE_SECRET_KEY": "sk-of-webhooks-with-32-characters-0"}
        own = {
            "store": WITHHELD, "blobs": None, "embed_key": None, "vision_url": "https://host.example:8/v1",
            "contact": "ann@example.org",
        }  # fmt: skip
        nothing = dict.fromkeys([*given, "DATABASE_URL"])
        usual = {**nothing, **passed, **own, "PERDURE_STORE": WITHHELD, "PERDURE_POLL_S": "0.5"}
        assert app.output(id_, "bare") == {**usual, "OPENAI_API_KEY": "sk-theirs", "MINE": "mine"}
        assert app.output(id_, "boxed") == usual


@pytest.mark.parametrize("address", [WITHHELD, WITHHELD_SERVER])
def test_a_cell_that_opens_the_store_learns_that_its_address_is_withheld(address: str) -> None:
    app = Perdure(address)  # a module that names a store can be imported
    with pytest.raises(SettingInvalid, match="PERDURE_CELL_ENV") as error, app:
        pass
    assert error.value.code == "store_withheld"


def test_settings_cross_whole_but_for_secrets() -> None:
    settings = Settings(embed_key="sk-ours", store="postgresql://ann:pw@host/db", concurrency=7)
    copy = Settings.model_construct(**settings_for_cell(settings, passes("")))
    assert (copy.concurrency, copy.embed_key, copy.store) == (7, None, WITHHELD_SERVER)
    same = {"store", "embed_key", "rabbitmq_password"}
    assert copy.model_dump(exclude=same) == settings.model_dump(exclude=same)
    everything = Settings.model_construct(**settings_for_cell(settings, passes("*")))
    assert everything.model_dump() == settings.model_dump()


def test_patterns_choose_among_all_variables() -> None:
    given = {"A_KEY": "1", "B_KEY": "2", "PATH": "/bin", "PERDURE_STORE": "postgresql://h/d"}
    assert environment(given, True, passes("A_*")) == {
        "A_KEY": "1",
        "PATH": "/bin",
        "PERDURE_STORE": WITHHELD_SERVER,
    }
    assert environment(given, True, passes("*")) == given


THREADED = """
    import threading, time
    from perdure import Document, Pipeline
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    threaded = Pipeline("threaded", attempts=1)

    @threaded.stage(isolate=True, sandbox=True)
    def read(doc: Document) -> str:
        return doc.text
"""


@pytest.mark.parametrize("mode", ["auto", "require", "off"])
def test_a_machine_that_cannot_confine(mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that start threads cannot be confined: the threads were there before."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"threaded_{mode}"
    (tmp_path / f"{name}.py").write_text(
        textwrap.dedent(THREADED).replace('"threaded"', f'"threaded-{mode}"')
    )
    pipeline: Pipeline = __import__(name).threaded
    with Perdure(f"sqlite:///{tmp_path}/a.db", pipelines=[pipeline], settings=Settings(sandbox=mode)) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        if mode == "require":
            with pytest.raises(SandboxUnavailable, match="cannot confine") as refused:
                app.run_until_idle()
            assert refused.value.code == "sandbox_unavailable"
            assert (app.status(id_).state, app.attempts(id_)) == ("queued", [])
        else:
            assert app.run_until_idle().done == 1


@confining
@pytest.mark.parametrize(
    ("mode", "said"), [("auto", "run in a sandbox: landlock"), ("off", "without a sandbox: it is off")]
)
def test_a_worker_says_whether_it_confines(
    mode: Any, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "perdure.worker")
    with Perdure(f"sqlite:///{tmp_path}/a.db", pipelines=[plain], settings=Settings(sandbox=mode)) as app:
        app.add(data=b"[]", pipeline=plain)
        assert app.run_until_idle().done == 1
    assert said in caplog.text


def test_a_sandbox_is_for_processes() -> None:
    with pytest.raises(PipelineInvalid, match="isolate=True"):

        @Pipeline("none").stage(sandbox=True)
        def here(doc: Document) -> int:
            return 0


def test_what_a_kernel_lacks_is_not_claimed() -> None:
    assert sandbox.in_force(["landlock 7", "seccomp"])
    assert not sandbox.in_force(["landlock 7"])
    assert not sandbox.in_force(["seccomp"])
    assert not sandbox.in_force([])


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_a_filter_for_each_machine(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Uname:
        pass

    Uname.machine = machine  # type: ignore[attr-defined]
    monkeypatch.setattr(os, "uname", Uname)
    filter_program.cache_clear()
    try:
        if machine == "riscv64":
            with pytest.raises(OSError, match="no filter"):
                filter_program()
        else:
            _, code = filter_program()
            assert len(code) % 8 == 0
            assert 100 < len(code) // 8 < 4096
    finally:
        filter_program.cache_clear()


ALONE = """
import os, sys
from perdure.engine import sandbox
pid = os.fork()
if pid == 0:
    sandbox.RIGHTS = {version: 0x1FFF for version in sandbox.RIGHTS}
    sandbox.TCP_SINCE = sandbox.SCOPES_SINCE = 99
    sandbox.proven = frozenset(sandbox.PARTS)
    print(sandbox.in_force(sandbox.enter(sys.argv[1])), flush=True)
    open(sys.argv[1] + "/mine", "w").close()
    try:
        open(sys.argv[1] + "/../theirs", "w")
    except PermissionError:
        print("refused", flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


@confining
def test_the_first_version_of_landlock_is_enough(tmp_path: Path) -> None:
    (tmp_path / "den").mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "den")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.split() == ["True", "refused"]
    assert current().sandbox == "auto"


@confining
def test_items_that_a_confined_cell_saved_are_not_read_again() -> None:
    with trial(pages, cells=True) as app:
        id_ = app.add(data=b"whale" * LARGE, pipeline=pages).id
        assert drain(app).done == 1
        assert app.output(id_, "number") == [[0, 1], [1, 1], [2, 2], [3, 2], [4, 2]]


@confining
@pytest.mark.parametrize("text", ["blank", "endless"])
def test_a_fallback_stands_in_for_a_confined_stage(text: str) -> None:
    with trial(drawings, cells=True) as app:
        id_ = app.add(text=text, pipeline=drawings).id
        assert drain(app).done == 1
        assert app.output(id_, "look") == f"not seen: {text}"
        assert app.status(id_).degraded
