#!/usr/bin/env bash
# Everything that must hold before a commit.
set -euo pipefail
cd "$(dirname "$0")/.."
python -m pytest -q
