"""No row that can be seen from outside goes unchecked."""

from __future__ import annotations

from blackbox.rows import checked, observable


def test_every_observable_row_has_a_check():
    have = checked()
    assert [row for row in observable() if row not in have] == []


def test_no_check_speaks_for_a_row_that_does_not_exist():
    assert [row for row in checked() if row not in observable()] == []
