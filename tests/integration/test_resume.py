"""A run that is gone on with is the run that was never stopped."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import factories
from freewheel.errors import CheckpointError
from freewheel.runtime.pieces import Given
from in_threads import Outcome, run_pipeline, run_replicas

DATA = {"factory": "factories:small_data", "batch_size": 8}
COSINE = {"name": "cosine", "warmup": 2}
RUNS = {
    "momentum": {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}},
    "adam, clipped": {"optimizer": {"name": "adam", "lr": 0.01}, "train": {"clip_norm": 0.5}},
    "delta of each sample": {
        "optimizer": {"name": "adam", "lr": 0.01},
        "codec": {"forward": "delta,per=sample+quantise:8", "backward": "cast:bf16"},
    },
    "rounding at random": {
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        "codec": {"forward": "quantise:4", "backward": "quantise:4"},
    },
    "accumulation": {"optimizer": {"name": "adam", "lr": 0.01}, "train": {"accumulate": 2}},
}
STEPS = 12


def sections(name: str, **more: Any) -> dict[str, Any]:
    given = {key: dict(value) for key, value in RUNS.get(name, {}).items()}
    given["train"] = {"steps": STEPS, **given.get("train", {}), **more.pop("train", {})}
    return {
        "data": DATA,
        "schedule": COSINE,
        "checkpoint": {"every": 3, "keep": 9},
        **given,
        **more,
    }


def at(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"step-{step:08d}"


def rates(outcome: Outcome) -> dict[int, float]:
    return {row["step"]: row["lr"] for row in outcome.rows}


def losses(outcome: Outcome) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in outcome.rows if row["loss"] is not None}


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def cosine(step: int, lr: float, steps: int = STEPS) -> float:
    """Return the rate of step ``step`` (from 1) by the formula of Loshchilov and Hutter (2017)."""
    done = step - 1
    if done < 2:
        return lr * (done + 1) / 2
    return lr * 0.5 * (1 + math.cos(math.pi * (done - 2) / (steps - 2)))


@pytest.mark.parametrize("name", RUNS)
def test_the_same_bits_as_without_a_stop_after_three_resumes(tmp_path: Path, name: str) -> None:
    given = Given(model=factories.batchnorm_model)
    layout = {"stages": 2, "micro_batches": 4}
    whole = run_pipeline(given, run_dir=tmp_path / "0", **sections(name, layout=layout))
    assert len(losses(whole)) == STEPS
    seen, rate = {}, {}
    for part, start in enumerate((3, 6, 9)):
        # each part goes on from what the part before it saved
        found = run_pipeline(
            given,
            run_dir=tmp_path / str(part + 1),
            resume_from=at(tmp_path / str(part), start),
            **sections(name, layout=layout),
        )
        same_bits(found.state, whole.state)
        seen |= {step: loss for step, loss in losses(found).items() if step <= start + 3}
        rate |= {step: lr for step, lr in rates(found).items() if step <= start + 3}
    assert seen == {step: loss for step, loss in losses(whole).items() if step > 3}
    lr = RUNS[name]["optimizer"]["lr"]
    for step, value in {**rates(whole), **rate}.items():
        assert value == pytest.approx(cosine(step, lr), rel=1e-12)


def test_dropout_goes_on_where_it_was(tmp_path: Path) -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))

    # one stage: threads share PyTorch's generator, processes do not
    how = sections("momentum", layout={"stages": 1})
    whole = run_pipeline(Given(model=model), run_dir=tmp_path / "a", **how)
    torch.manual_seed(99)
    found = run_pipeline(
        Given(model=model), run_dir=tmp_path / "b", resume_from=at(tmp_path / "a", 6), **how
    )
    same_bits(found.state, whole.state)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3), (1, 2), (3, 2)])
@pytest.mark.parametrize("name", ["momentum", "adam, clipped"])
def test_another_number_of_stages(tmp_path: Path, name: str, before: int, after: int) -> None:
    given = Given(model=factories.small_model)
    whole = run_pipeline(given, run_dir=tmp_path / "a", **sections(name, layout={"stages": before}))
    found = run_pipeline(
        given,
        run_dir=tmp_path / "b",
        resume_from=at(tmp_path / "a", 6),
        **sections(name, layout={"stages": after}),
    )
    assert whole.state.keys() == found.state.keys()
    for key, value in whole.state.items():
        # the stages compute the same; only the sum of squares for clipping is ordered otherwise
        assert torch.allclose(found.state[key], value, rtol=1e-6, atol=1e-7), key
    assert rates(found) == {step: lr for step, lr in rates(whole).items() if step > 6}


def test_scenario_12_tied_parameters_keep_their_moments_on_other_stages(tmp_path: Path) -> None:
    class Head(nn.Linear):
        pass

    def model() -> nn.Sequential:
        torch.manual_seed(2)
        first, last = nn.Linear(6, 6, bias=False), Head(6, 6, bias=False)
        last.weight = first.weight
        return nn.Sequential(first, nn.Tanh(), last)

    how = {"optimizer": {"name": "adam", "lr": 0.01}}
    one = run_pipeline(
        Given(model=model), run_dir=tmp_path / "a", **sections("", layout={"stages": 1}, **how)
    )
    for stages in (1, 2):
        found = run_pipeline(
            Given(model=model),
            run_dir=tmp_path / f"b{stages}",
            resume_from=at(tmp_path / "a", 6),
            **sections("", layout={"stages": stages}, **how),
        )
        for key, value in one.state.items():
            assert torch.allclose(found.state[key], value, rtol=1e-6, atol=1e-7), (stages, key)


class Recording:
    """Samples that note which process asked for which, batch by batch."""

    def __init__(self, num_samples: int) -> None:
        (self.x, self.y), _ = factories.small_data(num_samples)
        self.taken: dict[str, list[list[int]]] = {}

    def __len__(self) -> int:
        return len(self.x)

    def inputs(self, indices: Tensor) -> Tensor:
        self.taken.setdefault(threading.current_thread().name, []).append(indices.tolist())
        return self.x[indices]

    def targets(self, indices: Tensor) -> Tensor:
        return self.y[indices]


@pytest.mark.parametrize("workers", [(2, 3, 1), (3, 1, 2), (1, 2, 3)])
def test_scenario_6_every_sample_once_an_epoch_with_2_3_and_1_replicas(
    tmp_path: Path, workers: tuple[int, ...]
) -> None:
    num_samples, epochs, stops = 83, 2, (5, 7, 1000)
    used: dict[int, list[int]] = {0: [], 1: []}
    resume_from, step = None, 0
    for part, (count, stop) in enumerate(zip(workers, stops, strict=True)):
        train, run_dir = Recording(num_samples), tmp_path / str(part)
        outcome = run_replicas(
            Given(model=factories.small_model, data=(train, factories.small_data(10)[1])),
            run_dir=run_dir,
            resume_from=resume_from,
            data={"batch_size": 4},
            optimizer={"name": "adam", "lr": 0.01},
            schedule={"name": "cosine"},
            layout={"kind": "replicas", "workers": count},
            train={"epochs": epochs},
            checkpoint={"every": 1, "keep": 100},
        )
        steps = sorted({row["step"] for row in outcome.rows})
        assert steps[0] == step + 1, "steps are counted on"
        # Adam counts the steps that its moments have seen
        (counted,) = {
            float(state["step"]) for state in outcome.roles[0].updater.optimizer.state.values()
        }
        assert counted == steps[-1] == outcome.roles[0].total_steps
        lr = {row["step"]: row["lr"] for row in outcome.rows}
        for now, value in lr.items():
            done = (now - 1) / outcome.roles[0].total_steps
            assert value == pytest.approx(0.01 * 0.5 * (1 + math.cos(math.pi * done)), abs=1e-12)
        # up to the step at which this part is left, as the next one goes on from there
        for rank in range(count):
            name = f"replica {rank}"
            rows = [r for r in outcome.rows if r["process"] == name and r["samples"]]
            rows.sort(key=lambda row: row["step"])
            for row, batch in zip(rows, train.taken[name], strict=True):
                assert row["samples"] == len(batch)
                if row["step"] <= stop:
                    used[row["epoch"]] += batch
        step = min(stop, steps[-1])
        resume_from = at(run_dir, step)
    for epoch in range(epochs):
        assert sorted(used[epoch]) == list(range(num_samples)), epoch


def test_scenario_11_buffers_of_replicas(tmp_path: Path) -> None:
    given = Given(model=factories.batchnorm_model)
    how = {
        "data": DATA,
        "layout": {"kind": "replicas", "workers": 2},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        "train": {"steps": 8},
        "checkpoint": {"every": 4, "keep": 9},
    }
    whole = run_replicas(given, run_dir=tmp_path / "a", **how)
    one, two = (role.module.state_dict() for role in whole.roles)
    same_bits(one, two)  # the last step was scored, and brought them together
    assert one["1.num_batches_tracked"].dtype == torch.int64
    assert one["1.num_batches_tracked"] == 8
    # each replica goes on with its own statistics
    found = run_replicas(given, run_dir=tmp_path / "b", resume_from=at(tmp_path / "a", 4), **how)
    same_bits(found.state, whole.state)
    # with another number of them, all start from their mean
    own = [load_file(at(tmp_path / "a", 8) / f"replica-{r}.safetensors") for r in range(2)]
    mean = torch.stack([part["model/1.running_mean"] for part in own]).mean(0)
    how["layout"] = {"kind": "replicas", "workers": 3}
    three = run_replicas(given, run_dir=tmp_path / "c", resume_from=at(tmp_path / "a", 8), **how)
    for role in three.roles:
        assert torch.allclose(role.module.state_dict()["1.running_mean"], mean)
        assert role.module.state_dict()["1.num_batches_tracked"].dtype == torch.int64


def test_a_changed_learning_rate_is_taken(tmp_path: Path) -> None:
    given, layout = Given(model=factories.small_model), {"stages": 1}
    run_pipeline(given, run_dir=tmp_path / "a", **sections("momentum", layout=layout))
    how = sections("momentum", layout=layout)
    how["optimizer"] = {"name": "sgd", "lr": 0.5, "momentum": 0.9}
    found = run_pipeline(given, run_dir=tmp_path / "b", resume_from=at(tmp_path / "a", 6), **how)
    for step, lr in rates(found).items():
        assert lr == pytest.approx(cosine(step, 0.5), rel=1e-12)


def test_a_multi_step_schedule_of_ones_own_keeps_its_milestones(tmp_path: Path) -> None:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [4, 8], 0.1)

    given = Given(model=factories.small_model, schedule=schedule)
    how = sections("momentum", layout={"stages": 2})
    del how["schedule"]
    run_pipeline(given, run_dir=tmp_path / "a", **how)
    found = run_pipeline(given, run_dir=tmp_path / "b", resume_from=at(tmp_path / "a", 6), **how)
    expected = {step: 0.1 * 0.1 ** ((step > 4) + (step > 8)) for step in range(7, 13)}
    assert rates(found) == pytest.approx(expected)


MISFITS = {
    "another model": (
        {"model": factories.batchnorm_model}, {}, "use the model that was saved"
    ),
    "another optimizer": (
        {"model": factories.small_model}, {"optimizer": {"name": "adam"}}, "saved by SGD"
    ),
    "another seed": (
        {"model": factories.small_model}, {"run": {"seed": 5}}, "saved with seed = 0, now it is 5"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    pieces, more, text = MISFITS[name]
    layout = {"stages": 1}
    first = Given(model=factories.small_model)
    run_pipeline(first, run_dir=tmp_path / "a", **sections("momentum", layout=layout))
    with pytest.raises(CheckpointError, match=text):
        run_pipeline(
            Given(**pieces),
            run_dir=tmp_path / "b",
            resume_from=at(tmp_path / "a", 6),
            **{**sections("momentum", layout=layout), **more},
        )
