"""A desk of one's own for every check."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox.harness import Desk


def pytest_configure(config):
    config.addinivalue_line("markers", "rows(*ids): the rows of the requirements that a check speaks for")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "desk")


@pytest.fixture(scope="module")
def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """One desk for checks that look at the same run from many sides."""
    return Desk(tmp_path_factory.mktemp("shared") / "desk")
