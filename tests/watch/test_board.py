"""The board: counts survive their process, labels are bounded, readers see whole names."""

from __future__ import annotations

import os
import signal
import threading

from perdure.watch.board import SLOTS, Board, together
from perdure.watch.metrics import LABEL_VALUES_MAX, OTHER


def test_what_a_killed_process_counted_is_still_there_and_the_next_goes_on() -> None:
    board = Board.shared()
    for _ in range(2):
        child = os.fork()
        if child == 0:
            own = Board.attached(board.fd)
            own.add("perdure_attempts_total", "books", "done")
            own.add("perdure_attempts_total", "books", "done", amount=2)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
    assert board.read() == {("perdure_attempts_total", "books", "done"): 6.0}
    os.close(board.fd)


def test_what_begins_at_nought_is_shown_at_once() -> None:
    board = Board.private()
    board.start("perdure_fenced_writes_total")
    board.start("perdure_call_added_seconds", "openai")
    read = board.read()
    assert read["perdure_fenced_writes_total",] == 0
    assert {key[-1] for key in read if key[0] == "perdure_call_added_seconds"} == {*"012345678", "sum"}
    assert set(read.values()) == {0.0}


def test_an_observation_falls_into_its_bucket_and_a_bound_belongs_to_the_lower_one() -> None:
    board = Board.private()
    for seconds in (0.05, 0.1, 0.11, 700.0):
        board.observe("perdure_stage_seconds", "books", "read", "1MiB", value=seconds)
    read = board.read()
    where = ("perdure_stage_seconds", "books", "read", "1MiB")
    assert (read[*where, "1"], read[*where, "2"], read[*where, "6"]) == (2, 1, 1)
    assert abs(read[*where, "sum"] - 700.26) < 1e-9


def test_too_many_values_of_a_label_become_other_and_those_that_are_known_stay() -> None:
    board = Board.private()
    for number in range(LABEL_VALUES_MAX + 50):
        board.add("perdure_documents_dead_total", f"collection {number}")
    board.add("perdure_documents_dead_total", "collection 0")
    read = board.read()
    assert len(read) == LABEL_VALUES_MAX + 1
    assert read["perdure_documents_dead_total", OTHER] == 50
    assert read["perdure_documents_dead_total", "collection 0"] == 2


def test_long_and_strange_values_are_cut_not_refused() -> None:
    board = Board.private()
    for value in ("x" * 1000, "ä" * 1000, '\x00\x01"\\\n' * 50, "", "\ud800"):
        board.add("perdure_documents_dead_total", value)
    assert len(board.read()) == 5
    assert all(len(key[1].encode()) <= 60 for key in board.read())


def test_a_full_board_keeps_what_it_has() -> None:
    board = Board.private()
    for pipeline in range(100):
        for stage in range(100):
            board.add("perdure_stages_resumed_total", str(pipeline), str(stage))
    assert len(board.read()) == SLOTS
    board.add("perdure_stages_resumed_total", "0", "0")
    assert board.read()["perdure_stages_resumed_total", "0", "0"] == 2


def test_threads_lose_no_count() -> None:
    board = Board.private()

    def count() -> None:
        for _ in range(5_000):
            board.add("perdure_fenced_writes_total")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert board.read() == {("perdure_fenced_writes_total",): 20_000.0}


def test_boards_are_added_up() -> None:
    one, other = Board.private(), Board.private()
    one.add("perdure_fenced_writes_total")
    other.add("perdure_fenced_writes_total", amount=2)
    other.add("perdure_workers_lost_total")
    assert together((one, other)) == {("perdure_fenced_writes_total",): 3, ("perdure_workers_lost_total",): 1}
