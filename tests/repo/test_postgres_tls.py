"""The TLS of the test PostgreSQL: it accepts clients that trust it, and no plain connections."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import trustme

from tests.postgres_server import Server, connect
from tests.postgres_tls import TlsFront

pytestmark = pytest.mark.postgres


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    # not the run's server, which may be one that wants TLS itself
    with Server() as server:
        yield server.url()


@pytest.fixture
def front(server_url: str, authority: trustme.CA) -> Iterator[TlsFront]:
    with TlsFront(server_url, authority) as front:
        yield front


def root_file(authority: trustme.CA, folder: Path) -> Path:
    path = folder / "root.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def test_a_connection_that_trusts_the_authority_is_encrypted_and_carries_much(
    front: TlsFront, authority: trustme.CA, tmp_path: Path
) -> None:
    root = root_file(authority, tmp_path)
    with connect(f"{front.url}?sslmode=verify-full&sslrootcert={root}") as connection:
        assert connection.pgconn.ssl_in_use
        much = "x" * 1_000_000
        assert connection.execute("SELECT %s::text", [much]).fetchone() == (much,)


def test_a_connection_that_trusts_another_authority_refuses_the_server(front: TlsFront, tmp_path: Path) -> None:
    root = root_file(trustme.CA(), tmp_path)
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        connect(f"{front.url}?sslmode=verify-full&sslrootcert={root}")


def test_a_connection_for_another_name_refuses_the_server(
    front: TlsFront, authority: trustme.CA, tmp_path: Path
) -> None:
    url = front.url.replace("localhost", "127.0.0.1")
    with pytest.raises(psycopg.OperationalError, match="does not match host name"):
        connect(f"{url}?sslmode=verify-full&sslrootcert={root_file(authority, tmp_path)}")


def test_a_connection_in_plain_is_refused(front: TlsFront) -> None:
    with pytest.raises(psycopg.OperationalError, match="without encryption"):
        connect(f"{front.url}?sslmode=disable")
