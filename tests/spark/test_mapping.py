"""``df.transform(map_payloads(fn, ...))``: results of a function; payloads never leave the worker."""

from __future__ import annotations

import datetime
import gc
import json

import pytest

from claimcheck.errors import ConfigError
from claimcheck.spark import DeadLetter, map_payloads
from claimcheck.spark import _resolve as mapping
from claimcheck.spark._worker import as_config, claim_check
from tests.spark.rig import batch_of, frame, remove_stored


def rows_of(df, *names):
    return [tuple(row[name] for name in names) for row in df.collect()]


def test_one_column_many_columns_and_nulls(spark, config, send):
    messages = [*send(b"a" * 3000), *send(b"bb"), None]
    df = frame(spark, messages)

    one = df.transform(map_payloads(len, "size long", column="value", config=config))
    many = df.transform(
        map_payloads(
            lambda payload: {"first": payload[:1], "sizes": [len(payload)]}, "first binary, sizes array<int>",
            column="value", config=config,
        )
    )  # fmt: skip
    pairs = df.transform(
        map_payloads(lambda payload: (None, payload.decode()) if payload == b"bb" else None, "a int, b string",
                     column="value", config=config)
    )  # fmt: skip

    assert one.columns == ["n", "value", "size"]
    assert rows_of(one, "n", "size") == [(0, 3000), (1, 2), (2, None)]
    assert rows_of(many, "first", "sizes") == [(b"a", [3000]), (b"b", [2]), (None, None)]
    assert rows_of(pairs, "a", "b") == [(None, None), (None, "bb"), (None, None)]


def test_places_that_have_names_go_by_these(spark, config, send):
    def as_row(payload):
        from pyspark.sql import Row

        return Row(height=1, width=len(payload))

    def as_tuple(payload):
        from collections import namedtuple

        return namedtuple("Size", "height width")(1, len(payload))

    for fn in (as_row, as_tuple):
        stage = map_payloads(fn, "width int, height int", column="value", config=config)
        assert rows_of(frame(spark, send(b"x" * 3000)).transform(stage), "width", "height") == [(3000, 1)]


def test_only_workers_exempt_modules_from_garbage_collection(spark, config):
    """Spark collects garbage after every task; the process that builds the query is the user's."""
    before = gc.get_freeze_count()
    stage = map_payloads(lambda _: gc.get_freeze_count(), "frozen long", column="value", config=config)

    [(frozen,)] = rows_of(frame(spark, [b"x"]).transform(stage), "frozen")
    claim_check(as_config(config))

    assert frozen > 10_000
    assert gc.get_freeze_count() == before


def test_a_struct_is_one_value_of_one_column(spark, config, send):
    def look(payload):
        return {"size": len(payload), "head": payload[:2].decode()}

    stage = map_payloads(look, "found struct<size:int,head:string>", column="value", config=config)
    df = frame(spark, send(b"x" * 3000)).transform(stage)

    assert df.selectExpr("found.size", "found.head").first() == (3000, "xx")


def test_files_of_any_size_and_the_row_beside_them(spark, config, send):
    """The first payload is fetched ahead; the second is too large and is read while it is used."""
    messages = [*send(b"s" * 3000), *send(b"l" * 50_000)]

    def look(file, row):
        return type(file).__name__, row["n"], len(file.read(10)), len(file.read())

    stage = map_payloads(
        look, "kind string, number int, head int, rest int",
        column="value", config=config, as_file=True, with_row=True, max_inflight_bytes=20_000,
    )  # fmt: skip
    found = rows_of(frame(spark, messages).transform(stage), "kind", "number", "head", "rest")

    assert found == [("BytesIO", 0, 10, 2990), ("BufferedReader", 1, 10, 49_990)]


def test_what_is_wrong_with_one_row_is_told_in_that_row(spark, config, send):
    gone = send(bytes(3000))
    remove_stored(config)
    messages = [*send(b"[1, 2]"), *gone, *send(b"no json"), b"PRF_wdkafcli_header_\x09"]

    stage = map_payloads(json.loads, "items array<int>", column="value", config=config, on_error="null")
    df = frame(spark, messages).transform(stage)

    assert df.columns == ["n", "value", "items", "error"]
    assert rows_of(df.select("items", "error.type"), "items", "type") == [
        ([1, 2], None),
        (None, "PayloadNotFoundError"),
        (None, "JSONDecodeError"),
        (None, "EnvelopeError"),
    ]


def test_dead_letters_leave_and_are_handed_over_with_all_they_had(spark, config, send, tmp_path):
    def bury(letter: DeadLetter) -> None:
        (tmp_path / f"{letter.row['n']}").write_text(f"{type(letter.error).__name__} {letter.row['value']!r}")

    messages = [*send(b"1"), *send(b"x"), *send(b"y"), *send(b"2")]
    stage = map_payloads(int, "number int", column="value", config=config, on_error=bury)

    assert rows_of(frame(spark, messages).transform(stage), "n", "number") == [(0, 1), (3, 2)]
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()} == {
        "1": "ValueError b'x'",
        "2": "ValueError b'y'",
    }


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda payload: {"nonsense": 1, "size": 2}, "nonsense"),
        (lambda payload: (1, 2, 3), "a tuple, expected"),
        (lambda payload: {"size": "many", "more": 1}, "does not fit column 'size'"),
        (lambda payload: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_result_that_does_not_fit_fails_the_task_and_says_why(spark, config, send, fn, words):
    df = frame(spark, send(b"x")).withColumnRenamed("n", "offset")

    with pytest.raises(Exception, match=words) as caught:
        df.transform(map_payloads(fn, "size int, more int", column="value", config=config)).collect()

    if "fit" not in words:  # an error of one row, not of a batch
        assert "Row: offset 0" in str(caught.value)


def test_a_result_that_does_not_fit_is_an_error_of_its_row_where_rows_may_have_errors(spark, config, send):
    messages = [message for payload in (b"1", b"x", b"1.5", b"2") for message in send(payload)]

    def look(payload):
        return 1.5 if payload == b"1.5" else "x" if payload == b"x" else int(payload)

    stage = map_payloads(look, "number long", column="value", config=config, on_error="null")
    df = frame(spark, messages).transform(stage)

    assert rows_of(df.select("number", "error.type"), "number", "type") == [
        (1, None), (None, "ResultError"), (None, "ResultError"), (2, None)
    ]  # fmt: skip


def test_times_with_a_zone_and_without(spark, config, send):
    """The session has another time zone."""
    moment = datetime.datetime(2020, 5, 17, 12, 30, tzinfo=datetime.UTC)
    stage = map_payloads(
        lambda payload: {"with": moment, "without": moment.replace(tzinfo=None)}, "with timestamp, without timestamp",
        column="value", config=config,
    )  # fmt: skip

    row = frame(spark, send(b"x")).transform(stage).selectExpr("unix_seconds(with)", "unix_seconds(without)").first()

    assert tuple(row) == (int(moment.timestamp()),) * 2


def test_new_columns_may_have_any_names_beside_a_star(spark, config, send):
    from pyspark.sql import functions as F  # noqa: N812

    df = frame(spark, send(b"x" * 3000)).select("value", F.lit(1).alias("*"))

    stage = map_payloads(len, "kept int", column="value", config=config)
    assert df.transform(stage).collect()[0][1:] == (1, 3000)


def test_a_row_as_a_dictionary_wants_columns_of_different_names(spark, config, send):
    df = frame(spark, send(b"x")).selectExpr("1 AS id", "2 AS id", "value")

    with pytest.raises(ConfigError, match="with_row: found several columns 'id'"):
        df.transform(
            map_payloads(lambda payload, row: row["id"], "seen int", column="value", config=config, with_row=True)
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fn": "len"}, "fn"),
        ({"schema": "n int"}, "'n', which is taken"),
        ({"schema": " "}, "schema"),
        ({"schema": 5}, "schema"),
        ({"schema": "a int, a int"}, "each once"),
        ({"schema": "error int", "on_error": "null"}, "'error', which is taken"),
        ({"column": "n"}, "of type int"),
        ({"max_inflight_bytes": 0}, "max_inflight_bytes"),
    ],
)
def test_mistakes_are_told_on_the_driver(spark, config, arguments, words):
    given = {"fn": len, "schema": "size int", "column": "value", "config": config} | arguments

    with pytest.raises(ConfigError, match=words):
        frame(spark, []).transform(map_payloads(**given))


# The stage, without Spark ---------------------------------------------------------------------------------------


def test_payloads_are_let_go_one_after_the_other(config, send):
    """Results are small: payloads must not stay in memory until the batch is full."""
    import weakref

    class Kept(bytearray):
        pass

    alive, refs = [], []

    def look(payload):
        kept = Kept(payload)
        alive.append(sum(ref() is not None for ref in refs))
        refs.append(weakref.ref(kept))
        return len(kept)

    stage = stage_of(config, look)
    [batch] = stage([batch_of([send(bytes(5000))[0] for _ in range(20)])])

    assert batch.column("a0").to_pylist() == [5000] * 20
    assert max(alive) <= 1


def stage_of(config, fn, **options):
    """Return the stage of `map_payloads` for one column."""
    from pyspark.sql.types import IntegerType, StructField, StructType

    from claimcheck.spark._reading import Reading
    from claimcheck.spark._worker import as_config

    reading = Reading(config=as_config(config), concurrency=1, max_inflight_bytes=1 << 20, out_batch_bytes=1 << 20)
    schema = StructType([StructField("size", IntegerType())])
    return mapping._MapStage(reading, 0, ("value",), schema, fn, options.get("as_file", False), with_row=False)


def test_what_a_function_leaves_unread_costs_nothing_more(config, send, tmp_path):
    """Closing a file before its end is not an error."""
    stage = stage_of(config | {"limits": {"max_payload_bytes": 1 << 22}}, lambda file: len(file.read(4)), as_file=True)
    messages = send(bytes(3 << 20))

    assert [batch.column("a0").to_pylist() for batch in stage([batch_of(messages)])] == [[4]]
