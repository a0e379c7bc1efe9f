"""What no parameter server can beat: the bytes of push and pull through plain sockets, and copies.

One process each for worker and server. In every round the worker copies its gradients into one
buffer and sends it; the server adds it to its parameters, copies them, and sends the copy; the
worker copies what it got into its parameters.
"""

from __future__ import annotations

import multiprocessing as mp
import socket
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.peers.served import build, parser, report, seconds_of


def _serve(listener: socket.socket, size: int, rounds: int) -> None:
    torch.set_num_threads(1)
    peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    parameters, pushed, copy = torch.zeros(size), torch.zeros(size), torch.zeros(size)
    for _ in range(rounds):
        _receive(peer, pushed)
        parameters.add_(pushed, alpha=-0.01)
        copy.copy_(parameters)
        peer.sendall(copy.numpy().data.cast("B"))
    peer.close()


def _receive(peer: socket.socket, into: Tensor) -> None:
    view = into.numpy().data.cast("B")
    done = 0
    while done < len(view):
        done += peer.recv_into(view[done:])


def main(argv: Sequence[str] | None = None) -> int:
    """Run both to the end; print the JSON line."""
    given = parser("the bound of a parameter server").parse_args(argv)
    torch.set_num_threads(1)
    parameters = [p.detach() for p in build(given.hidden, given.seed).parameters()]
    gradients = [torch.ones_like(p) for p in parameters]
    size = sum(p.numel() for p in parameters)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        rounds = given.warmup + given.updates
        server = mp.get_context("fork").Process(target=_serve, args=(listener, size, rounds))
        server.start()
        peer = socket.create_connection(listener.getsockname())
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        out, into = torch.zeros(size), torch.zeros(size)
        places = [p.view(-1) for p in parameters]

        def step() -> None:
            torch.cat([g.view(-1) for g in gradients], out=out)
            peer.sendall(out.numpy().data.cast("B"))
            _receive(peer, into)
            torch._foreach_copy_(places, list(into.split([p.numel() for p in parameters])))

        report([seconds_of(step, given.warmup, given.updates)], given.updates)
        server.join()
        peer.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
