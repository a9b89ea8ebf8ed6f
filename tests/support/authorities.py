"""A certificate authority of a test, with its files in a folder."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import trustme


class Authority:
    """A certificate authority of the test, with its files in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.path = folder / f"{name}.pem"
        self.ca.cert_pem.write_to_path(str(self.path))

    def server(self, *names: str, expired: bool = False, asks_clients: bool = False) -> ssl.SSLContext:
        """How a server of these names presents itself."""
        not_after = datetime.now(UTC) - timedelta(days=1) if expired else None
        not_before = datetime.now(UTC) - timedelta(days=9)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*names, not_before=not_before, not_after=not_after).configure_cert(context)
        if asks_clients:
            context.verify_mode = ssl.CERT_REQUIRED
            self.ca.configure_trust(context)
        return context

    def grpc_server(self, *names: str, expired: bool = False, asks_clients: bool = False) -> grpc.ServerCredentials:
        """The same for a server of gRPC."""
        not_after = datetime.now(UTC) - timedelta(days=1) if expired else None
        issued = self.ca.issue_cert(*names, not_before=datetime.now(UTC) - timedelta(days=9), not_after=not_after)
        chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
        known = self.ca.cert_pem.bytes() if asks_clients else None
        return grpc.ssl_server_credentials([(issued.private_key_pem.bytes(), chain)], known, asks_clients)

    def client(self, name: str) -> tuple[str, str]:
        """Files of a client's certificate and its key."""
        issued = self.ca.issue_cert(f"{name}@client.example")
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return str(cert), str(key)
