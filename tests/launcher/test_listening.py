import os
import socket

import pytest

from launcher.errors import LauncherError
from launcher.listening import PortTaken, check_port_free, find_listener


def test_a_taken_port_names_its_holder_and_the_variable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        with pytest.raises(PortTaken) as caught:
            check_port_free("127.0.0.1", port, purpose="console", variable="SLUICE_WEB_PORT")

    assert caught.value.details == {"port": port, "pid": os.getpid()}
    assert "SLUICE_WEB_PORT" in caught.value.message
    assert str(os.getpid()) in caught.value.message


def test_a_free_port_passes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    check_port_free("127.0.0.1", port, purpose="console", variable="SLUICE_WEB_PORT")
    assert find_listener(port) is None


def test_an_address_of_another_host_is_explained() -> None:
    with pytest.raises(LauncherError, match="SLUICE_BIND"):
        check_port_free("192.0.2.1", 8000, purpose="gateway", variable="SLUICE_GATEWAY_PORT")
