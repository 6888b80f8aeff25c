"""The wheel, installed without extras into an environment of its own outside of the tree: what a newcomer has."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.doors.command import environment
from tests.doors.test_extras import COMMANDS, NEEDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def bin_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, uv = tmp_path_factory.mktemp("wheel"), str(Path(sys.executable).with_name("uv"))
    for command in (
        [uv, "build", "--wheel", "--quiet", "--out-dir", str(place), str(ROOT)],
        [uv, "venv", "--quiet", "--python", sys.executable, str(place / "venv")],
    ):
        subprocess.run(command, check=True, timeout=300)
    (wheel,) = place.glob("*.whl")
    install(place / "venv" / "bin", str(wheel))
    return place / "venv" / "bin"


def install(bin_: Path, what: str) -> None:
    """Install a wheel, perhaps with extras, into the environment."""
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "-c"]
    where = [str(ROOT / "constraints.txt"), "--python", str(bin_ / "python")]
    subprocess.run([*command, *where, what], check=True, timeout=300)


def run(
    bin_: Path, directory: Path, program: str, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [bin_ / program, *arguments], cwd=directory, env=environment(**more), capture_output=True, text=True,
        timeout=500, check=False,
    )  # fmt: skip


def test_the_help_names_the_commands_that_are_tried_below(bin_: Path, tmp_path: Path) -> None:
    helped = run(bin_, tmp_path, "perdure", "--help").stdout
    names = set(re.findall(r"^│ ([a-z]+) ", helped, re.M))
    assert names == {command.partition(" ")[0] for command in COMMANDS}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_runs_or_says_what_to_install(command: str, bin_: Path, tmp_path: Path) -> None:
    ended = run(bin_, tmp_path, "perdure", *command.split(), *COMMANDS[command])
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.returncode == 0 or ended.stderr.endswith("]\n"), ended.stderr
    if command in NEEDS:
        assert f"pip install 'perdure[{NEEDS[command]}]'" in ended.stderr


def test_the_first_example_of_the_readme_prints_what_the_readme_says(bin_: Path, tmp_path: Path) -> None:
    example = re.search(r"```python\n# books\.py\n(.*?)```", README, re.S)
    printed = re.search(r"    \$ python books\.py\n((?:    .+\n)+)", README)
    assert example is not None
    assert printed is not None
    (tmp_path / "books.py").write_text(example[1])
    ended = run(bin_, tmp_path, "python", "books.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == re.sub(r"^    ", "", printed[1], flags=re.M)


def test_what_the_wheel_lacks_is_said_by_the_library_too(bin_: Path, tmp_path: Path) -> None:
    ended = run(
        bin_, tmp_path, "python", "-c", "import perdure.client, perdure.testing, perdure.pipelines.image"
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "ImportError: images need Pillow: pip install 'perdure[images]'"


@pytest.fixture(scope="module")
def served_bin(bin_: Path) -> Path:
    """The same with the extra for the HTTP API; a module-wide fixture that the tests above do not use."""
    (wheel,) = bin_.parents[1].glob("*.whl")
    install(bin_, f"{wheel}[api]")
    return bin_


@contextmanager
def serving(bin_: Path, directory: Path) -> Iterator[tuple[str, Path]]:
    """`perdure serve` with its defaults: its address, and the file with all that it prints."""
    printed = directory / "printed"
    with printed.open("wb") as out:
        process = subprocess.Popen(
            [bin_ / "perdure", "serve", "--open", "--port", "0"],
            cwd=directory, env=environment(PERDURE_LOG_LEVEL="DEBUG"), stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            wait_for(lambda: " on http://" in printed.read_text() or process.poll() is not None)
            found = re.search(r" on (http://[\d.:]+)", printed.read_text())
            assert found, printed.read_text()
            yield found[1], printed
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


def wait_for(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < until_s, "it never came to hold"
        time.sleep(0.1)


def children_that_run_stages(directory: Path) -> list[int]:
    """The processes that were started below this directory and run stages."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, where = (process / "cmdline").read_bytes(), (process / "cwd").readlink()
        except OSError:
            continue
        if where == directory and b": stages" in command:
            found.append(int(process.name))
    return found


GARBAGE: tuple[tuple[bytes, str], ...] = (
    (b"", "application/json"), (b"{", "application/json"), (b"[[[[", "application/json"), (b"\xff\xfe", "text/plain"),
    (b'{"text": 1}', "application/json"), (b"--x\r\nno form", "multipart/form-data; boundary=x"), (b"x", "nonsense"),
)  # fmt: skip
MISTAKES: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
    (("add", "no-such-file.pdf"), {}), (("add",), {}), (("status", "nobody"), {}),
    (("dead", "import", "no-such-file.jsonl"), {}), (("worker", "no_such_module:app"), {}),
    (("status",), {"PERDURE_STORE": "nonsense://x"}), (("status",), {"PERDURE_CONCURRENCY": "many"}),
    (("serve", "--port", "0"), {"OPENAI_RETRY_MAX": "x"}), (("worker",), {"STORAGE_RETRY_MAX": "1.5"}),
    (("serve", "--port", "0"), {"METRICS_BACKEND": "prometheus_pushgateway"}),
)  # fmt: skip


def test_the_first_hour_of_a_newcomer_has_no_traceback(served_bin: Path, tmp_path: Path) -> None:
    """Serving with the defaults, a worker that is killed, garbage, missing files and wrong settings."""
    ended: list[subprocess.CompletedProcess[str]] = []
    with serving(served_bin, tmp_path) as (url, printed), httpx2.Client(base_url=url, timeout=60) as client:
        wait_for(lambda: client.get("/readyz").json()["status"] == "ready")
        ids = [
            client.post("/v3/documents", json={"text": f"# {n}\n\nWhales."}).json()["id"] for n in range(40)
        ]
        (child,) = children_that_run_stages(tmp_path)
        os.kill(child, signal.SIGKILL)
        for body, kind in GARBAGE:
            answer = client.post("/v3/documents", content=body, headers={"Content-Type": kind})
            assert answer.status_code < 500, (body, answer.text)
        for path in ("/v3/documents/nobody", "/nothing", "/v3/documents?lim=1", "/v3/documents?limit=x"):
            assert 400 <= client.get(path).status_code < 500
        for command, more in MISTAKES:
            ended.append(run(served_bin, tmp_path, "perdure", *command, **more))
        wait_for(lambda: all(client.get(f"/v3/documents/{id_}").json()["state"] == "done" for id_ in ids))
    for one in ended:
        assert one.returncode in (1, 2), one
        assert re.search(r" \[[a-z_]+\]$", one.stderr.splitlines()[-1]), one
    for text in (printed.read_text(), *(one.stdout + one.stderr for one in ended)):
        assert "Traceback" not in text, text
