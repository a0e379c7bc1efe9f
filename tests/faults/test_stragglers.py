"""Scenarios 16 and 21: who is slow is named; who is done waits; a run in progress can be read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import factories
import freewheel
from disturbed import LAST, command, incident
from freewheel.config import Config, parse_config
from freewheel.errors import EXIT_OK
from freewheel.observe.board import Board
from freewheel.observe.progress import Progress
from freewheel.observe.run_folder import RunFolder
from freewheel.runtime.coordinator import Coordinator
from freewheel.runtime.job import Job
from freewheel.runtime.worker import join_and_work
from freewheel.transport.base import COORDINATOR, Link, Message
from freewheel.transport.inproc import InprocHub
from plain import train_plain
from running import Running, final_of, only_run, summary_of

SGD = {"optimizer__name": "sgd", "optimizer__lr": 0.1, "schedule__name": "constant",
       "schedule__warmup": 0, "model__dropout": 0.0, "codec__forward": "identity",
       "codec__backward": "identity"}  # fmt: skip


@pytest.mark.parametrize("kind", list(LAST))
def test_scenario_21_a_straggler_is_named_and_the_run_read_meanwhile(
    start: Callable[..., Running], tmp_path: Path, kind: str
) -> None:
    more = {**SGD, **incident(tmp_path, kind, "wait", step=5)}
    running = start(*command(tmp_path, kind, **more))
    others = {"pipeline": "stage 0", "replicas": "replica 0"}[kind]
    running.until_said(rf"step \d+/12 .*{others} has waited [3-9] s for {LAST[kind][0]}")
    run_dir = only_run(tmp_path)
    running.until((run_dir / "checkpoints" / "step-00000004").exists)
    live = freewheel.load(run_dir)
    assert not live.training
    (tmp_path / "happened").touch()
    assert running.wait() == 0
    # four steps of plain PyTorch over the same batches
    (x, y), _ = factories.small_data(48)
    model = factories.eventful_model(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    how = {"micro_batches": 4} if kind == "pipeline" else {"world_size": 2}
    train_plain(model, x, y, nn.CrossEntropyLoss(), optimizer, 4, 8, **how)
    for (name, value), parameter in zip(live.named_parameters(), model.parameters(), strict=True):
        assert torch.allclose(value, parameter, rtol=1e-5, atol=1e-6), name
    if kind == "pipeline":  # each replica's BatchNorm sees its own half
        for name, value in live.named_buffers():
            assert torch.allclose(value, model.get_buffer(name), rtol=1e-5, atol=1e-6), name
    # once it has ended, the final parameters are read, and score what the run scored
    done = freewheel.load(run_dir)
    for name, value in done.state_dict().items():
        assert torch.equal(value, final_of(run_dir)[name]), name
    right = float((done(x).argmax(1) == y).double().mean())
    assert right == pytest.approx(summary_of(run_dir)["final_accuracy"], abs=1e-9)


class Alive:
    """Processes that are threads of this one."""

    def pids(self) -> dict[str, int]:
        return {}

    def alive(self) -> list[str]:
        return []

    def exits(self) -> list[Any]:
        return []

    def stop(self, grace_s: float = 3.0) -> None:
        """Leave them alone."""


def test_scenario_16_who_is_done_early_waits_longer_than_any_timeout(tmp_path: Path) -> None:
    config = parse_config({"layout": {"kind": "replicas"}, "run": {"step_timeout_s": 2.0}})
    hub, names = InprocHub(), ["replica 0", "replica 1"]
    link = hub.link(COORDINATOR)
    stays, enough = [], threading.Event()
    send = link.send

    def counted(to: str, message: Message, *, timeout_s: float = 60.0) -> None:
        send(to, message, timeout_s=timeout_s)
        if message.kind == "stay":
            stays.append(to)
            if len(stays) == 6:  # said four times in each timeout
                enough.set()

    link.send = counted  # type: ignore[method-assign]  # to see what is said
    codes: dict[str, int] = {}

    def work(job: Job, _config: Config, _link: Link) -> dict[str, Any]:
        if job.rank == 1:
            assert enough.wait(60.0)
        return {"step": 3}

    def live(name: str) -> None:
        own = hub.link(name)
        own.connect({COORDINATOR: link.address})
        own.interrupt_on("stop")
        job = Job(name.split()[0], int(name.split()[1]), "00" * 8, str(tmp_path), link.address)
        codes[name] = join_and_work(job, config, own, work)
        own.close()

    threads = [threading.Thread(target=live, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    folder = RunFolder(tmp_path / "run", config)
    leader = Coordinator(
        link, names, Alive(), folder, Board(3, names), Progress(quiet=True), config
    )
    leader.gather()
    leader.lead()
    for thread in threads:
        thread.join(30.0)
    folder.close()
    link.close()
    assert codes == dict.fromkeys(names, EXIT_OK)
    assert set(stays) == {"replica 0"}
