"""Parts of the store kit, for variants of a server: another part of the tests runs the whole kit on the same store."""

import pytest

REACH_THE_SERVER = (
    "test_round_trip",
    "test_large_payload_in_bounded_memory",
    "test_same_payload_twice_rests_twice",
    "test_rollback_leaves_nothing_and_may_be_repeated",
    "test_rollback_of_what_never_was_is_harmless",
    "test_failed_write_leaves_nothing",
    "test_vanished_payload_is_not_found",
    "test_ranges_are_those_of_the_payload",
    "test_threads_share_a_store",
    "test_one_payload_may_have_many_readers",
    "test_close_keeps_payloads",
    "test_repr_names_the_store_and_no_secret",
    "test_listing_has_every_payload",
    "test_delete_deletes_exactly_its_entries",
)
"""The checks in which a variant can differ. The others test arguments, pointers and files in the base class."""


def only(*names):
    """Return a class decorator that removes all checks of a kit but those named; subclasses inherit the selection."""

    def select(kit):
        checks = {name for name in dir(kit) if name.startswith("test_")}
        assert set(names) <= checks, f"the kit has no {sorted(set(names) - checks)}"
        for name in checks - set(names):
            setattr(kit, name, None)  # pytest collects functions only
        return kit

    return select


class FewerPayloads:
    """Checks with many parameters, limited to the payloads that take different commands; goes before the kit."""

    @pytest.mark.parametrize("shape", ["bytes", "unseekable file"])
    @pytest.mark.parametrize("size", ["empty", "one byte", "segment+1", "several MiB"])
    def test_round_trip(self, store, size, shape):
        super().test_round_trip(store, size, shape)

    @pytest.mark.parametrize("broken", ["raises", "shrinks"])
    def test_failed_write_leaves_nothing(self, store, events, broken):
        super().test_failed_write_leaves_nothing(store, events, broken)
