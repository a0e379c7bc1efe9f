"""Addresses of links: written in one string, and kept to this machine unless told otherwise."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from freewheel.errors import ConfigError

_ADDRESS = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^:\[\]/,]+):(\*|\d+)(?:,(\d+))?")


class Endpoint(NamedTuple):
    """A host and two ports: control and bulk; 0 stands for any free one.

    Example:
        >>> from freewheel.transport.endpoints import Endpoint
        >>> Endpoint("127.0.0.1", 4000, 4001).address
        'tcp://127.0.0.1:4000,4001'
    """

    host: str
    control: int
    bulk: int

    @property
    def address(self) -> str:
        """Both endpoints in one string."""
        return f"tcp://{self.host}:{self.control},{self.bulk}"

    def url(self, port: int) -> str:
        """Return one endpoint as ZeroMQ writes it."""
        return f"tcp://{self.host}:{port or '*'}"


def parse(address: str) -> Endpoint:
    """Read ``tcp://HOST:CONTROL,BULK``; with one port P named, bulk is at P + 1.

    Raises:
        ConfigError: it is not of that form.

    Example:
        >>> from freewheel.transport.endpoints import parse
        >>> parse("tcp://127.0.0.1:*"), parse("tcp://localhost:4000")[1:]
        (Endpoint(host='127.0.0.1', control=0, bulk=0), (4000, 4001))
    """
    found = _ADDRESS.fullmatch(address)
    if not found:
        raise ConfigError(
            f"address {address!r} is not of the form tcp://HOST:PORT or tcp://HOST:PORT,PORT; "
            "for any free port on this machine write tcp://127.0.0.1:*"
        )
    host, control, bulk = found.groups()
    host = "127.0.0.1" if host == "localhost" else host
    if control == "*":
        return Endpoint(host, 0, 0)
    ports = int(control), int(bulk) if bulk else int(control) + 1
    if not all(0 < port < 65_536 for port in ports) or ports[0] == ports[1]:
        raise ConfigError(
            f"address {address!r} needs two different ports from 1 to 65535 (a single port P "
            "takes P + 1 for bulk too); choose a port from 1024 to 65534"
        )
    return Endpoint(host, *ports)


def check_loopback(endpoint: Endpoint, insecure: bool) -> None:
    """Refuse a host that other machines reach, as messages are neither encrypted nor signed.

    Raises:
        ConfigError: the host is not a loopback address, and ``insecure`` was not given.

    Example:
        >>> from freewheel.transport.endpoints import check_loopback, parse
        >>> check_loopback(parse("tcp://127.0.0.1:*"), insecure=False)
    """
    try:
        loopback = ipaddress.ip_address(endpoint.host.strip("[]")).is_loopback
    except ValueError:
        loopback = False
    if not loopback and not insecure:
        raise ConfigError(
            f"address {endpoint.address!r} is beyond this machine; without keys a link is allowed "
            "on loopback only, as anyone on the network could read and write its messages; use "
            "tcp://127.0.0.1:*, or pass --insecure (insecure=True) on a network you trust"
        )
