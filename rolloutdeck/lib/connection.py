"""HTTP connections whose name lookup ends in time. `timeout` of Python's own ones does not cover it."""

from __future__ import annotations

import contextlib
import errno
import http.client
import ipaddress
import socket
import threading


class PlainConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        """Looks up the host and connects. Raises OSError; TimeoutError if the lookup or an address takes too long."""
        self.sock = _connect_to_host(self.host, self.port, self.timeout or 0.0)
        with contextlib.suppress(OSError):  # as http.client: only a delay is lost without it
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class EncryptedConnection(http.client.HTTPSConnection, PlainConnection):
    """Connects as PlainConnection does, and HTTPSConnection encrypts: it calls `super().connect()` first."""


def look_up_host(host: str, port: int, timeout: float) -> list[tuple[str, int]]:
    """Returns the addresses of a host in the order to try.

    The resolver has no time limit that a caller can set, so a thread asks it. A thread that is still waiting ends with
    the resolver's own limits. Raises socket.gaierror, UnicodeError for an invalid name, and TimeoutError.
    """
    if _is_ip_address(host):
        return [(host, port)]
    results: list[list[tuple[str, int]] | OSError | UnicodeError] = []

    def ask_resolver() -> None:
        try:
            results.append(_ask_resolver(host, port))
        except (OSError, UnicodeError) as error:
            results.append(error)

    thread = threading.Thread(target=ask_resolver, name="rolloutdeck-lookup", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can start: the interpreter shuts down, or a limit is reached
        ask_resolver()
    else:
        thread.join(timeout)
    if not results:
        raise TimeoutError(f"looking up the name {host} takes too long")
    (result,) = results
    if isinstance(result, Exception):
        raise result
    return result


def _connect_to_host(host: str, port: int, timeout: float) -> socket.socket:
    """Returns a socket that is connected to the first address that answers. `timeout` is in seconds for each one."""
    failure: OSError | None = None
    for address in look_up_host(host, port, timeout):
        try:
            return socket.create_connection(address, timeout)
        except OSError as error:
            failure = failure or error
    raise failure or OSError(errno.EADDRNOTAVAIL, f"the name {host} has no address")


def _ask_resolver(host: str, port: int) -> list[tuple[str, int]]:
    found = []
    for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        scope = address[3] if len(address) == 4 else 0  # the interface of a link-local IPv6 address
        found.append((f"{address[0]}%{scope}" if scope else str(address[0]), port))
    return found


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
