# SPDX-License-Identifier: PostgreSQL
"""A man in the middle before PostgreSQL, on a free port of loopback: with TLS and a certificate of his choice, or one who says that there is no TLS."""

import socket
import ssl
import struct
import threading

from harness.broker import certificates
from harness.postgres import PATIENCE_S, PORT, private_directory

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
GSS_REQUEST = struct.pack("!ii", 8, 80877104)


class Front:
    """certificate: the name of a pair of files in `directory` (harness.broker.certificates); None: he has no TLS. heard: what clients sent
    in clear besides asking for TLS."""

    def __init__(self, server, directory, certificate=None):
        self.target = str(server.directory / f".s.PGSQL.{PORT}")
        self.context = None
        self.heard, self.asked = b"", threading.Event()
        if certificate:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(directory / f"{certificate}.pem", directory / f"{certificate}.key")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = [self.listener]
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self.sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()
        self.thread.join(PATIENCE_S)

    def _accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            self.sockets.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        try:
            while True:
                first = client.recv(8)
                if first not in (SSL_REQUEST, GSS_REQUEST):
                    self.heard += first
                    break
                self.asked.set()
                if first == SSL_REQUEST and self.context:
                    client.sendall(b"S")
                    client = self.context.wrap_socket(client, server_side=True)
                    self.sockets.append(client)
                    first = b""
                    break
                client.sendall(b"N")
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sockets.append(server)
            server.connect(self.target)
            server.sendall(first)
            threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
            self._pump(client, server)
        except OSError:
            client.close()

    @staticmethod
    def _pump(source, sink):
        try:
            while piece := source.recv(65536):
                sink.sendall(piece)
        except OSError:
            pass
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def authorities():
    """A directory that everybody can read, with certificates."""
    directory = private_directory("pgonce-tls-")
    certificates(directory)
    for path in directory.iterdir():
        path.chmod(0o644)
    directory.chmod(0o755)
    return directory
