"""Names of Services for pods of the real node: `NAME.NAMESPACE.svc.cluster.local` is its address; there are no others.

python -m cluster.names KUBECONFIG ADDRESS
"""

from __future__ import annotations

import base64
import json
import socketserver
import ssl
import struct
import sys
import tempfile
import urllib.error
import urllib.request
from ipaddress import IPv4Address
from pathlib import Path

DOMAIN = "svc.cluster.local"
_HEADER = struct.Struct(">6H")  # id, flags, questions, answers, authorities, additional
_IPV4, _ANSWER, _AUTHORITATIVE, _NO_SUCH_NAME = 1, 0x8000, 0x0400, 3
_VALID_S = 1


class Services:
    """Asks the API server each time: a Service is known as soon as it is made."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = str(cluster["server"])
        self._tls = ssl.create_default_context(cadata=_decoded(cluster["certificate-authority-data"]))
        with tempfile.NamedTemporaryFile("w") as file:  # the library takes certificates from files alone
            file.write(_decoded(user["client-certificate-data"]) + _decoded(user["client-key-data"]))
            file.flush()
            self._tls.load_cert_chain(file.name)

    def address_of(self, name: str) -> IPv4Address | None:
        """Of a full name, without its last dot; None if no Service has it, or only its pods have addresses."""
        service, _, rest = name.partition(".")
        namespace, _, domain = rest.partition(".")
        if domain != DOMAIN:
            return None
        request = f"{self._server}/api/v1/namespaces/{namespace}/services/{service}"
        try:
            with urllib.request.urlopen(request, timeout=10, context=self._tls) as answer:
                found = str(json.load(answer)["spec"].get("clusterIP", "None"))
        except urllib.error.HTTPError:
            return None
        return None if found == "None" else IPv4Address(found)


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


def answer(query: bytes, services: Services) -> bytes:
    """To one question. Raises if it is none."""
    number, flags, *_ = _HEADER.unpack_from(query)
    name, end = _name_at(query, _HEADER.size)
    (kind,) = struct.unpack_from(">H", query, end)
    question = query[_HEADER.size : end + 4]
    address = services.address_of(name.lower())
    code = _ANSWER | _AUTHORITATIVE | flags & 0x0100 | (0 if address else _NO_SUCH_NAME)
    found = address.packed if address and kind == _IPV4 else b""
    # the record's name is a pointer to the question's
    record = struct.pack(">HHHIH", 0xC000 | _HEADER.size, _IPV4, 1, _VALID_S, len(found)) + found if found else b""
    return _HEADER.pack(number, code, 1, int(bool(found)), 0, 0) + question + record


def _name_at(message: bytes, at: int) -> tuple[str, int]:
    """A name, and where it ends."""
    labels = []
    while length := message[at]:
        labels.append(message[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels), at + 1


class _Server(socketserver.ThreadingUDPServer):
    daemon_threads = True


def main(arguments: list[str]) -> None:
    kubeconfig, address = arguments
    services = Services(Path(kubeconfig))

    class Handler(socketserver.DatagramRequestHandler):
        def handle(self) -> None:
            self.wfile.write(answer(self.rfile.read(), services))

    with _Server((address, 53), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
