# Two targets do all set-up: `make quickstart` runs the main job, `make test` passes the tests.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: quickstart test check

quickstart: $(VENV)/installed
	$(RUN) -m sweep.launch configs/quickstart.yaml $(ARGS)

test: $(VENV)/installed-test
	$(RUN) -m pytest

check: $(VENV)/installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet -c constraints.txt -e . mlxtend
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[test]'
	$(RUN) -m pip install --quiet -c constraints.txt --no-deps torchattacks  # asks for a requests of 2021, and does without
	touch $@
