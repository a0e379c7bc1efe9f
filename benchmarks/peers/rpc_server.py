"""A parameter server by PyTorch RPC, as its tutorial has it (``python -m ...rpc_server``)."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from argparse import Namespace
from collections.abc import Sequence

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import Tensor, nn

from benchmarks.peers.served import batch, build, parser, report, seconds_of

_LOCK = threading.Lock()
_SERVER: list[tuple[nn.Sequential, torch.optim.Optimizer]] = []


def push_and_pull(gradients: list[Tensor], hidden: int, seed: int) -> list[Tensor]:
    """Apply gradients; return the parameters. Runs on the server."""
    with _LOCK:
        if not _SERVER:
            model = build(hidden, seed)
            _SERVER.append((model, torch.optim.SGD(model.parameters(), lr=0.01)))
        model, optimizer = _SERVER[0]
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]


def _local_rank(rank: int, given: Namespace, port: int, found: mp.SimpleQueue) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    seconds = _rank(rank, given)
    if rank:
        found.put(seconds)


def _rank(rank: int, given: Namespace) -> float:
    """Serve as rank 0, else work; return the seconds of the timed updates."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"]
    seconds = 0.0
    # pinned to sockets, as between machines: else it finds shared memory, also between the hosts
    # of a network lab
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=4, rpc_timeout=120, _transports=["uv"], _channels=["basic"]
    )
    name = "server" if rank == 0 else f"worker{rank}"
    rpc.init_rpc(name, rank=rank, world_size=given.workers + 1, rpc_backend_options=options)
    if rank:
        model, (inputs, targets) = build(given.hidden, given.seed), batch(rank)
        parameters, loss_of = list(model.parameters()), nn.CrossEntropyLoss()

        def step() -> None:
            if not given.fixed_gradient or parameters[0].grad is None:
                model.zero_grad()
                loss_of(model(inputs), targets).backward()
            gradients = [parameter.grad for parameter in parameters]
            pulled = rpc.rpc_sync("server", push_and_pull, (gradients, given.hidden, given.seed))
            with torch.no_grad():
                for parameter, value in zip(parameters, pulled, strict=True):
                    parameter.copy_(value)

        seconds = seconds_of(step, given.warmup, given.updates)
    rpc.shutdown()
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run server and workers to the end; print the JSON line.

    With ``--one-rank`` run the rank that the environment names, and print its seconds instead.
    """
    arguments = parser("a parameter server by PyTorch RPC")
    arguments.add_argument("--one-rank", action="store_true", help="RANK, among hosts")
    given = arguments.parse_args(argv)
    if given.one_rank:
        print(_rank(int(os.environ["RANK"]), given), flush=True)
        return 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_local_rank, (given, port, found), nprocs=given.workers + 1)
    report([found.get() for _ in range(given.workers)], given.updates)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
