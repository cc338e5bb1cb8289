import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimcheck.spark._columns import binary_array
from claimcheck.spark._reading import views

columns = st.tuples(
    st.lists(st.none() | st.binary(max_size=20)), st.sampled_from([pa.binary(), pa.large_binary()]), st.integers(0, 5)
)


@given(columns)
def test_values_are_those_of_the_column_wherever_it_begins(drawn):
    values, kind, start = drawn
    column = pa.array(values, kind)[start:]

    assert [None if view is None else bytes(view) for view in views(column)] == values[start:]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_values_are_not_copied(kind):
    column = pa.array([b"a" * 1000, None, b"b" * 1000], kind)

    first, _, last = views(column)

    assert pa.py_buffer(first).address == column.buffers()[2].address
    assert pa.py_buffer(last).address == column.buffers()[2].address + 1000


def test_a_value_outlives_its_batch():
    view = next(views(pa.array([bytes(range(256)) * 10_000])))

    assert view.format == "B"
    assert bytes(view) == bytes(range(256)) * 10_000


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize(
    "values",
    [[[b"one"]], [None], [[]], [[b"a", b"b"]], [None, [b""], [b"t", b"wo"], [memoryview(b"three")], None], [None] * 9],
)
def test_a_column_is_built_as_arrow_builds_it(values, kind):
    column = binary_array(list(values), kind)
    column.validate(full=True)
    assert column.equals(pa.array([None if each is None else b"".join(each) for each in values], type=kind))
