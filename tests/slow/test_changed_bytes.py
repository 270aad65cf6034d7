"""Logs with one changed byte, 300 of them, as the Python readers meet them. Run by `scripts/test --slow`; fewer
are in tests/test_damaged_log.py."""

import test_damaged_log
from test_damaged_log import copy  # noqa: F401: a fixture


def test_one_changed_byte_ends_in_values_or_in_a_sentence(copy):  # noqa: F811
    test_damaged_log.test_one_changed_byte_ends_in_values_or_in_a_sentence(copy, 300)
