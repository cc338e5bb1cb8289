"""The deletion of chunks that a stream no longer needs, without Spark: which are deleted, and what an error does."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import claimcheck
from claimcheck._wire.envelope import encode_literal
from claimcheck.errors import PayloadNotFoundError
from claimcheck.spark import _reassemble_stream
from claimcheck.spark._reassemble_stream import ChunkCleanup
from claimcheck.stores.base import Store


class PieceStore(Store):
    """A store of a third party: in pieces, and it cannot list them."""

    segment_bytes = 4

    def __init__(self) -> None:
        self.pieces: dict[str, bytes] = {}

    def _write(self, pointer, source):
        for number, piece in enumerate(source.pieces(4)):
            self.pieces[f"{pointer.key}-{number}"] = bytes(piece)

    def _read(self, pointer):
        for number in range(pointer.segments):
            if (piece := self.pieces.get(f"{pointer.key}-{number}")) is None:
                raise self.missing(pointer)
            yield piece

    def _delete(self, pointer):
        for number in range(pointer.segments):
            self.pieces.pop(f"{pointer.key}-{number}", None)


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch):
    monkeypatch.setattr(_reassemble_stream, "_logged", set())


def opened(options: dict[str, Any], **more: Any) -> claimcheck.ClaimCheck:
    return claimcheck.from_dict({"store": "chunks", "stores": {"chunks": options}, **more})


def write(cc: claimcheck.ClaimCheck, piece: bytes) -> tuple[Any, bytes]:
    pointer = cc.store("chunks").write(piece, destination=f"chunk-{uuid.uuid4()}")
    return pointer, cc.seal(pointer)


def clean(cc: claimcheck.ClaimCheck, *references: bytes) -> None:
    cleanup = ChunkCleanup(cc)
    cleanup.add(references)
    cleanup.finish()


def is_there(cc: claimcheck.ClaimCheck, pointer: Any) -> bool:
    try:
        return bool(cc.read(pointer))
    except PayloadNotFoundError:
        return False


@pytest.fixture(params=["filesystem", "third party", "redis", "redis v1", "s3"])
def options(request, tmp_path) -> dict[str, Any]:
    """The options of a store, in which payloads above 5 bytes have several segments if it has segments."""
    if request.param == "filesystem":
        return {"type": "filesystem", "path": str(tmp_path)}
    if request.param == "third party":
        return {"type": f"{__name__}:PieceStore"}
    if request.param.startswith("redis"):
        address = {"type": "redis", "url": request.getfixturevalue("redis_url"), "segment_bytes": 5}
        own = {"key_prefix": f"{uuid.uuid4()}:"} if request.param == "redis" else {"pointer_version": 1}
        return address | own
    server, bucket = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket")
    return {"type": "s3", "bucket": bucket, "endpoint_url": server.endpoint_url}


def test_the_released_chunks_are_deleted_and_nothing_else(options):
    with opened(options) as cc:
        released = [write(cc, b"one"), write(cc, b"of several segments")]
        kept, _ = write(cc, b"still waiting")
        references = [reference for _, reference in released]

        clean(cc, *references, references[0], encode_literal(b"a small chunk"))
        clean(cc, *references)  # of a micro-batch that is replayed

        assert [is_there(cc, pointer) for pointer, _ in released] == [False, False]
        assert cc.read(kept) == b"still waiting"
        if isinstance(store := cc.store("chunks"), PieceStore):
            assert len(store.pieces) == kept.segments


def test_many_are_deleted_while_the_task_runs(tmp_path):
    with opened({"type": "filesystem", "path": str(tmp_path)}) as cc:
        references, cleanup = [write(cc, b"p")[1] for _ in range(1_001)], ChunkCleanup(cc)
        cleanup.add(references[:999])
        assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1_001
        cleanup.add(references[999:1000])
        assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
        cleanup.add(references[1000:])
        cleanup.finish()

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), ConnectionError("refused")])
def test_a_store_that_deletes_nothing_is_logged_once(tmp_path, caplog, error):
    inner = {"type": "filesystem", "path": str(tmp_path)}
    with opened({"type": "claimcheck.testing:FaultyStore", "store": inner}) as cc:
        cc.store("chunks").fail("rollback", error=error)
        pointer, reference = write(cc, b"payload")

        clean(cc, reference)
        clean(cc, reference)

        assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
            "reassemble cannot delete chunks, which stay until they expire"
        ]
        assert cc.read(pointer) == b"payload"


def test_references_that_cannot_be_followed_keep_no_others(tmp_path, caplog):
    """A signing key was removed from the configuration, or the store, since the chunks were written."""
    stores = {name: {"type": "filesystem", "path": str(tmp_path / name), "create": True} for name in ("chunks", "old")}
    with claimcheck.from_dict({"store": "chunks", "stores": stores}) as before:
        gone = before.seal(before.store("old").write(b"payload"))
    with opened(stores["chunks"]) as cc:
        pointer, reference = write(cc, b"payload")

        clean(cc, gone, reference, reference[:-9] + b"?" * 9)

        assert not is_there(cc, pointer)
        assert len(caplog.records) == 2
