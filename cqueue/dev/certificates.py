"""Certificates of a development cluster: an authority of its own, and what it signs.

OpenSSL's command makes them, because Python's library makes none. All files lie below the cluster's
directory, and their keys are readable by their owner only.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cqueue.dev.paths import AUTHORITY, CLIENT
from cqueue.errors import DevError

_KEY = "ca.key"
_DAYS = 3650
_CONFIG = (
    "[req]\ndistinguished_name = dn\nx509_extensions = ext\nprompt = no\n[dn]\nCN = {name}\n[ext]\n{ext}\n"
)
# What OpenSSL's strict checks, the default of Python 3.13, ask of either kind.
_SIGNS = (
    "basicConstraints = critical,CA:TRUE",
    "keyUsage = critical,keyCertSign,cRLSign",
    "subjectKeyIdentifier = hash",
)
_SIGNED = (
    "basicConstraints = critical,CA:FALSE",
    "subjectKeyIdentifier = hash",
    "authorityKeyIdentifier = keyid",
)


def make_authority(folder: Path) -> None:
    """Make an authority in `folder`, with a certificate for clients; nothing if it has one.

    Raises:
        DevError: OpenSSL 3 is not there, or failed.
    """
    if (folder / CLIENT).exists():  # written last
        return
    folder.mkdir(parents=True, exist_ok=True)
    _run("cqueue dev authority", _SIGNS, folder / _KEY, folder / AUTHORITY)
    issue(folder, folder / CLIENT, "cqueue dev client")


def issue(folder: Path, to: Path, name: str, alternatives: Sequence[str] = ()) -> None:
    """Write a key, and a certificate that the authority in `folder` has signed, into the file `to`.

    alternatives: what the certificate is good for, such as `IP:127.0.0.1` or `DNS:localhost`.

    Raises:
        DevError: as `make_authority`.
    """
    names = [f"subjectAltName = {','.join(alternatives)}"] if alternatives else []
    key, certificate = to.with_suffix(".key.new"), to.with_suffix(".crt.new")
    signer = ("-CA", str(folder / AUTHORITY), "-CAkey", str(folder / _KEY))
    _run(name, (*_SIGNED, *names), key, certificate, *signer)
    with key.open("a") as both:
        both.write(certificate.read_text())
    certificate.unlink()
    key.replace(to)


def _run(name: str, ext: Sequence[str], key: Path, certificate: Path, *signer: str) -> None:
    config = certificate.with_suffix(".cnf")
    config.write_text(_CONFIG.format(name=name, ext="\n".join(ext)))
    key.touch(mode=0o600)
    command = ["openssl", "req", "-x509", "-config", str(config), "-days", str(_DAYS), *signer, "-nodes"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(
            command, check=True, capture_output=True, env={**os.environ, "OPENSSL_CONF": os.devnull}
        )
    except (OSError, subprocess.CalledProcessError) as exc:
        said = exc.stderr.decode(errors="replace").strip() if hasattr(exc, "stderr") else str(exc)
        raise DevError(
            f"OpenSSL made no certificate: {said}. --tls needs OpenSSL 3 (apt install openssl)."
        ) from exc
    finally:
        config.unlink()
