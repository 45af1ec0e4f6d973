# `make demo` and `make test` are the two to know; each makes the environment that it needs.

# The interpreter that environments are made with. Empty: the first on PATH that is new enough.
PYTHON ?=
# pytest-xdist's word for "one per core".
WORKERS ?= auto
UV ?= uv
# What else `llmch demo` or pytest should hear: make demo ARGS=--list, make test ARGS='-k ledger'
ARGS ?=

DEMO := .venv-demo
DEV := .venv-dev

help:
	@echo 'make demo         run the whole way once on a shipped example: no key, no model, no network'
	@echo 'make test         run the whole test suite'
	@echo 'make check        ruff and mypy'
	@echo 'make wheel-check  build the wheel, install it into an empty environment, run the demo from there'
	@echo 'make bench        print the benchmarks, as ratios'
	@echo 'make docs         make what the documents take from the code'
	@echo 'make lock         write the requirement files anew (needs uv)'
	@echo 'make clean        remove the environments and what was built'
	@echo
	@echo 'PYTHON=/path/to/python3.11 chooses the interpreter of a new environment.'

demo: $(DEMO)/.ready
	@$(DEMO)/bin/llmch demo $(ARGS)

test: $(DEV)/.ready
	$(DEV)/bin/python -m pytest -n $(WORKERS) --maxprocesses 8 $(ARGS)

check: $(DEV)/.ready
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy

bench: $(DEV)/.ready
	@$(DEV)/bin/python -m benchmarks

docs: $(DEV)/.ready
	@$(DEV)/bin/python docs/generate.py

# A build tree and an environment far from here, so that nothing of the checkout can help.
wheel-check: $(DEV)/.ready
	@set -e; away=$$(mktemp -d); trap 'rm -rf "$$away"' EXIT; \
	$(DEV)/bin/python -m build --no-isolation --outdir "$$away/dist" . >"$$away/build.log" 2>&1 \
	  || { cat "$$away/build.log"; exit 1; }; \
	ls "$$away/dist"; \
	$(DEV)/bin/python -m venv "$$away/env"; \
	$(call pip,"$$away/env") --require-hashes -r requirements.txt; \
	$(call pip,"$$away/env") --no-deps "$$away"/dist/*.whl; \
	mkdir "$$away/home" "$$away/empty"; cd "$$away/empty"; \
	export HOME="$$away/home"; unset PYTHONPATH OPENAI_API_KEY OPENAI_BASE_URL; \
	"$$away/env/bin/llmch" --version; \
	"$$away/env/bin/llmch" schema >/dev/null; \
	"$$away/env/bin/llmch" demo

# The files name no index, no host and no path: pip takes those from its own configuration.
lock:
	@command -v $(UV) >/dev/null || { echo 'make lock needs uv: put it on PATH or name it (UV=...)' >&2; exit 1; }
	$(call compile,--group build) --output-file requirements.txt
	$(call compile,--group build --group dev) --constraints requirements.txt --output-file requirements-dev.txt

clean:
	rm -rf $(DEMO) $(DEV) build dist

.PHONY: help demo test check bench docs wheel-check lock clean FORCE
FORCE:

compile = $(UV) pip compile --quiet --upgrade --no-config --no-header --universal --python-version 3.11 \
  --generate-hashes pyproject.toml $(1)
pip = $(1)/bin/python -m pip --disable-pip-version-check install --quiet

# --- environments ---
# Made again when the requirements change, when the checkout has moved (the environment names its
# path), when another PYTHON is asked for, or when its interpreter has gone.

stale = $(shell { read -r where; read -r python; } 2>/dev/null <$(1)/.ready; \
  [ "$$where" = "$$(pwd -P)" ] && { [ -z '$(PYTHON)' ] || [ "$$python" = '$(PYTHON)' ]; } \
  && $(1)/bin/python -c '' 2>/dev/null || echo FORCE)

define environment
	@set -e; \
	command -v git >/dev/null || { echo 'llmch needs git: install it first' >&2; exit 1; }; \
	new_enough() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }; \
	python='$(PYTHON)'; \
	if [ -z "$$python" ]; then \
	  for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	    if new_enough $$name; then python=$$name; break; fi; \
	  done; \
	fi; \
	if ! new_enough "$${python:-python3}"; then \
	  echo "llmch needs Python 3.11 or newer, and $${python:-python3} is $$("$${python:-python3}" --version 2>&1 \
	    | tail -n 1): name another with PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	echo "making $(1) with $$python (once; a minute or so)" >&2; \
	"$$python" -m venv --clear $(1) || { rm -rf $(1); \
	  echo "$$python cannot make environments: install its venv module (Debian: python3-venv)" >&2; exit 1; }; \
	$(call pip,$(1)) --require-hashes -r $(2); \
	$(call pip,$(1)) --no-deps --no-build-isolation --editable .; \
	{ pwd -P; echo '$(PYTHON)'; } >$@
endef

$(DEMO)/.ready: requirements.txt pyproject.toml $(call stale,$(DEMO))
	$(call environment,$(DEMO),requirements.txt)

$(DEV)/.ready: requirements-dev.txt pyproject.toml $(call stale,$(DEV))
	$(call environment,$(DEV),requirements-dev.txt)
