"""The demo: what it takes for input, what it says about mismatches, and once from end to end on a small folder."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from claimcheck._demo import main, read, send
from claimcheck._demo.main import Run, Watch, count, mega
from claimcheck._demo.read import ReadPayload, ReadResult, _explained
from claimcheck._demo.send import (
    PARTITIONS,
    TOPIC,
    DemoError,
    FileCounter,
    Folder,
    Order,
    Sent,
    find,
    produce,
    read_file,
)
from claimcheck.errors import MissingDependencyError
from claimcheck.transports.local import LocalBroker

PROGRAM = """
import sys
from pathlib import Path
from rich.console import Console
from claimcheck._demo import run
if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), console=Console(width=90)))
"""

INTERRUPTED = f"""
import signal
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: sys.exit(128 + number))
{PROGRAM}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A handful of files, each with something about it."""
    root = tmp_path / "input"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").touch()
    (root / "three MiB").write_bytes(random.Random(1).randbytes(3 << 20))
    (root / "lookalike").write_bytes(b"PRF_wdkafcli_header_\x02\x02" + bytes(100))
    (root / "deep" / "er" / "große.txt").write_text("text " * 100)
    with zipfile.ZipFile(root / "deep" / "some.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/", b"")
        archive.writestr("a/one", bytes(10_000))
        archive.writestr("two", random.Random(2).randbytes(1_500_000))
    return root


# From end to end ------------------------------------------------------------------------------------------------


def test_every_file_comes_back_from_both_strategies(folder, tmp_path, worker_env):
    (tmp_path / "here").mkdir()
    (tmp_path / "scratch").mkdir()
    (folder / "dangling").symlink_to(tmp_path / "nothing")
    environment = os.environ | worker_env | {"TMPDIR": str(tmp_path / "scratch")}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        cwd=tmp_path / "here",
        env=environment,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""  # not a word of Spark's
    rows = {title: cells for line in done.stdout.splitlines() for title, *cells in [re.split(r" {2,}", line.strip())]}
    assert rows["files"] == ["5", "5"]
    assert rows["pointers to the store"] == ["2", "-"]
    assert rows["chunks"] == ["-", "6"]
    assert rows["escaped literals"] == ["1", "1"]
    assert rows["archives"] == ["1", "1"]
    assert rows["entries in them"] == ["2", "2"]
    assert rows["mismatches"] == ["0", "0"]
    assert "dangling: a broken link" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 90
    assert os.listdir(tmp_path / "here") == []
    assert not list((tmp_path / "scratch").glob("claimcheck-*"))


@pytest.mark.parametrize(
    ("number", "moment", "more"),
    [
        (signal.SIGINT, "Starting Spark", 0.0),  # at once
        (signal.SIGINT, "Starting Spark", 1.5),  # a JVM is there, and not ready
        (signal.SIGTERM, "claims/*", 0.0),  # the producer is at work
        (signal.SIGTERM, "external  write", 0.0),  # Spark is at work
    ],
)
def test_an_interrupted_demo_leaves_no_process_and_no_file(folder, tmp_path, worker_env, number, moment, more):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for name in range(200):  # enough to be at work for a while
        (folder / str(name)).write_bytes(bytes(2 << 20))
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(folder)],
        env=os.environ | worker_env | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        text=True,
    )
    if "*" in moment:
        until(lambda: list(scratch.glob(f"claimcheck-demo-*/external/{moment}")))
    else:
        next(line for line in process.stdout if moment in line)
    time.sleep(more)
    process.send_signal(number)
    process.communicate(timeout=100)  # ends when nobody has the pipe any more: Spark and the producer are gone
    assert process.returncode == 128 + number
    assert not list(scratch.glob("claimcheck-*"))


def until(done: Callable[[], object]) -> None:
    for _ in range(6000):
        if done():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to that")


# The input ------------------------------------------------------------------------------------------------------


def test_all_files_below_the_folder_sorted_by_path(folder):
    found = find(folder)

    assert list(found.sizes) == ["deep/er/große.txt", "deep/some.zip", "empty", "lookalike", "three MiB"]
    assert found.sizes["three MiB"] == 3 << 20
    assert found.skipped == {}


def test_folders_that_cannot_be_used(tmp_path, folder):
    (tmp_path / "void" / "void").mkdir(parents=True)

    for path, words in [
        (tmp_path / "nowhere", "is not a folder"),
        (folder / "empty", "is a file"),
        (folder / "empty" / "x", "cannot be used"),
        (tmp_path / "void", "holds no files"),
        (Path("nul\0"), "cannot be used"),
    ]:
        with pytest.raises(DemoError, match=words):
            find(path)


def test_what_cannot_be_sent_is_left_out_with_the_reason(folder, monkeypatch):
    os.mkfifo(folder / "pipe")
    (folder / "gone").symlink_to(folder / "nothing")
    monkeypatch.setattr(send, "MAX_FILE_BYTES", 3_000_000)
    monkeypatch.setattr(send.os, "access", lambda path, mode: path.name != "lookalike")

    found = find(folder)

    assert list(found.sizes) == ["deep/er/große.txt", "deep/some.zip", "empty"]
    assert found.skipped["pipe"] == "not a regular file"
    assert found.skipped["gone"] == "a broken link"
    assert found.skipped["lookalike"] == "permission denied"
    assert "larger than" in found.skipped["three MiB"]


def test_a_folder_of_nothing_usable_says_why(tmp_path):
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")

    with pytest.raises(DemoError, match="broken link"):
        find(tmp_path)


def test_files_that_change_meanwhile(folder, monkeypatch):
    with pytest.raises(DemoError, match="vanished"):
        read_file(folder / "nothing")
    with pytest.raises(DemoError, match="directory"):
        read_file(folder / "deep")
    monkeypatch.setattr(send, "MAX_FILE_BYTES", 1000)
    with pytest.raises(DemoError, match="larger than"):
        read_file(folder / "three MiB")


def test_links_to_folders_are_not_followed(folder):
    (folder / "deep" / "circle").symlink_to(folder)

    assert len(find(folder).sizes) == 5


def test_too_little_space_is_said_before_anything_is_written(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(main.shutil, "disk_usage", lambda path: _Usage())

    with pytest.raises(DemoError, match="TMPDIR"):
        main._check_space(find(folder), tmp_path)


class _Usage:
    free = 1000


# The producer ---------------------------------------------------------------------------------------------------


def sent_by_producer(folder, tmp_path, names) -> Sent:
    with LocalBroker(tmp_path / "broker") as broker:
        broker.create_topic(TOPIC, partitions=PARTITIONS)
    config = {
        "strategy": "hybrid",
        "stores": {"disk": {"type": "filesystem", "path": str(tmp_path / "claims"), "create": True}},
    }
    return produce(
        Order(config, tmp_path / "broker", folder, names, FileCounter(tmp_path / "counter"), tmp_path / "stop")
    )


def test_the_producer_sends_what_is_there_and_names_what_is_not(folder, tmp_path):
    sent = sent_by_producer(folder, tmp_path, [*find(folder).sizes, "vanished"])

    assert sent.skipped == {"vanished": "vanished"}
    assert sent.envelopes == {"pointer": 2, "plain": 2, "literal": 1}
    assert sent.digests[b"three MiB"] == hashlib.sha256((folder / "three MiB").read_bytes()).hexdigest()
    assert FileCounter(tmp_path / "counter").total()[0] == 5
    assert pickle.loads(pickle.dumps(sent)) == sent


def test_the_producer_stops_when_it_is_told_to(folder, tmp_path):
    (tmp_path / "stop").touch()

    assert sent_by_producer(folder, tmp_path, list(find(folder).sizes)).sizes == {}


def test_names_that_are_no_text(folder, tmp_path):
    name = b"\xff\xfe name"
    (folder / os.fsdecode(name)).write_bytes(b"x")

    sent = sent_by_producer(folder, tmp_path, list(find(folder).sizes))
    messages = [pair for n in range(PARTITIONS) for pair in read.Topic(tmp_path / "broker")(n)]

    assert (name, b"x") in messages
    assert sent.sizes[name] == 1


# The reader -----------------------------------------------------------------------------------------------------


def test_looking_into_archives_and_other_files(folder, tmp_path):
    look = read._Look(FileCounter(tmp_path / "counter"))

    archive = look((b"zip", (folder / "deep" / "some.zip").read_bytes()))
    broken = look((b"cut", (folder / "deep" / "some.zip").read_bytes()[:-10]))
    empty = look((b"empty", b""))

    assert (archive.entries, archive.unpacked) == (2, 1_510_000)
    assert (broken.entries, empty.entries) == (None, None)
    assert empty.digest == hashlib.sha256(b"").hexdigest()
    assert FileCounter(tmp_path / "counter").total()[0] == 3


def sent_of(**contents: bytes) -> Sent:
    digests = {name.encode(): hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    sizes = {name.encode(): len(content) for name, content in contents.items()}
    return Sent(digests, sizes, {}, {"plain": len(contents)}, 0.5, 100)


def found_of(**contents: bytes) -> list[ReadPayload]:
    return [ReadPayload(name.encode(), len(c), hashlib.sha256(c).hexdigest()) for name, c in contents.items()]


def test_every_way_of_not_coming_back_is_a_mismatch():
    sent = sent_of(a=b"1", b=b"22", c=b"3", d=b"4")
    found = [*found_of(a=b"1", b=b"2", c=b"3", x=b""), *found_of(c=b"3")]

    assert dict(main.mismatches(sent, found)) == {
        "b": "changed: 2 bytes went out, 1 came back",
        "x": "was never sent",
        "c": "came twice",
        "d": "did not come back",
    }
    assert list(main.mismatches(sent, found_of(a=b"1", b=b"22", c=b"3", d=b"4"))) == []


def shown(*runs: Run, skipped: dict[str, str] | None = None) -> str:
    out = io.StringIO()
    main.show(Console(file=out, width=80), runs, skipped or {})
    return out.getvalue()


def test_the_table_fits_and_tells_good_from_bad():
    good = Run("hybrid", sent_of(a=b"1"), (ReadResult("RDD", found_of(a=b"1"), 0.5),))
    bad = Run("chunking", sent_of(a=b"1"), (ReadResult("RDD", [], 0.5),))

    assert "Every one of the 1 files came back" in shown(good)
    text = shown(good, bad, skipped={"p": "not a regular file"})

    assert "a (chunking, RDD): did not come back" in text
    assert "came back unchanged" not in text
    assert "p: not a regular file" in text
    assert max(map(len, text.splitlines())) <= 80


def test_long_lists_are_cut():
    bad = Run("hybrid", sent_of(**{f"f{n}": b"1" for n in range(25)}), (ReadResult("RDD", [], 0.5),))

    assert "and 15 more" in shown(bad)


def test_files_of_no_bytes_at_all():
    empty = Run("hybrid", sent_of(a=b""), (ReadResult("RDD", found_of(a=b""), 0.0),))

    assert "mismatches" in shown(empty)


# Progress -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_what_was_counted_and_hands_the_result_on(tmp_path, terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80)
    ticks = iter(range(0, 10_000, 6))
    counter = FileCounter(tmp_path / "counter")
    watch = Watch(console, Folder(tmp_path, {"a": 500, "b": 1500}, {}), counter, clock=lambda: next(ticks))

    def work() -> str:
        counter.add(500)
        until(lambda: "1 of 2 files, 500 B" in out.getvalue())
        return "done it"

    assert watch.over("hybrid write", work, cancel=list) == "done it"
    assert "done" in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_work_that_fails_fails_unchanged(tmp_path, terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    watch = Watch(console, Folder(tmp_path, {"a": 1}, {}), FileCounter(tmp_path / "counter"))

    with pytest.raises(ZeroDivisionError):
        watch.over("hybrid", lambda: 1 / 0, cancel=lambda: None, counted=False)


@pytest.mark.parametrize("terminal", [True, False])
def test_interrupted_work_is_cancelled_and_not_waited_for(tmp_path, terminal, monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    watch, go = Watch(console, Folder(tmp_path, {"a": 1}, {}), FileCounter(tmp_path / "counter")), threading.Event()

    def interrupted(self: Watch, future: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "_done", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watch.over("hybrid", lambda: go.wait(30), cancel=go.set)
    assert go.is_set()


def test_numbers_as_people_write_them():
    assert [mega(n) for n in (0, 999, 1000, 1_234_567, 5e9)] == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 GB"]
    assert count(1234567) == "1,234,567"


# What is missing, what fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "pandas", "rich"])
def test_a_missing_package_names_the_extra(monkeypatch, folder, missing):
    console = Console(file=io.StringIO())
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(MissingDependencyError, match=r"claimcheck-messaging\[demo\]"):
        main.run(folder, console=console)


def test_a_failed_job_in_one_line():
    class SparkishError(Exception):
        pass

    SparkishError.__module__ = "pyspark.errors"
    text = "Job aborted\n  File x\nclaimcheck.errors.PayloadNotFoundError: store 'disk': gone\n\tat org.apache\n"

    assert str(_explained(SparkishError(text))).endswith("claimcheck.errors.PayloadNotFoundError: store 'disk': gone")
    assert str(_explained(SparkishError("no idea\nat all"))).endswith("no idea")
    assert isinstance(_explained(ValueError("x")), ValueError)
