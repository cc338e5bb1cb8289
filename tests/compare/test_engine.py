"""A run as a whole: what an interruption leaves, its summary, and the command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

import claimcheck
from claimcheck._config_file import from_dict
from claimcheck._texts import printable, size_text
from claimcheck.errors import StoreUnavailableError
from tests.benchmarks.compare import schedule
from tests.benchmarks.compare.lab import Lab
from tests.benchmarks.compare.local import EmbeddedBroker
from tests.benchmarks.compare.main import main, parse_sizes
from tests.benchmarks.compare.model import CompareError, Comparison, Experiment, as_json, from_json
from tests.benchmarks.compare.runner import Options, compare
from tests.benchmarks.compare.schedule import Plan
from tests.benchmarks.compare.terminal import show
from tests.compare.comparisons import comparison, hostile
from tests.docs_pages import ROOT
from tests.real.process import wait_until

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB,)


def experiment(name: str) -> Experiment:
    return Experiment(name, name, {}, {}, "agrees", "")


@pytest.fixture(autouse=True)
def _folders(tmp_path, monkeypatch):
    """Temporary folders are below the test's folder."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def plans(monkeypatch) -> Callable[..., None]:
    """Replaces the experiments by functions."""

    def replace(**functions: Callable[[Lab], Experiment]) -> None:
        monkeypatch.setattr(schedule, "PLANS", tuple(Plan(*each) for each in functions.items()))

    return replace


def untidy(lab: Lab) -> Experiment:
    """Leave a topic, a payload and a process behind."""
    topic = lab.topic("external", "untidy")
    lab.worker("producer", "external", topic).send(64 * KIB, 0, 1)
    assert lab.store_objects() == 1
    return experiment("untidy")


class BoomError(Exception):
    pass


def failing(lab: Lab) -> Experiment:
    untidy(lab)
    raise BoomError


def left(tmp_path: Path) -> list[str]:
    return [str(path) for path in (tmp_path / "tmp").iterdir()]


# A run ---------------------------------------------------------------------------------------------------------


def test_what_an_experiment_leaves_is_removed(plans, tmp_path):
    seen: list[Any] = []

    def after(lab: Lab) -> Experiment:
        broker: Any = lab.broker
        seen.append((broker.topics(""), lab.store_objects(), lab._workers))
        return experiment("after")

    plans(untidy=untidy, after=after)
    result = compare(Options(sizes=SIZES))

    assert [each.name for each in result.experiments] == ["untidy", "after"]
    assert seen == [([], 0, [])]
    assert left(tmp_path) == []


@pytest.mark.parametrize("error", [BoomError, KeyboardInterrupt, SystemExit])
def test_an_interrupted_run_cleans_up(plans, tmp_path, error):
    def interrupted(lab: Lab) -> Experiment:
        untidy(lab)
        raise error

    plans(first=lambda lab: experiment("first"), second=interrupted)
    with pytest.raises(error):
        compare(Options(sizes=SIZES))

    assert left(tmp_path) == []


def test_what_could_not_be_removed_is_named(plans, monkeypatch):
    def fails(self: EmbeddedBroker, topic: str) -> None:
        raise CompareError("the broker is gone")

    monkeypatch.setattr(EmbeddedBroker, "delete_topic", fails)
    plans(failing=failing)
    with pytest.raises(BoomError) as raised:
        compare(Options(sizes=SIZES))

    assert "topics whose names begin with claimcheck-compare-" in raised.value.__notes__[0]
    assert "the broker is gone" in raised.value.__notes__[0]


def test_each_step_and_each_result_is_shown(plans):
    seen: list[str] = []
    plans(one=lambda lab: lab.progress("half") or experiment("one"), two=lambda lab: experiment("two"))
    compare(Options(sizes=SIZES), show=seen.append, done=lambda text: seen.append(text.partition(" in ")[0]))

    assert [" ".join(each.split()) for each in seen] == ["1/2 one: half", "1/2 one done", "2/2 two done"]


# Errors --------------------------------------------------------------------------------------------------------


def config_of(tmp_path: Path, **store: Any) -> Any:
    return from_dict({"stores": {"s": {"type": "filesystem", "path": str(tmp_path / "s"), "create": True, **store}}})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sizes": (8,)}, "payloads must have 16 bytes to 256 MiB, not 8 bytes"),
        ({"sizes": (KIB, 300 * MIB)}, "payloads must have 16 bytes to 256 MiB, not 300 MiB"),
        ({"sizes": ()}, "payloads must have 16 bytes to 256 MiB"),
        ({"only": ("sped",)}, "no experiment 'sped'; choose from services"),
        ({"only": ()}, "no experiment is named; choose from services"),
        ({"config": from_dict({"stores": {"m": {"type": "memory"}}})}, "memory of one process"),
        ({"sample_topic": "orders"}, "no topic orders"),
    ],
)
def test_bad_input_is_one_sentence(options, text, tmp_path):
    with pytest.raises(CompareError, match=text):
        compare(Options(**options))

    assert left(tmp_path) == []


def test_a_store_that_takes_no_payload_is_found_before_the_run(tmp_path):
    (tmp_path / "s").write_bytes(b"a file in the place of the folder")

    with pytest.raises(CompareError, match="store 's' does not take a payload of 64 KiB"):
        compare(Options(config=config_of(tmp_path), sizes=SIZES))

    assert left(tmp_path) == []


def test_a_directory_that_does_not_exist_is_not_created(tmp_path, plans):
    plans(fine=lambda lab: experiment("fine"))
    config = config_of(tmp_path, path=str(tmp_path / "volume" / "claims"), create=False)

    with pytest.raises(StoreUnavailableError, match="Is its volume mounted?"):
        compare(Options(config=config, sizes=SIZES))

    assert not (tmp_path / "volume").exists()
    assert left(tmp_path) == []


@pytest.mark.parametrize("function", [untidy, failing])
def test_directories_that_a_run_creates_are_removed(tmp_path, plans, function):
    plans(untidy=function)
    (tmp_path / "user").mkdir()
    config = config_of(tmp_path, path=str(tmp_path / "user" / "volume" / "claims"))

    with contextlib.suppress(BoomError):
        compare(Options(config=config, sizes=SIZES))

    assert list((tmp_path / "user").iterdir()) == []


def test_an_empty_directory_of_the_user_is_not_removed(tmp_path, plans):
    plans(untidy=untidy)
    (tmp_path / "s").mkdir()

    compare(Options(config=config_of(tmp_path, create=False), sizes=SIZES))

    assert list((tmp_path / "s").iterdir()) == []


def test_a_full_disk_is_found_before_the_run(monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=MIB))

    with pytest.raises(CompareError, match="embedded broker needs"):
        compare(Options(sizes=SIZES))


@pytest.mark.slow
def test_without_a_store_only_chunks_and_whole_messages_are_compared():
    result = compare(Options(config=from_dict({"strategy": "chunking"}), sizes=SIZES, quick=True, only=("speed",)))

    assert result.experiments[0].measured.keys() == {"chunking", "native"}
    assert result.recommendation is not None
    assert result.recommendation.strategy == "chunking"


def test_the_store_is_confined_to_a_part_of_the_run(tmp_path):
    """A payload of the user's own stays where it is."""
    config = config_of(tmp_path)
    with claimcheck.ClaimCheck(config) as cc:
        pointer = cc.store("s").write(b"mine")

        compare(Options(config=config, sizes=SIZES, quick=True, only=("seek",)))

        assert cc.store("s").read(pointer) == b"mine"
        assert len([path for path in (tmp_path / "s").rglob("*") if path.is_file()]) == 1


@pytest.mark.slow
def test_the_payloads_of_a_folder_are_sent(tmp_path):
    (tmp_path / "files").mkdir()
    for size in (1000, 70_000):
        (tmp_path / "files" / f"{size}.csv").write_bytes(b"a;b\n" * (size // 4))
    result = compare(Options(payloads=str(tmp_path / "files"), quick=True, only=("speed",)))

    assert result.sizes == (1000, 70_000)
    assert {row[0] for row in result.experiments[0].rows} == {"1000 bytes", "68.36 KiB"}


# Processes that end --------------------------------------------------------------------------------------------


def _start(tmp_path: Path) -> subprocess.Popen[str]:
    options = ("--brokers", "embedded", "--only", "speed", "--sizes", "64KiB", "--rounds", "500")
    command = [sys.executable, "-m", "tests.benchmarks.compare.main", *options, "--out", str(tmp_path / "out")]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _is_measuring(tmp_path: Path) -> bool:
    return bool(list((tmp_path / "tmp").glob("claimcheck-compare-*/*.sqlite")))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_and_removes_everything(tmp_path, number, status):
    process = _start(tmp_path)
    wait_until(lambda: _is_measuring(tmp_path), "the run measures")

    process.send_signal(number)

    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    assert left(tmp_path) == []


def test_a_second_ctrl_c_does_not_interrupt_the_clean_up(tmp_path):
    process = _start(tmp_path)
    wait_until(lambda: _is_measuring(tmp_path), "the run measures")

    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.003)

    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert left(tmp_path) == []


# Results and texts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [comparison(), hostile()], ids=["usual", "hostile"])
def test_a_comparison_survives_json(result):
    assert from_json(Comparison, json.loads(json.dumps(as_json(result)))) == result


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.pop("broker"),
        lambda values: values.update(unknown=1),
        lambda values: values["experiments"][0].update(verdict="perhaps"),
        lambda values: values.update(experiments=3),
    ],
)
def test_other_json_is_refused(change):
    values = as_json(comparison())
    change(values)

    with pytest.raises(CompareError, match="not a Comparison"):
        from_json(Comparison, values)


@pytest.mark.parametrize(
    ("size", "text"),
    [(16, "16 bytes"), (1000 * KIB, "1000 KiB"), (64 * KIB, "64 KiB"), (1.5 * MIB, "1.5 MiB"), (5 << 30, "5 GiB")],
)
def test_sizes_for_people(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize("result", [comparison(), hostile()], ids=["usual", "hostile"])
def test_the_summary_fits_one_screen_and_ends_with_the_configuration(result):
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        show(result, console)
    text = console.export_text()

    lines = text.rstrip("\n").split("\n")
    assert len(lines) <= 40, text
    assert max(map(len, lines)) <= 100, text
    assert "\x1b" not in text
    assert result.recommendation is not None
    assert lines[-1].strip() == printable(result.recommendation.yaml.rstrip().split("\n")[-1]).strip()


# The command ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_results_and_a_report(tmp_path):
    arguments = ["--brokers", "embedded", "--quick", "--only", "seek,speed", "--sizes", "64KiB,2MiB"]
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "out")])

    assert result.exit_code == 0, result.output
    made = from_json(Comparison, json.loads((tmp_path / "out/embedded.json").read_text()))
    assert [each.name for each in made.experiments] == ["seek", "speed"]
    assert made.sizes == (64 * KIB, 2 * MIB)
    assert made.recommendation is not None
    assert "2/2 speed" in result.stderr
    assert "<html" in (tmp_path / "out/embedded.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--only", "sped"], 2, "no experiment 'sped'"),
        (["--only", ""], 2, "no experiment is named"),
        (["--only", ","], 2, "no experiment is named"),
        (["--kafka", "a:1", "--pulsar", "pulsar://b"], 2, "cannot be combined"),
        (["--admin-url", "http://a"], 2, "--admin-url needs --pulsar"),
        (["--brokers", "embedded", "--out", "/dev/full/out"], 1, "Not a directory"),
    ],
)
def test_wrong_usage_is_one_line(arguments, code, text):
    result = CliRunner().invoke(main, arguments)

    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
    assert "Traceback" not in result.stderr


WRONG_SIZES = ["0", "8", "15.9", "257MiB", "900GiB", "900TiB", "10XB", "64 potatoes", "", "64KiB,", "1KiB,0", "9" * 400]


@pytest.mark.parametrize("sizes", WRONG_SIZES)
def test_wrong_sizes_are_wrong_usage_with_the_range(sizes):
    result = CliRunner().invoke(main, ["--sizes", sizes])

    assert result.exit_code == 2, result.stderr
    assert "expected sizes of 16 bytes to 256 MiB" in " ".join(result.stderr.split())


def test_sizes_have_units():
    parameter = click.Option(["--sizes"])
    parsed = parse_sizes(click.Context(click.Command("compare")), parameter, "16, 1.5KB,2 mib,256MiB")

    assert parsed == (16, 1500, 2 * MIB, 256 * MIB)


def test_a_wrong_price_file_is_named(tmp_path):
    prices = tmp_path / "prices.yaml"
    for content in ("hello", "source: 1\ncurrency: 2\n", "#" * 300_000):
        prices.write_text(content)
        result = CliRunner().invoke(main, ["--brokers", "embedded", "--prices", str(prices)])

        assert result.exit_code == 1
        assert all(str(prices) in line for line in result.stderr.splitlines()[1:]), result.stderr
        assert "configuration:" not in result.stderr


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.benchmarks.compare.kafka._SECONDS", 0.5)
    result = CliRunner().invoke(main, ["--kafka", "localhost:1"])

    assert result.exit_code == 1
    assert result.stderr.count("\n") == 2, result.stderr
    assert left(tmp_path) == []
