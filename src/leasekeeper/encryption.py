"""Encrypts and decrypts stored secrets and snapshots: AES-256-GCM, a new nonce each time, the owner's name as
associated data.

Keys come from the settings: the first encrypts, all decrypt, so that keys can be rotated. The key's id is stored with
what it encrypted. Neither keys nor values show in a repr or a message. `cryptography` is imported when it is needed.
"""

import base64
import binascii
import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from leasekeeper.config import SecretConfig
from leasekeeper.core.secrets import LeaseSecret, SealedSecret, check_name, check_value
from leasekeeper.errors import InputError, SecretKeyMissing, SecretKeyWrong, SecretUnusable
from leasekeeper.secret_files import ALL_BUT_OWNER, read_secret_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX: Final = "lkey_"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
MAX_KEYS: Final = 8
_BOUND: Final = b"leasekeeper secret 1\0"
_BOUND_FILE: Final = b"leasekeeper file 1\0"
_KEY_ID: Final = b"leasekeeper key id\0"
_ID_LENGTH: Final = 12
SETTING: Final = "LEASEKEEPER_SECRET_KEY"


def new_key() -> str:
    """A new key, for LEASEKEEPER_SECRET_KEY."""
    return PREFIX + base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode()


def key_id_of(key: bytes) -> str:
    """The id of a key. It reveals nothing of the key."""
    return hashlib.sha256(_KEY_ID + key).hexdigest()[:_ID_LENGTH]


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys of this process by id, the current one first."""

    keys: dict[str, bytes] = field(repr=False)

    @property
    def current(self) -> str:
        return next(iter(self.keys))

    def seal(self, name: str, value: str) -> SealedSecret:
        """Encrypt a value with the current key."""
        check_name(name)
        check_value(value)
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + _cipher(self.keys[self.current]).encrypt(nonce, value.encode(), _BOUND + name.encode())
        return SealedSecret(name=name, key_id=self.current, sealed=base64.b64encode(sealed).decode())

    def open(self, secret: SealedSecret) -> str:
        """The value of a secret. Raises SecretKeyWrong if no key here decrypts it, or if it was changed since."""
        key = self.keys.get(secret.key_id)
        if key is None:
            raise SecretKeyWrong(
                f"secret {secret.name} was encrypted with key {secret.key_id}, which is not set here "
                f"(here: {', '.join(self.keys)}); add it to {SETTING} after the current one",
                secret=secret.name,
                key_id=secret.key_id,
            )
        cipher = _cipher(key)
        from cryptography.exceptions import InvalidTag

        try:
            data = base64.b64decode(secret.sealed, validate=True)
            return cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _BOUND + secret.name.encode()).decode()
        except (InvalidTag, binascii.Error, ValueError):
            raise SecretKeyWrong(
                f"secret {secret.name} cannot be decrypted: it was changed in the store since it was encrypted with "
                f"key {secret.key_id}; set it again",
                secret=secret.name,
                key_id=secret.key_id,
            ) from None

    def encrypt(self, key_id: str, nonce: bytes, data: bytes, bound: bytes) -> bytes:
        """Encrypt one part of a file. The caller never uses a nonce twice with one key."""
        return _cipher(self.keys[key_id]).encrypt(nonce, data, _BOUND_FILE + bound)

    def decrypt(self, key_id: str, nonce: bytes, data: bytes, bound: bytes) -> bytes:
        """Decrypt one part of a file. Raises SecretKeyWrong without its key, ValueError if it was changed."""
        key = self.keys.get(key_id)
        if key is None:
            raise SecretKeyWrong(
                f"a snapshot was encrypted with key {key_id}, which is not set here (here: {', '.join(self.keys)}); "
                f"add it to {SETTING} after the current one",
                key_id=key_id,
            )
        cipher = _cipher(key)
        from cryptography.exceptions import InvalidTag

        try:
            return cipher.decrypt(nonce, data, _BOUND_FILE + bound)
        except InvalidTag:
            raise ValueError("not what was encrypted") from None


def _cipher(key: bytes) -> "AESGCM":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise SecretUnusable("stored secrets need the extra leasekeeper[secrets] (package cryptography)") from None
    return AESGCM(key)


def opens_padded(key: bytes, iv: bytes, data: bytes) -> bool | None:
    """Whether AES-CBC with this key gives text with valid padding, as browsers encrypt cookies. None: unknown, since
    the package cryptography is not installed. Nothing of the text is returned.
    """
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        return None
    block = len(iv)
    if not data or len(data) % block:
        return False
    opening = Cipher(algorithms.AES(key), modes.CBC(iv)).decryptor()
    text = opening.update(data) + opening.finalize()
    padding = text[-1]
    return 1 <= padding <= block and text.endswith(bytes([padding]) * padding)


def read_keyring(config: SecretConfig) -> Keyring:
    """The keys that the settings name. Raises SecretKeyMissing if there is none, InputError for one that is wrong."""
    if config.keys and config.file:
        raise InputError(f"both {SETTING} and {SETTING}_FILE are set: set one of them")
    where = f"{SETTING}_FILE {config.file}" if config.file else SETTING
    text = read_secret_file(config.file, where, refuse=ALL_BUT_OWNER) if config.file else config.keys
    words = text.split()
    if not words:
        raise SecretKeyMissing(f"no key for stored secrets is set here: set {SETTING} or {SETTING}_FILE")
    if len(words) > MAX_KEYS:
        raise InputError(f"{where} has {len(words)} keys, at most {MAX_KEYS} are used at once")
    keys = [_key(where, number, word) for number, word in enumerate(words, 1)]
    return Keyring({key_id_of(key): key for key in keys})


def _key(where: str, number: int, word: str) -> bytes:
    wrong = InputError(f"key {number} of {where} must be written as {PREFIX} and the base64 of {KEY_BYTES} bytes")
    if not word.startswith(PREFIX):
        raise wrong
    try:
        key = base64.b64decode(word.removeprefix(PREFIX), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise wrong from None
    if len(key) != KEY_BYTES:
        raise wrong
    return key


def open_lease_secret(secret: LeaseSecret, config: SecretConfig) -> str:
    """The value of a secret that was handed to the holder of a lease."""
    if secret.value is not None:
        return secret.value
    if secret.sealed is None:
        raise SecretUnusable(f"secret {secret.name} came without a value", secret=secret.name)
    return read_keyring(config).open(secret.sealed)
