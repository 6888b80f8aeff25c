"""Which tests run when: `make test`, `make test-all` and `make long` each take one suite.

`--suite quick` takes the tests without a mark, `--suite full` those marked `full`, `--suite long` those marked `long`
except the pairs of verbs, which are `--suite pairs`.
Without the option every test that is named runs. Outside of tests/store a test that runs on both stores belongs to the
full suite on PostgreSQL, unless it is marked `on_both`.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: The suites and the commands that run them.
COMMANDS = {"quick": "make test", "full": "make test-all", "long": "make long", "pairs": "make pairs"}
#: Folders whose tests run on both stores in every suite.
ON_BOTH = (HERE / "store", HERE / "pairs")

#: Files that run first: their tests take long, or share a worker that each test process would start for itself.
EARLY = ("test_watched_worker.py", "test_sim.py", "test_resume.py")

#: Fixtures that need Debian packages.
FROM_DEBIAN = frozenset({"shelf", "gateway", "rabbit"})
#: Fixtures of tests that run on PostgreSQL alone.
FROM_POSTGRES = frozenset({"postgres_url", "postgres_store_url", "postgres_server_url"})
#: Names the suite that runs, for code that is called by tests.
VARIABLE = "PERDURE_TEST_SUITE"

_left_out: pytest.StashKey[Counter[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--suite", choices=sorted(COMMANDS), help="run the tests of one suite: see docs/testing.md"
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ[VARIABLE] = config.getoption("suite") or ""
    config.stash[_left_out] = Counter()
    config.pluginmanager.register(Nodes(config.stash[_left_out]), "perdure-nodes")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the suite, and count the others."""
    wanted = config.getoption("suite")
    if wanted is None:
        return
    suites = {item: suite_of(item) for item in items}
    config.stash[_left_out].update(suite for suite in suites.values() if suite != wanted)
    config.hook.pytest_deselected(items=[item for item in items if suites[item] != wanted])
    items[:] = sorted((item for item in items if suites[item] == wanted), key=_turn)


def _turn(item: pytest.Item) -> int:
    """The place of the test's file among those that run first; the others keep their order behind them."""
    return EARLY.index(item.path.name) if item.path.name in EARLY else len(EARLY)


def suite_of(item: pytest.Item) -> str:
    """The suite that the test belongs to."""
    if item.get_closest_marker("long") is not None:
        return "pairs" if item.path.is_relative_to(HERE / "pairs") else "long"
    if item.get_closest_marker("full") is not None:
        return "full"
    if not FROM_DEBIAN.isdisjoint(getattr(item, "fixturenames", ())):
        return "full"
    on_both = item.get_closest_marker("on_both") is not None or any(map(item.path.is_relative_to, ON_BOTH))
    return "quick" if on_both or store_of(item) != "postgres" else "full"


def store_of(item: pytest.Item) -> str | None:
    """The store that the test runs on, if it runs on each."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return next((value for value in parameters.values() if value in ("sqlite", "postgres")), None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure what a person needs to see it again."""
    report = yield
    if report.failed:
        postgres = not FROM_POSTGRES.isdisjoint(getattr(item, "fixturenames", ()))
        store = store_of(item) or ("postgres" if postgres else None)
        lines = [f"store: {store}"] if store else []
        lines.append(f"run it alone: .venv/bin/python -m pytest {shlex.quote(item.nodeid)}")
        report.sections.append(("to see it again", "\n".join(lines)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was not run, and which command runs it."""
    for suite, count in sorted(config.stash[_left_out].items()):
        terminalreporter.write_line(f"not run: {count} tests of the {suite} suite ({COMMANDS[suite]})")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A test process tells the controlling one what it left out."""
    output, left_out = getattr(session.config, "workeroutput", None), session.config.stash[_left_out]
    if output is not None:
        output["left_out"] = dict(left_out)


class Nodes:
    """The controlling process's ear: every test process collects the same tests, so one answer is enough."""

    def __init__(self, left_out: Counter[str]) -> None:
        self.left_out = left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        output = getattr(node, "workeroutput", {})
        if "left_out" in output:  # a process that crashed tells nothing
            self.left_out.clear()
            self.left_out.update(output["left_out"])
