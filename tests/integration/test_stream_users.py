"""Other people's libraries, which think that they read a file: they read a payload in Redis."""

import io
import uuid
import zipfile

import pandas
import pytest

import claimcheck


@pytest.fixture
def store(redis_url):
    options = {"type": "redis", "url": redis_url, "ttl_seconds": 600, "segment_bytes": 100_000}
    with claimcheck.from_dict({"strategy": "external", "stores": {"hot": options}}) as cc:
        yield cc.store("hot")


@pytest.fixture
def frame():
    return pandas.DataFrame({"number": range(50_000), "text": [str(uuid.UUID(int=i)) for i in range(50_000)]})


@pytest.fixture
def opened(store):
    """A payload as a file, removed when the test is over."""
    pointers, files = [], []

    def write_and_open(payload):
        pointers.append(store.write(payload))
        files.append(store.open(pointers[-1]))
        return files[-1]

    yield write_and_open
    for file, pointer in zip(files, pointers, strict=True):
        file.close()
        store.rollback(pointer)


def test_pandas_reads_csv(frame, opened):
    assert pandas.read_csv(opened(frame.to_csv(index=False).encode())).equals(frame)


def test_pandas_reads_some_columns_of_parquet(frame, opened):
    payload = frame.to_parquet()

    assert pandas.read_parquet(opened(payload), columns=["number"]).equals(frame[["number"]])


def test_pandas_reads_pickle(frame, opened):
    file = io.BytesIO()
    frame.to_pickle(file)

    assert pandas.read_pickle(opened(file.getvalue())).equals(frame)


def test_zipfile_reads_one_entry(opened):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as entries:
        for i in range(10):
            entries.writestr(f"{i}.txt", str(i) * 100_000)

    with zipfile.ZipFile(opened(archive.getvalue())) as entries:
        assert entries.namelist() == [f"{i}.txt" for i in range(10)]
        assert entries.read("7.txt") == b"7" * 100_000


def test_text_is_decoded_line_by_line(opened):
    lines = [f"Zeile {i} mit Übergröße\n" for i in range(20_000)]

    with io.TextIOWrapper(opened("".join(lines).encode()), encoding="utf-8") as text:
        assert list(text) == lines
