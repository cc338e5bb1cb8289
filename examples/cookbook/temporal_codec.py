"""Temporal: a payload codec keeps large arguments and results out of the workflow history.

    python examples/cookbook/temporal_codec.py

Needs temporalio, but no server: it converts values as a client and a worker do. Payloads are in the folder claims/.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import temporalio.converter
from temporalio.api.common.v1 import Payload

import claimcheck

stores = {"disk": {"type": "filesystem", "path": "claims", "create": True}}
cc = claimcheck.from_dict({"threshold_bytes": 200_000, "stores": stores})
ENCODING = b"binary/claimcheck"


async def encode(payload: Payload) -> Payload:
    whole = payload.SerializeToString()  # with its metadata
    async with cc.outbound(whole, destination="temporal") as out:
        [envelope] = out.envelopes
        out.sent()  # Temporal's client sends it later
    if envelope.kind is None:  # small
        return payload
    return Payload(metadata={"encoding": ENCODING}, data=envelope.data)


async def decode(payload: Payload) -> Payload:
    if payload.metadata.get("encoding") != ENCODING:
        return payload
    return Payload.FromString(await cc.aresolve(payload.data))


class ClaimCheckCodec(temporalio.converter.PayloadCodec):
    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [await encode(each) for each in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [await decode(each) for each in payloads]


converter = dataclasses.replace(temporalio.converter.default(), payload_codec=ClaimCheckCodec())


async def main() -> None:
    """Convert two values as ``Client.connect(..., data_converter=converter)`` would."""
    payloads = await converter.encode(["small", "x" * 3_000_000])
    for payload, value in zip(payloads, await converter.decode(payloads, [str, str]), strict=True):
        print(f"{payload.ByteSize()} bytes in the history, a string of {len(value):,}")


if __name__ == "__main__":
    asyncio.run(main())
