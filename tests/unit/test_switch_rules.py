"""What a switching run between real processes must be like, and who is told what in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from freewheel.config import parse_config
from freewheel.errors import ConfigError
from freewheel.launch.switching import check_switch, with_servers
from freewheel.runtime.context import make_protocol
from freewheel.runtime.pieces import Given, Pieces
from freewheel.runtime.switching import evidence
from freewheel.runtime.switching.hand_over import agrees, fingerprint
from freewheel.runtime.switching.led import listener, savers, switch_summary


def config(**sections: Any) -> Any:
    values = {"layout": {"kind": "replicas", "workers": 3}, "protocol": {"name": "strategy_switch"}}
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return parse_config(values)


def test_replicas_get_servers_beside_them() -> None:
    given = config(layout={"servers": 2})
    made = with_servers(given, make_protocol(given)).layout
    assert (made.kind, made.placement, made.workers, made.servers) == ("server", "colocated", 3, 2)
    other = config(protocol={"name": "all_reduce"})
    assert with_servers(other, make_protocol(other)) is other


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        ({"protocol": {"first": "asp", "then": "all_reduce"}}, "a switch begins with all_reduce"),
        ({"layout": {"consistency": "per_server"}}, 'use "global"'),
        ({"layout": {"server_momentum": "fold"}}, "use fold_momentum or lower_momentum"),
    ],
)
def test_what_cannot_be(sections: dict[str, Any], rule: str) -> None:
    given = config(**sections)
    with pytest.raises(ConfigError, match=rule):
        with_servers(given, make_protocol(given))


@pytest.mark.parametrize(
    ("protocol", "optimizer", "rule"),
    [
        ({"at_switch": ["fold_momentum"]}, {"name": "sgd"}, "SGD has no momentum here"),
        ({"at_switch": ["lower_momentum"]}, {"name": "adam"}, "Adam has no momentum here"),
        (
            {"criterion": {"name": "slope", "loss": "validation_loss"}},
            {"name": "sgd"},
            "the data has no validation part",
        ),
    ],
)
def test_what_is_found_out_before_any_process_starts(
    protocol: dict[str, Any], optimizer: dict[str, Any], rule: str
) -> None:
    given = config(protocol=protocol, optimizer=optimizer)
    with pytest.raises(ConfigError, match=rule):
        check_switch(make_protocol(given), Pieces(given, Given()), num_validation=0)


def test_servers_save_nothing_and_hear_wishes_only_once_they_lead() -> None:
    given, members = config(), ["server 0", "worker 0", "worker 1"]
    assert savers(members, given) == ["worker 0", "worker 1"]
    assert listener(members, given, apart=False) == "worker 0"
    assert listener(members, given, apart=True) == "server 0"
    other = config(protocol={"name": "all_reduce"})
    assert savers(members, other) == members
    assert switch_summary(other, {}) == {}
    assert switch_summary(given, {"worker 0": {}})["switched_at"] is None


def test_fingerprints_tell_values_and_places_apart_but_not_rounding() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    same = fingerprint(values * (1 + 1e-7))
    assert agrees(fingerprint(values), same)
    assert not agrees(fingerprint(values), fingerprint(values.roll(1)))
    assert not agrees(fingerprint(values), fingerprint(values * 1.01))
    swapped = values.clone()
    swapped[[3, 4]] = values[[4, 3]]
    assert not agrees(fingerprint(values), fingerprint(swapped))


def test_evidence_is_that_of_all_replicas() -> None:
    slots = [torch.zeros(evidence.num_slots(3)) for _ in range(3)]
    for rank, own in enumerate(slots):
        loss = (2.0 * rank, float(rank + 1))
        evidence.write(own, rank, rank == 0, loss, (0.0, 0.0), 3.0, seconds=1.0 + rank)
    switch, seen = evidence.read(torch.stack(slots).sum(0), 4.0, 1.0, epoch=2, progress=0.5)
    assert switch
    assert seen["loss"] == pytest.approx(6.0 / 6.0)
    assert seen["grad_norm_sq"] == pytest.approx(3.0)
    assert seen["slowness"] == pytest.approx(3.0 / 2.0)
    assert seen["speedup"] == pytest.approx((4 / 1 + 4 / 2 + 4 / 3) / 3)
    assert (seen["epoch"], seen["progress"], seen["num_workers"]) == (2.0, 0.5, 3.0)
    assert "validation_loss" not in seen
