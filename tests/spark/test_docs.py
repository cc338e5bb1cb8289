"""The pages' Python blocks about Spark run, with no server."""

import pytest

from tests.docs_pages import cases, run


@pytest.mark.parametrize(("page", "needs"), [case for case in cases("spark") if case.values[1] == {"spark"}])
def test_python_runs(page, needs, spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page, needs, tmp_path, {})
