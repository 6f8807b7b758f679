# `make demo` and `make test` do all the set-up themselves; the second time they are quick.
# Needs Python 3.11 or newer, Java 17, and Maven for the first download.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Without bytecode in caches, each process of the tests would compile all modules again, and rewrite all assertions.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The package without what only tests and lint need, which takes a third of the time. A lone `make demo` does with
# it, unless there is more already.
CORE_STAMP := $(VENV)/.core
DEMO_STAMP := $(if $(filter-out demo,$(MAKECMDGOALS)),$(STAMP),$(firstword $(wildcard $(STAMP)) $(CORE_STAMP)))
SPARK_VENV := .venv-spark
SPARK_STAMP := $(SPARK_VENV)/.installed
FUZZ_VENV := .venv-fuzz
FUZZ_STAMP := $(FUZZ_VENV)/.installed
LOWEST_VENV := .venv-lowest
LOWEST_STAMP := $(LOWEST_VENV)/.installed
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	2>/dev/null && echo $$p && break; done)
# The oldest versions of our dependencies have wheels for the oldest Python only.
LOWEST_PYTHON ?= $(shell command -v python3.11 >/dev/null && echo python3.11 || echo $(PYTHON))
WORKERS ?= 2
# Tests wait as long as they compute, so there are more workers than cores. On two cores quick tests took 80 s with
# three workers, 64 with five, 61 with six and with eight. Those on Cassandra leave a core to it; long stories start
# servers of their own.
QUICK_WORKERS ?= $(shell expr 3 \* $(WORKERS))
MANY_WORKERS ?= $(shell expr 2 \* $(WORKERS) + 1)
FEW_WORKERS ?= $(shell expr $(WORKERS) + 1)
MESSAGES ?= 50000
ROUNDS ?= 5
ONLY ?=
PEERS := benchmarks/peers
N ?= 2000
SEED ?= 1
MINUTES ?= 5
SECONDS ?= 30
NODES ?= 1
MUTANTS ?= 300
FAULTS ?= tests/faults
# A worker has a Spark of its own, which leaves the cores idle half of the time; a file stays on one. Files
# with few tests have the longest ones: xdist would begin with those that have many.
SPARK_TESTS = $(SPARK_VENV)/bin/python -m pytest -q -n $(FEW_WORKERS) --dist loadfile --no-loadscope-reorder \
	-m "not fault" tests/spark

# A test that hangs where no signal is heard is shown with its stack, and its process ends.
HANGS = -o faulthandler_timeout=500 -o faulthandler_exit_on_timeout=true
PYTEST = $(BIN)/python -m pytest --dist worksteal $(HANGS)

# Which tests are in `make check` and `make test`; `make test-all` runs all. pyproject.toml explains the markers.
CHECK := not cassandra and not slow and not acceptance
TEST := not acceptance
# Properties get fewer examples in both than in `make test-all`; tests/conftest.py says how many.
CHECK_PROFILE := --hypothesis-profile=check
# Targets side by side: what is installed, or only waits, leaves room for what computes.
BESIDE = @$(MAKE) --no-print-directory --jobs 4

, := ,
# Modules are compiled as they are imported: to compile all of them takes a fifth of an installation.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
# $(call install,<environment>,<what>)
define install
	@test -n "$(PYTHON)" || { echo "cqueue needs Python 3.11 or newer with venv; install it, or say where: make PYTHON=/path/to/python3"; exit 2; }
	@echo "== Installing into $(1) ($$($(PYTHON) --version))"
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	@$(1)/bin/python $(PIP_INSTALL) --editable $(2)
	@touch $@
endef

# One process rewrites the assertions of all tests before the workers collect them: workers that begin side by side each
# rewrite most of them. What is wrong with a test is said by the workers.
%/.rewritten: %/.installed
	@$*/bin/python -m pytest --collect-only -qq > /dev/null 2>&1 || true
	@touch $@

.PHONY: help setup jars demo check test features test-all environments everything test-lowest test-python \
	test-spark spark-faults lint audit types style security unit fuzz simulate mutation coverage faults \
	faults-quick spool-crashes backup-drill on-call soak-dispatch bench performance bench-peers clean

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) jars  ## A virtual environment in .venv, and the jars of the embedded Cassandra.

$(STAMP): setup.cfg pyproject.toml
	$(call install,$(VENV),'.[test$(,)lint]')

$(CORE_STAMP): setup.cfg pyproject.toml
	$(call install,$(VENV),.)

jars: $(STAMP)
	@$(BIN)/cqueue dev jars

demo: $(DEMO_STAMP)  ## Run the main job on an embedded Cassandra, and account for every message.
	@$(BIN)/cqueue dev jars
	@echo "== Running the demo"
	@$(BIN)/cqueue demo

check: $(STAMP)  ## Style, types, and the tests that need no Cassandra and no real time (a minute on two cores).
	$(BESIDE) types style unit

test: setup  ## `make check`, every feature on a real Cassandra, and 2,000 schedules of the simulator (five minutes).
	$(BESIDE) types style features

features: $(VENV)/.rewritten
	@echo "== Running the tests"
	@$(PYTEST) -n $(MANY_WORKERS) $(CHECK_PROFILE) -m "$(TEST)"

test-all: setup lint  ## All tests: long stories, quick faults, 10,000 schedules more, Spark, lowest versions. `.ci/run` calls this.
	$(BESIDE) everything environments
	@$(MAKE) --no-print-directory test-lowest
	@$(MAKE) --no-print-directory test-spark

# One after the other: both installs write the metadata of this tree. Their tests run alone, as side by side they
# starve one another: Spark gives a worker ten seconds to call back.
environments:
	@$(MAKE) --no-print-directory $(SPARK_STAMP)
	@$(MAKE) --no-print-directory $(LOWEST_STAMP)

everything: $(VENV)/.rewritten
	@echo "== Running all tests but those of cqueue.spark"
	@$(PYTEST) -n $(FEW_WORKERS) --durations=20

test-lowest: $(LOWEST_VENV)/.rewritten  ## The quick tests with the lowest versions that setup.cfg allows, in an environment of their own.
	@echo "== Running the quick tests with the lowest versions of what cqueue needs"
	@$(LOWEST_VENV)/bin/python -m pytest -q -n $(QUICK_WORKERS) --dist worksteal $(HANGS) $(CHECK_PROFILE) -m "$(CHECK)"

$(LOWEST_STAMP): setup.cfg pyproject.toml tests/lowest.py
	@test -n "$(LOWEST_PYTHON)" || { echo "cqueue needs Python 3.11 or newer with venv; say where: make test-lowest LOWEST_PYTHON=/path/to/python3.11"; exit 2; }
	@echo "== Installing the lowest versions into $(LOWEST_VENV) ($$($(LOWEST_PYTHON) --version))"
	@test -x $(LOWEST_VENV)/bin/python || $(LOWEST_PYTHON) -m venv $(LOWEST_VENV)
	@$(LOWEST_VENV)/bin/python -m tests.lowest > $(LOWEST_VENV)/constraints.txt
	@$(LOWEST_VENV)/bin/python $(PIP_INSTALL) \
		--constraint $(LOWEST_VENV)/constraints.txt --editable '.[test]'
	@touch $@

test-python:  ## The quick tests on another Python, in an environment of its own: make test-python PYTHON=python3.13
	@$(MAKE) --no-print-directory unit VENV=.venv-$$($(PYTHON) -c 'import sys; print("{}.{}".format(*sys.version_info))')

test-spark: $(SPARK_STAMP)  ## Tests of cqueue.spark, in a virtual environment of their own (650 MB).
	@$(SPARK_VENV)/bin/cqueue dev jars
	@echo "== Running the tests of cqueue.spark"
	@$(SPARK_TESTS)

spark-faults: $(SPARK_STAMP)  ## Kill Spark's driver in every phase of a batch (ten minutes).
	@$(SPARK_VENV)/bin/cqueue dev jars
	@$(SPARK_VENV)/bin/python -m pytest -q -m fault tests/spark

$(SPARK_STAMP): setup.cfg pyproject.toml
	$(call install,$(SPARK_VENV),'.[test$(,)spark]')

lint: $(STAMP)  ## Style, types, prose, who may import whom.
	@echo "== Checking style, types and imports"
	@$(MAKE) --no-print-directory --jobs $(WORKERS) --output-sync=target types style security

audit: $(STAMP)  ## Look for advisories of the oldest versions that setup.cfg allows (asks pypi.org).
	@$(BIN)/python $(PIP_INSTALL) pip-audit
	@$(BIN)/python -m tests.lowest | $(BIN)/pip-audit --strict --no-deps --disable-pip --requirement /dev/stdin

types: $(STAMP)
	@$(BIN)/mypy --no-error-summary -p cqueue -p tests.typing

style: $(STAMP)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/python -m tests.prose
	@$(BIN)/lint-imports --no-cache > /dev/null || { $(BIN)/lint-imports; exit 1; }

# Ruff's rules S, which are part of style, look for almost the same in a tenth of a second.
security: $(STAMP)
	@$(BIN)/bandit --quiet --configfile pyproject.toml --recursive cqueue dispatcher schema pyspark_cqueue.py

spool-crashes: $(STAMP)  ## Kill a process that writes a spool 1,000 times, and damage 1,000 images of a crash (minutes).
	@$(BIN)/python -W ignore -m tests.spool.crashes --kills 1000 --images 1000 --seed $(SEED)

unit: $(VENV)/.rewritten  ## The tests of `make check`.
	@echo "== Running the quick tests"
	@$(PYTEST) -n $(QUICK_WORKERS) -q $(CHECK_PROFILE) -m "$(CHECK)"

fuzz: $(FUZZ_STAMP)  ## Fuzz decoders and outside input, guided by coverage (atheris): make fuzz SECONDS=60 ONLY=any_url
	@$(FUZZ_VENV)/bin/python -m tests.fuzz --seconds $(SECONDS) --only '$(ONLY)'

$(FUZZ_STAMP): setup.cfg pyproject.toml
	$(call install,$(FUZZ_VENV),'.[test]' 'atheris>=3.0')

simulate: $(STAMP)  ## Seeded schedules of the protocol under faults: make simulate N=20000 SEED=1 [WITHOUT=rule]
	@$(BIN)/python -m tests.simulation --schedules $(N) --seed $(SEED) $(addprefix --without ,$(WITHOUT))

mutation: $(STAMP)  ## Change the code in MUTANTS places, one at a time; tests and simulator must notice: docs/reference/proof.md
	@$(BIN)/python -m tests.mutation --mutants $(MUTANTS) --seed $(SEED) --workers $(WORKERS) \
		--baseline mutation-baseline.json

coverage: setup $(SPARK_STAMP)  ## Lines and branches that `make test` and `make test-spark` reach without processes of their own (25 minutes).
	@$(PYTEST) -m "$(TEST) and not interrupted" --cov --cov-report=
	@$(SPARK_TESTS) --cov --cov-append --cov-report=
	@$(BIN)/coverage report

bench: setup  ## Throughput beside the bare driver, latency, idle cost, on an embedded Cassandra.
	@$(BIN)/cqueue dev start
	@export CQUEUE_URL="$$($(BIN)/cqueue dev status --json | \
		$(BIN)/python -c 'import json, sys; print(json.load(sys.stdin)["url"])')"; \
	$(BIN)/cqueue schema apply; \
	for what in warm-up ratio latency idle; do $(BIN)/cqueue bench $$what; done
	@echo "The Cassandra goes on; stop it with: $(BIN)/cqueue dev stop"

performance: setup  ## All benchmarks on an embedded Cassandra, and docs/reference/performance.md with plots (an hour).
	@$(BIN)/python $(PIP_INSTALL) 'matplotlib>=3.9'
	@$(BIN)/cqueue dev start --heap 2048m
	@trap '$(BIN)/cqueue dev stop' EXIT; \
	export CQUEUE_URL="$$($(BIN)/cqueue dev status --json | \
		$(BIN)/python -c 'import json, sys; print(json.load(sys.stdin)["url"])')"; \
	$(BIN)/cqueue schema apply; \
	$(BIN)/python -m benchmarks.report --page docs/reference/performance.md --plots docs/images

bench-peers: setup $(PEERS)/.venv/.installed $(PEERS)/dyno/target/.built  ## Our figures beside those of other queues: make bench-peers MESSAGES=2000 ONLY=celery,rq
	@$(PEERS)/.venv/bin/python -m benchmarks.peers --messages $(MESSAGES) --rounds $(ROUNDS) --only '$(ONLY)' \
		--json $(PEERS)/results.json
	@echo "All figures: $(PEERS)/results.json"

$(PEERS)/.venv/.installed: $(PEERS)/requirements.txt | $(STAMP)
	@echo "== Installing the Python peers into $(PEERS)/.venv"
	@test -x $(PEERS)/.venv/bin/python || $(PYTHON) -m venv $(PEERS)/.venv
	@$(PEERS)/.venv/bin/python $(PIP_INSTALL) -r $<
	@touch $@

# A Java peer that was not built is skipped, visibly; the others are measured.
$(PEERS)/dyno/target/.built: $(PEERS)/dyno/pom.xml $(wildcard $(PEERS)/dyno/src/main/java/cqueue/peers/*.java)
	@command -v mvn >/dev/null || { echo "No mvn, so dyno-queues is left out: apt-get install maven"; exit 0; }; \
	echo "== Building the Java peer"; \
	if mvn --quiet --batch-mode -f $< package; then touch $@; else echo "Not built: dyno-queues is left out"; fi

faults-quick: setup  ## Before a change to what is stored: nodes killed and cut off, packs with a replica away (eight minutes).
	@CQUEUE_FAULTS=storage $(BIN)/python -m pytest -q tests/faults

faults: setup  ## Kill, stop and cut real processes and nodes, and write docs/reference/faults.md, if all are run (70 minutes).
	@CQUEUE_FAULTS=1 CQUEUE_FAULTS_PAGE=$(if $(filter tests/faults,$(FAULTS)),docs/reference/faults.md) \
		$(BIN)/python -m pytest -q $(FAULTS)

backup-drill: setup  ## Snapshot under load, loss of the cluster, restore: make backup-drill NODES=3 (a minute, or four).
	@CQUEUE_DRILL=1 CQUEUE_DRILL_NODES=$(NODES) $(BIN)/python -m pytest -q -s tests/acceptance/test_backup.py

on-call: setup  ## The tutorial in which a node dies, word by word, on three nodes (three minutes).
	@CQUEUE_DRILL=1 $(BIN)/python -m pytest -q -s tests/acceptance/test_on_call.py

soak-dispatch: setup  ## A daemon under load on the cluster of CQUEUE_URL: make soak-dispatch MINUTES=120
	@$(BIN)/python -m benchmarks.soak_dispatch --minutes $(MINUTES)

clean:  ## Remove what set-up and tests made here; the jars and the embedded Cassandra's data stay.
	rm -rf $(VENV) $(VENV)-* .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage* mutation*.json build dist *.egg-info
