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
_FIXED = "the way through envelope and pointer costs some 40 to 50 us of Python, whatever the size"
_POINTER = (
    "the pointer is written as JSON, parsed and checked (some 17 us), and some 85 Python calls find arguments, make "
    "message and envelope, and record what became of the send"
)
_RECORD = "one or two Python calls, and for poll five calls of the record: value, error, topic, partition and offset"
_SDK = "boto3 takes more than 1 ms of CPU for any request, and the check takes what its own row says"
_GIL = (
    "our some 100 Python calls for each object (key, pointer, check, events) run one at a time: obstore itself, called "
    "by the same threads with no check, made 2.4 times as many"
)
_MEMORY = "the check reads each byte once more, and the memory here gives little more than the copy itself takes"

_TURNS = "some ten Python calls more for each message: what is it, how large, and who hears when nothing is heard"
_ASKED = (
    "some eight calls for each record: is it an event, how does it begin, of which partition is it; a loop that only "
    "polls does nothing else"
)
_WRITING = (
    "all but 1 ms is writing 20 MiB to Redis; a bare loop of SETs on a socket, with no library and no check, took 0.9 "
    "of that time"
)
_BROKER = "nine tenths of the time is waiting for the broker's answers; 0.80 to 1.69 in five runs, below 1 in four"
_TWO_CORES = (
    "broker, sender and receiver share two cores: both ways take some 90 ms of processor time in the broker; in the "
    "process, claimcheck takes 36 ms and the client's own chunking 29"
)
_COPIES = "the client copies each record, in 3 to 20 us; in rounds of 800 native differed from native by up to 4 us"
_SENDFILE = (
    "bare GETs of 20 MiB on a socket, with no library and no check, took as long as a whole record from the broker: "
    "8.6 and 8.4 ms in the best rounds, and the store 8.8 ms"
)
_ONE_EACH = (
    "each byte is copied once more and checked: a bare loop that does only this reached 0.76 of the rate of whole "
    "records, in a run in which claimcheck reached 0.69"
)
_LOCK = (
    "a program without Python that only sleeps is late by 4 to 7 ms, while the kernel runs broker and clients; the "
    "rest is waiting for the interpreter's lock, whose holder copies a chunk or waits for a core itself; joining "
    "chunks without the lock did not help"
)

_OUT_OF_SPARK = (
    "taking values out of Spark and dropping them was no more than 3.9 times as fast as that UDF; writing them by "
    "hand, with no check, 1.9 times"
)
_SMALL_JOB = "by a hair, with 512 payloads; 2.8 with 128 of them, where starting the job weighs more"
_OBJECTS = "each of some 2,000 payloads costs 50 to 100 us of Python for pointer, check and events, in both workers"
_SHUFFLE = (
    "Spark copies each byte many times (scan, rows, shuffle, Arrow, rows again), by hand as well: the JVM took 77% of "
    "the CPU of a warm job; ours reads heads, counts and compares, where by hand columns say it all"
)
_PLANNED = "the broker took 33 us of CPU for each entry, whoever read; two tasks share two cores with it"
_EACH_PARTITION = (
    "only the consumer of a single partition tells its end: 200 bare calls of `subscribe`, one for each partition, "
    "took 1.3 times as long as one for the whole topic"
)
_SEEK = (
    "without a subscription, the client finds a partition's end only by a seek, after which it waits 100 ms to connect "
    "again: a Reader for each partition by hand, in 200 threads, took 1.9 times as long as `subscribe`"
)

REASONS: dict[str, str] = {
    "spark-naive-1ms": _SMALL_JOB,
    "spark-hand-64k-5ms": _OBJECTS,
    "spark-offload": _OUT_OF_SPARK,
    "spark-reassemble": _SHUFFLE,
    "spark-reassemble-hand": _SHUFFLE,
    "spark-source-unbatched": _PLANNED,
    "spark-source-first": _EACH_PARTITION,
    "spark-source-batch": _SEEK,
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
    "redis-py-small-4k": "key, pointer, checks and verification take some 30 us of Python, whatever the size",
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
    "pulsar-chunks-20": _TWO_CORES,
    "kafka-poll-1k": _ASKED,
    "kafka-consume-1k": _ASKED,
    "kafka-added-produce-64k": _COPIES,
    "kafka-added-poll-64k": _COPIES,
    "kafka-added-consume-64k": _COPIES,
    "kafka-chunks-produce-20": _BROKER,
    "kafka-pointers-produce-20": _WRITING,
    "kafka-pointers-consume-20": _SENDFILE,
    "kafka-chunks-consume-20": _ONE_EACH,
    "kafka-chunks-consume-100": _ONE_EACH,
    "many-pause-kafka-chunks": _LOCK,
    "many-pause-pulsar-chunks": _LOCK,
    "path-64k": _FIXED,
    "path-1024k": _FIXED,
    "path-added-64k": _POINTER,
    "kafka-added-produce-1k": _RECORD,
    "kafka-added-poll-1k": _RECORD,
}
