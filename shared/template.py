"""Prompt templates: `{{NAME}}` placeholders, filled in one pass.

One pass, because what is filled in may itself contain a placeholder: a spec that explains
`{{PRODUCT_SPEC}}` must arrive as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACEHOLDER = re.compile(r"\{\{([A-Z0-9_]+)\}\}")


def placeholders(template: str) -> frozenset[str]:
    """The names that `template` has places for."""
    return frozenset(_PLACEHOLDER.findall(template))


def render(template: str, values: Mapping[str, str]) -> str:
    """`template` with every known placeholder replaced; an unknown one stays as it is."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)
