"""Making an object in one request: only if there is none, and verified by the server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from claimcheck.errors import KeyTakenError

from .s3_body import FRAMED_FROM_BYTES, FramedFile, NotFramedError, ViewFile
from .s3_errors import NOT_KNOWN, client_error, code_of, kind_of_code

__all__ = ["Creator"]

_log = logging.getLogger(__name__)


class Creator:
    """Makes objects, and remembers what the server proved to understand.

    Args:
        name: Gives the store's name, for errors.
        conditional: Have the server refuse to overwrite; turned off by itself where a server does not know how.
    """

    def __init__(self, name: Callable[[], str], *, conditional: bool) -> None:
        self._name = name
        self._conditional = conditional
        self._takes_frames: bool | None = None  # not known yet

    def put(self, put_object: Callable[..., Any], body: ViewFile) -> None:
        """Send a body, with its checksum.

        Args:
            put_object: Of the SDK, place and key given.
            body: Knows its checksum afterwards in any case.

        Raises:
            KeyTakenError: There is such an object already, which was left alone.
        """
        framed = self._takes_frames is not False and len(body) >= FRAMED_FROM_BYTES
        if framed and self._put_framed(put_object, body):
            return
        self.create(lambda **condition: put_object(Body=body, ChecksumCRC32=body.checksum, **condition))
        if framed:  # so that was what it refused
            self._forgo_frames()

    def create(self, call: Callable[..., Any]) -> Any:
        """Call what makes an object, on the condition that there is none, as far as the server knows conditions.

        Returns:
            The server's answer; ``None`` where it was lost, though it was heard.
        """
        if not self._conditional:
            return call()
        try:
            return call(IfNoneMatch="*")
        except client_error() as error:
            if code_of(error) in ("PreconditionFailed", "412"):
                return self._check_own(error)
            if code_of(error) not in NOT_KNOWN:
                raise
        answer = call()
        _log.warning("store %r: the server knows no If-None-Match; writing without", self._name())
        self._conditional = False
        return answer

    def _put_framed(self, put_object: Callable[..., Any], body: ViewFile) -> bool:
        """Send the checksum behind the body; whether the object is there then, one way or the other."""
        frames = FramedFile(body)
        try:
            answer = self.create(lambda **more: put_object(Body=frames, ChecksumAlgorithm="CRC32", **more))
        except (client_error(), NotFramedError) as error:
            if self._takes_frames or not _may_mean_frames(error):
                raise
            return False
        if self._takes_frames is None and (answer or {}).get("ChecksumCRC32") == body.checksum:
            self._takes_frames = True
        if not self._takes_frames:  # it may have stored the frames themselves, as an object that is ours to overwrite
            put_object(Body=body, ChecksumCRC32=body.checksum)
            self._forgo_frames()
        return True

    def _forgo_frames(self) -> None:
        _log.info("store %r: the server confirms no checksum that follows a body; it comes before now", self._name())
        self._takes_frames = False

    def _check_own(self, error: Any) -> None:
        """The SDK sent a request again whose answer was lost: what stands in the way is what we wrote ourselves."""
        if not error.response.get("ResponseMetadata", {}).get("RetryAttempts"):
            name = self._name()
            raise KeyTakenError(f"store {name!r}: the new key is in use already", store=name) from error


def _may_mean_frames(error: Any) -> bool:
    return isinstance(error, NotFramedError) or (
        kind_of_code(code_of(error)) is None and code_of(error) != "NoSuchBucket"
    )
