"""Of many failures the one that caused the others is shown, with name, pid, signal and step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from freewheel.errors import DataError, FreewheelError, LinkError, WorkerError
from freewheel.launch.local import Exit
from freewheel.observe.board import ALL_REDUCE, Board
from freewheel.runtime.deaths import Failures


class Case(NamedTuple):
    failures: Failures
    board: Board


def case(role: str, count: int, steps: Mapping[int, int], lockstep: bool = True) -> Case:
    names = [f"{role} {rank}" for rank in range(count)]
    board = Board(100, names)
    for rank, step in steps.items():
        board.last_step[f"{role} {rank}"] = step
    failures = Failures(names, board, lockstep, lambda name: Path(f"{name}.log"))
    failures.pids = {name: os.getpid() for name in names}
    return Case(failures, board)


def said(error: str, kind: str = "", **more: Any) -> dict[str, Any]:
    return {"error": error, "kind": kind, "traceback": "Traceback ...\n", "pid": 1, **more}


def test_scenario_14_a_death_is_named_with_pid_signal_and_step() -> None:
    failures, _ = case("replica", 3, {0: 6, 1: 4, 2: 6})
    assert not failures
    failures.told("replica 0", said("all-reduce failed: connection closed", "LinkError"))
    failures.died(Exit("replica 1", 4242, -9))
    failures.told("replica 2", said("all-reduce failed: connection closed", "LinkError"))
    assert failures
    error = failures.root_cause()
    assert isinstance(error, WorkerError)
    # its own last record is of step 4, but it took part in the all-reduce of step 6
    assert str(error) == "replica 1 (pid 4242) died (signal 9) at step 7; its log is replica 1.log"


def test_servers_workers_do_not_keep_in_step() -> None:
    failures, _ = case("worker", 2, {0: 60, 1: 4}, lockstep=False)
    failures.died(Exit("worker 1", 4242, -9))
    assert "at step 5;" in str(failures.root_cause())


def test_scenario_16_when_all_raise_the_first_error_is_shown() -> None:
    failures, _ = case("stage", 3, {})
    for rank in (2, 0, 1):
        failures.told(f"stage {rank}", said(f"ValueError: of stage {rank}"))
    error = failures.root_cause()
    assert str(error).startswith(f"stage 2 (pid {os.getpid()}) failed: ValueError: of stage 2")
    assert str(error).endswith("Traceback ...")


RANKED: list[tuple[Any, type[FreewheelError], str]] = [
    (("told", "stage 0", said("no connection", "LinkError")), LinkError, "no connection"),
    (("told", "stage 0", said("waited", peer="stage 1")), WorkerError, "stage 1 .* did not answer"),
    (("died", Exit("stage 1", 7, 3)), WorkerError, r"stage 1 \(pid 7\) exited with code 3"),
    (("told", "stage 1", said("KeyError: 3")), WorkerError, "KeyError: 3"),
    (("died", Exit("stage 1", 7, -11)), WorkerError, r"died \(signal 11\)"),
    (("told", "stage 0", said("sample 5 is NaN", "DataError")), DataError, "sample 5 is NaN"),
]


@pytest.mark.parametrize("number", range(len(RANKED)))
def test_causes_go_before_consequences(number: int) -> None:
    failures, _ = case("stage", 2, {})
    for (how, *what), _, _ in RANKED[: number + 1]:
        getattr(failures, how)(*what)
    with pytest.raises(RANKED[number][1], match=RANKED[number][2]):
        raise failures.root_cause()


def test_who_hangs_is_found_at_the_end_of_the_chain_of_those_who_wait() -> None:
    failures, board = case("stage", 3, {0: 6, 1: 6, 2: 6})
    board.waiting("stage 0", "stage 1", 3.0)
    board.waiting("stage 1", "stage 2", 3.0)
    failures.told("stage 0", said("waited 3 s for 'backward'", peer="stage 1"))
    text = str(failures.root_cause())
    assert text == (
        f"stage 2 (pid {os.getpid()}) did not answer at step 7: it lives, and may be computing or "
        f"waiting. waited 3 s for 'backward'"
    )


def test_who_hangs_in_a_collective_is_who_has_not_come_to_it() -> None:
    failures, board = case("replica", 3, {0: 6, 1: 6, 2: 6})
    board.waiting("replica 0", ALL_REDUCE, 3.0)
    board.waiting("replica 2", ALL_REDUCE, 3.0)
    failures.told("replica 0", said("waited 3 s", peer=ALL_REDUCE))
    assert str(failures.root_cause()).startswith("replica 1 (pid ")


def test_a_circle_of_waits_ends() -> None:
    failures, board = case("stage", 2, {})
    board.waiting("stage 0", "stage 1", 3.0)
    board.waiting("stage 1", "stage 0", 3.0)
    failures.told("stage 0", said("waited", peer="stage 1"))
    assert "stage" in str(failures.root_cause())


def test_scenario_21_the_progress_line_says_who_waits_for_whom_and_how_long() -> None:
    from freewheel.observe.progress import line

    board = case("replica", 3, {}).board
    board.waiting("replica 0", ALL_REDUCE, 3.2)
    board.waiting("replica 2", ALL_REDUCE, 2.9)
    assert "replica 0 has waited 3 s for replica 1" in line(board)
    board.record(
        {"process": "replica 0", "step": 1, "samples": 8, "loss": 1.0, "wait_for": ALL_REDUCE,
         "compute_s": 1.0, "wait_s": 3.0, "send_s": 0.0, "bytes_sent": 0}
    )  # fmt: skip
    assert "replica 0 has waited" not in line(board), "it waits no longer"


def test_the_exit_of_one_that_said_why_hides_nobody(tmp_path: Path) -> None:
    """Stage 1 gives up on stage 2 and exits with its code: stage 2 is the cause."""
    names = ["stage 0", "stage 1", "stage 2"]
    failures = Failures(names, Board(None, names), True, lambda _: tmp_path / "none.log")
    said = {"error": "waited 3 s", "kind": "SilentPeerError", "peer": "stage 2", "traceback": ""}
    failures.told("stage 1", said)
    failures.died(Exit("stage 1", 4502, 5))
    assert str(failures.root_cause()).startswith("stage 2 ")
