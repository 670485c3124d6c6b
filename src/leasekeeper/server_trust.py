"""A client's side of trust: the token that it sends, and the certificates that it accepts."""

import ssl
from pathlib import Path

from leasekeeper.errors import InputError, Problem


def authorization(token: str) -> dict[str, str]:
    """The header with the token; none without a token, so that the server says what is missing.

    Raises InputError for text that a header cannot contain: the HTTP client would raise later, with the token in its
    message.
    """
    if not all("!" <= character <= "~" for character in token):
        raise InputError(
            "the token cannot be used",
            [Problem("token", "must be printable characters without spaces; check what it was copied from")],
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def trusted(url: str, ca: str) -> ssl.SSLContext | bool:
    """What an HTTP client checks certificates with. Raises InputError if the file cannot be used."""
    if not url.startswith("https:"):
        return False  # certificates take long to load, and plain HTTP has none
    if not ca:
        return True
    try:
        return ssl.create_default_context(cafile=Path(ca).expanduser())
    except (OSError, RuntimeError) as error:
        raise InputError(
            "the server's certificate cannot be checked",
            [Problem("store_ca", f"{ca} is not a file of certificates in PEM: {error}")],
        ) from None


def tls_fault(error: BaseException | None) -> str | None:
    """The TLS error that made a call fail; None if it was another error. A retry does not help."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate was not accepted ({error.verify_message})"
        if isinstance(error, ssl.SSLError):
            return f"the TLS handshake failed ({error.reason})"
        error = error.__cause__ or error.__context__
    return None
