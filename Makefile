# Two commands for everyone: `make demo` and `make test`. The rest is for developers.
SHELL := /bin/bash
PY := .venv/bin/python
GENIE := .venv/bin/genie
OUT ?= demo-out

.PHONY: help build demo test lint bench soak clean

help:
	@echo "make demo   build, replay a bundled training step on this machine, show the result"
	@echo "make test   build, install what the tests need, run everything"
	@echo "make lint   ruff, cython-lint, mypy, stubtest, layer contracts"
	@echo "make bench  measure GENIE beside its peers, write benchmarks/RESULTS.md"
	@echo "make soak   the long tests"

build:
	@tools/bootstrap.sh

demo: build
	@tools/demo.sh $(OUT)

test:
	@tools/bootstrap.sh test
	@tools/test.sh

lint:
	@tools/bootstrap.sh test lint
	@tools/lint.sh

bench:
	@tools/bootstrap.sh test
	@$(PY) -m benchmarks

soak:
	@tools/bootstrap.sh test
	@$(PY) -m pytest -m slow --timeout=0

clean:
	rm -rf build .venv demo-out .cache genie/_core/*.so genie/_core/*.c
