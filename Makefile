# The README's commands. `make up` and `make test` are all a newcomer needs; every target may be said twice.
#
#   make up         install what is missing, start Hotdesk in the foreground    PORT=8000 STATE=~/.local/state/hotdesk SIMULATE=2x8xV100-SXM2-32GB
#   make down       stop everything: hub, scheduler, workspaces, jobs           STATE=
#   make passwords  show the generated passwords again                          STATE=
#   make test       all tests, browser included
#   make install    prepare .venv only
#   make night      the random properties of the core again, with new examples, ten times as many
#   make lint       ruff, mypy, import rules
#   make kube       build Kubernetes for its tests, and fetch schemas, once, into ~/.cache/hotdesk-kube (needs Go)    LEVEL=3
#   make bench      measure the figures the README claims, write build/bench.json

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help up down passwords install test night lint kube bench clean

PORT ?= 8000
STATE ?= $(HOME)/.local/state/hotdesk
SIMULATE ?= auto
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
LEVEL ?= 3
as_one_word = '$(subst ','\'',$(1))'

help:
	@sed -n 's/^#   //p' Makefile

install:
	@bash .ci/install hub

up:
	@bash .ci/install hub
	exec $(BIN)/hotdesk-hub up --port $(call as_one_word,$(PORT)) --state $(call as_one_word,$(STATE)) --simulate $(call as_one_word,$(SIMULATE))

down:
	@test -x $(BIN)/hotdesk-hub || { echo "Nothing is installed in $(VENV), so nothing of it runs."; exit 0; }
	$(BIN)/hotdesk-hub down --state $(call as_one_word,$(STATE))

passwords:
	@test -x $(BIN)/hotdesk-hub || { echo "Nothing is installed in $(VENV), so there are no passwords yet. make up makes them." >&2; exit 1; }
	$(BIN)/hotdesk-hub passwords --state $(call as_one_word,$(STATE))

test:
	@bash .ci/install dev
	$(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

night:
	@bash .ci/install dev
	HYPOTHESIS_PROFILE=night $(BIN)/python -m pytest -n 2 --timeout 36000 $(PYTEST_ARGS) tests/core

lint:
	@bash .ci/install dev quiet
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

kube:
	@python3 tests/kubernetes/cluster/programs.py $(LEVEL)
	@cd tests/kubernetes && python3 -m cluster.schemas

bench:
	@bash .ci/install dev quiet
	$(BIN)/python tests/bench/measure.py

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis
