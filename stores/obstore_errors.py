"""What obstore's errors mean. They tell in their text what the service said, and what became of the line."""

from __future__ import annotations

import re

from claimcheck.errors import KeyTakenError, PayloadNotFoundError, StoreError, StoreUnavailableError

from .s3_errors import NOT_ADMITTED, NOT_KNOWN, kind_of_code

__all__ = ["knows_no_conditions", "kind_of_error", "never_arrived", "was_sent_again", "words_of"]

# Names of classes, or what stands in the text, to our error; the first that is found decides.
_KINDS: tuple[tuple[str, type[StoreError]], ...] = (
    ("AlreadyExistsError", KeyTakenError),
    ("PermissionDeniedError", StoreError),
    ("UnauthenticatedError", StoreError),
    ("//169.254.", StoreError),  # where machines of a cloud find their credentials: there are none anywhere else
    ("HTTP error", StoreUnavailableError),
    ("NoContentRange", StoreUnavailableError),  # of the rest, after the line was cut
)
_GONE = {None, "404", "NoSuchKey", "NotFound", "BlobNotFound"}  # and not a bucket, or whoever asks
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_XML = re.compile(r"<\?xml|<Error")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_STATUS = re.compile(r"status code: (\d{3})")
_NEVER_CONNECTED = re.compile(r"\bkind: Connect\b")
_RETRIES = re.compile(r"after ([1-9]\d*) retries")


def kind_of_error(error: Exception) -> type[StoreError] | None:
    """Say which of our errors one of obstore's is; ``None`` for no idea."""
    code, text = _code_of(error), f"{type(error).__name__}: {error}"
    if isinstance(error, FileNotFoundError):
        return PayloadNotFoundError if code in _GONE else StoreError
    for mark, kind in _KINDS:
        if mark in text:
            return kind
    return kind_of_code(code or "")


def words_of(error: Exception) -> str:
    """What one of obstore's errors says, without the XML and the inner life of its libraries around it."""
    text = str(error)
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code is not None:
        head = _XML.split(text)[0].strip(" :")
        return ": ".join(filter(None, (head, code[1], message and message[1])))
    if "//169.254." in text:
        return "there are no credentials in the environment, nor a service of a cloud that has some"
    return text.partition("\n")[0]


def never_arrived(error: BaseException | None) -> bool:
    """Whether nothing can have come of the request that ended so."""
    return _code_of(error) in NOT_ADMITTED or _NEVER_CONNECTED.search(str(error)) is not None


def knows_no_conditions(error: Exception) -> bool:
    """Whether a server says that it does not know the condition that a request came with."""
    return _code_of(error) in NOT_KNOWN or type(error).__name__ == "NotSupportedError"


def was_sent_again(error: Exception) -> bool:
    """Whether a request was repeated before it ended so: the first one may have been heard."""
    return _RETRIES.search(str(error)) is not None


def _code_of(error: BaseException | None) -> str | None:
    """The service's own word, else the HTTP status, if there was an answer at all."""
    found = _CODE.search(str(error)) or _STATUS.search(str(error))
    return found[1] if found else None
