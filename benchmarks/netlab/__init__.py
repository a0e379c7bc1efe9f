"""Hosts on a slow network, on one Linux machine: namespaces joined by links that the kernel shapes.

Used wherever freewheel is compared with a peer over a network: both run in the same hosts, and
bytes are read off the interfaces. Needs root, iproute2, and a kernel with tbf.
"""

from benchmarks.netlab.lab import Counters, Netlab, NetlabError, unavailable

__all__ = ["Counters", "Netlab", "NetlabError", "unavailable"]
