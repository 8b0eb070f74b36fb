#!/usr/bin/env bash
# The documents can be followed.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
.venv/bin/python tests/shell/follow_docs.py
