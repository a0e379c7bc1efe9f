"""Opens a process's link as the configuration asks."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

from freewheel.config import LOOPBACK, Config
from freewheel.errors import ConfigError
from freewheel.transport.base import COORDINATOR, Link
from freewheel.transport.local import LocalLink
from freewheel.transport.shaped import ShapedLink
from freewheel.transport.zeromq import ZmqLink

_SIOCGIFADDR = 0x8915


def open_link(name: str, run_id: bytes, config: Config) -> Link:
    """Return a bound link.

    Args:
        name: role and rank, or ``"coordinator"``.
        run_id: 8 bytes; messages of other runs are refused.
        config: ``[link]`` says where to bind and what network to imitate.

    Raises:
        ConfigError: an address beyond loopback without ``insecure``, or a port in use.
    """
    section = config.link
    link = LocalLink(name, run_id) if is_local(config) else _over_tcp(name, run_id, config)
    if not is_shaped(config):
        return link
    return ShapedLink(
        link,
        section.rate_mbit,
        section.delay_ms,
        jitter_ms=section.jitter_ms,
        seed=config.run.seed,
    )


def is_local(config: Config) -> bool:
    """Whether the processes of a run reach each other without TCP.

    Raises:
        ConfigError: that is asked for and cannot be had.

    Example:
        >>> from freewheel.config import parse_config
        >>> from freewheel.runtime.links import is_local
        >>> is_local(parse_config({"link": {"carrier": "zeromq"}}))
        False
    """
    section, can = config.link, sys.platform == "linux" and hasattr(os, "memfd_create")
    if section.carrier == "local" and not (can and section.bind == LOOPBACK):
        raise ConfigError(
            f'link.carrier = "local" is for processes of one Linux host, and link.bind is '
            f'{section.bind!r} on {sys.platform}; leave out link.bind, or use "zeromq"'
        )
    return can and section.carrier != "zeromq" and section.bind == LOOPBACK


def _over_tcp(name: str, run_id: bytes, config: Config) -> Link:
    section = config.link
    host, _, port = section.bind.removeprefix("tcp://").partition(":")
    host = address_of(host)
    # a port that is given is the coordinator's; the others take free ones
    bind = f"tcp://{host}:{port or '*'}" if name == COORDINATOR else f"tcp://{host}:*"
    return ZmqLink(name, run_id, bind=bind, insecure=section.insecure)


def is_shaped(config: Config) -> bool:
    """Whether the configuration asks for a slower network than there is."""
    section = config.link
    return section.rate_mbit is not None or section.delay_ms > 0 or section.jitter_ms > 0


def interface_of(config: Config) -> str:
    """Return the network interface of ``link.bind``, for carriers that want it by name."""
    host = config.link.bind.removeprefix("tcp://").partition(":")[0]
    return host if host in _interfaces() else "lo"


def address_of(host: str) -> str:
    """Return the IPv4 address of a network interface; anything else is returned as it is.

    Example:
        >>> from freewheel.runtime.links import address_of
        >>> address_of("lo"), address_of("127.0.0.1")
        ('127.0.0.1', '127.0.0.1')

    Raises:
        ConfigError: the interface has no address.
    """
    if host not in _interfaces():
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", host.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            raise ConfigError(
                f"link.bind names the interface {host!r}, which has no IPv4 address "
                f"({error.strerror}); give it one, or bind to an address"
            ) from error
    return socket.inet_ntoa(answer[20:24])


def _interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}
