"""Certificates and kubeconfigs of a test cluster: one authority that lives as long as the cluster, elliptic keys, two days."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = dt.timedelta(days=2)
_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Authority:
    """Signs with `ca.key`; everything is written below `folder`, private keys readable by the owner alone."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("hotdesk-test-ca", "")
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        made = _builder(self._name, self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).add_extension(usage, critical=True)
        self.certificate = self._write("ca", self._key, made.sign(self._key, hashes.SHA256()))

    def issue(self, file: str, user: str, *, group: str = "", addresses: tuple[str, ...] = ()) -> None:
        """`FILE.crt` and `FILE.key`, for client and server use. `addresses`: names and IPs the server is reached by."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        made = _builder(_name(user, group), self._name, key.public_key()).add_extension(usage, critical=False)
        if addresses:
            made = made.add_extension(x509.SubjectAlternativeName([_address(text) for text in addresses]), critical=False)
        self._write(file, key, made.sign(self._key, hashes.SHA256()))

    def service_account_keys(self) -> None:
        """`sa.key` signs service accounts' tokens, `sa.pub` checks them."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        _private(self.folder / "sa.key", _pem(key))
        shape = serialization.PublicFormat.SubjectPublicKeyInfo
        (self.folder / "sa.pub").write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, shape))

    def kubeconfig(self, path: Path, server: str, file: str) -> Path:
        """A kubeconfig (JSON is YAML) that speaks to `server` with the certificate `file`."""
        user = {"client-certificate-data": self._base64(f"{file}.crt"), "client-key-data": self._base64(f"{file}.key")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "hotdesk-test",
            "contexts": [{"name": "hotdesk-test", "context": {"cluster": "hotdesk-test", "user": file}}],
            "clusters": [{"name": "hotdesk-test", "cluster": {"server": server, "certificate-authority-data": self._base64("ca.crt")}}],
            "users": [{"name": file, "user": user}],
        }
        _private(path, json.dumps(config).encode())
        return path

    def _base64(self, file: str) -> str:
        return base64.b64encode((self.folder / file).read_bytes()).decode()

    def _write(self, file: str, key: _Key, certificate: x509.Certificate) -> Path:
        _private(self.folder / f"{file}.key", _pem(key))
        path = self.folder / f"{file}.crt"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    made = made.serial_number(x509.random_serial_number())
    return made.not_valid_before(now - dt.timedelta(minutes=5)).not_valid_after(now + _LIFE)


def _name(user: str, group: str) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _address(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(key: _Key) -> bytes:
    shape = (
        serialization.PrivateFormat.PKCS8 if isinstance(key, ec.EllipticCurvePrivateKey) else serialization.PrivateFormat.TraditionalOpenSSL
    )
    return key.private_bytes(serialization.Encoding.PEM, shape, serialization.NoEncryption())


def _private(path: Path, text: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(text)
