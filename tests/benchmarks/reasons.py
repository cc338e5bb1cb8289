"""Why a target is missed, by the key of its row; printed beside it. Filled in by whoever looked into it."""

_SOCKET_ALONE = "a raw socket alone takes some 150 ms/GB of the client on the machine where this was looked into"
_SERVER_PARSES = (
    "the server parses, allocates and answers each segment, which the sink does not: bare SETs on a socket, with no "
    "library and no check, reached 0.77 to 0.84 of it at 16 MiB"
)
_SERVER_COPIES = (
    "the server copies each reply before it sends it: bare GETs on a socket, with no library and no check, reached "
    "0.75 of it at 64 MiB and 0.67 at 1 MiB"
)
_FIXED = "the way through envelope and pointer costs some 70 us of Python, whatever the size"

REASONS: dict[str, str] = {
    "redis-write-1": _SERVER_PARSES,
    "redis-write-16": _SERVER_PARSES,
    "redis-write-64": _SERVER_PARSES,
    "redis-write-cpu": _SOCKET_ALONE,
    "redis-stream-cpu": _SOCKET_ALONE,
    "redis-read-into-1": _SERVER_COPIES,
    "redis-read-into-16": _SERVER_COPIES,
    "redis-read-into-64": _SERVER_COPIES,
    "redis-read-into-256": _SERVER_COPIES,
    "redis-read-1": _SERVER_COPIES,
    "redis-read-16": _SERVER_COPIES,
    "redis-py-set-16": "hiredis' copies of 16 MiB cost less where memory is fast; ours is bound by the server",
    "redis-py-stream-64": "redis-py's GET gains from fast memory; ours is bound by the server",
    "file-write-64": "reserving the space gains 1.04 to 1.14 on this kernel's ext4, and the check takes that back",
    "path-64k": _FIXED,
    "path-1024k": _FIXED,
}
