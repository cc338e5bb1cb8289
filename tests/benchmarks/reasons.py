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
_FIXED = "the way through envelope and pointer costs some 70 to 100 us of Python, whatever the size"
_SDK = "boto3 takes more than 1 ms of CPU for any request, and the check takes what its own row says"
_GIL = (
    "our some 100 Python calls for each object (key, pointer, check, events) run one at a time: obstore itself, called "
    "by the same threads with no check, made 2.4 times as many"
)
_MEMORY = "the check reads each byte once more, and the memory here gives little more than the copy itself takes"

_TURNS = "some ten Python calls more for each message: what is it, how large, and who hears when nothing is heard"

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
    "s3-put-64": _SDK,
    "s3-put-256": _SDK,
    "s3-get-64": _SDK,
    "s3-get-256": _SDK,
    "s3-multipart-256": _SDK,
    "s3-boto3-put-64": "boto3's own copies cost less where memory is fast; ours is bound by the line",
    "s3-boto3-upload-64": "boto3's own copies cost less where memory is fast; ours is bound by the line",
    "s3-many-put": _GIL,
    "s3-many-get": _GIL,
    "check-redis-write": _MEMORY,
    "check-file-read-into": _MEMORY,
    "check-s3-put": _MEMORY,
    "pulsar-send-1k": _TURNS,
    "pulsar-send-64k": _TURNS,
    "pulsar-receive-1k": _TURNS,
    "pulsar-receive-64k": _TURNS,
    "pulsar-memory-interleaved": "beside the bound there are the client's queue and the payload that was handed out",
    "pulsar-memory-receive-chunks": "all chunks and the payload that they are joined to, and the client's queue",
    "pulsar-chunks-20": "broker, bookie, sender and receiver share two cores: both ways are bound by the broker",
    "path-64k": _FIXED,
    "path-1024k": _FIXED,
}
