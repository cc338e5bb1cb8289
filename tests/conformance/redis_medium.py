"""The hooks of the store kit for Redis, for a fake and for a real server."""

from claimcheck.testing import StoreConformance


class RedisConformance(StoreConformance):
    def peek(self, pointer):
        found = [self.redis.get(f"{pointer.key}-{i}") for i in range(pointer.segments)]
        return b"".join(found) if all(part is not None for part in found) else next(filter(None, found), None)

    def damage(self, pointer, payload):
        piece = pointer.segment_bytes or pointer.size
        for i in range(pointer.segments):
            last = i == pointer.segments - 1
            part = (payload or b"")[i * piece : None if last else (i + 1) * piece]
            if part or (payload is not None and i == 0):
                self.redis.set(f"{pointer.key}-{i}", part, px=60_000)
            else:
                self.redis.delete(f"{pointer.key}-{i}")
