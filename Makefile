# make demo [DIR=folder]   sends every file of a folder through a small broker and reads them back with Spark
# make test                lint, types and the fast tests, in about three minutes; needs no server
# make test-fast           the fast tests alone
# make test-all            all tests, with every server that this machine has; SELECT="kafka or pulsar" runs a part
# make test-oldest         the fast tests with the oldest dependencies that pyproject.toml allows
# make docs                builds the documentation site into site/
# make bench               cost of the stores, compared with the vendors' clients
# make bench-line          S3 over a line like a cloud's, compared with boto3, its CRT, obstore and smart_open
# make bench-many          many payloads at once over a line, compared with asyncio clients and threads
# make bench-pulsar        Pulsar through the wrappers, compared with the native producer and consumer
# make bench-kafka         Kafka through the wrappers, compared with the native producer and consumer
# make bench-spark         Spark jobs, compared with hand-written ones
# make compare             strategies measured on the embedded broker, and on Kafka and Pulsar where they are found
# make structure           size of the library: lines, files, functions, imports
# make simulate            the clients in simulated brokers and stores, 1,000 seeds; RUNS=20000 SEED=5000 others, SEED=kafka-17 replays one
# make faults              random faults on real brokers and stores, 12 runs; RUNS=500 for more, SEED=kafka-17 replays one
# make soak                sends and receives for HOURS=2 hours with faults, and draws what memory and descriptors do
# make release             builds what is published into dist/, twice: source distribution, wheel, SBOM, hashes
# make spark-versions      which features run on which pyspark, each in its own environment (about 500 MB at a time)
# Every target creates its environment in .venv and needs only python3 (3.11 or newer) and pip.
# To use another Python: make demo PYTHON=python3.12

PYTHON      ?= python3
PYTEST_ARGS ?= -q --instafail --maxfail=12 --durations=20 --durations-min=3
BENCH_ARGS  ?=
# Of Hypothesis, see tests/conftest.py: with `full`, `make test` runs all examples.
PROFILE     ?= fast
COMPARE_ARGS ?=
VENV        ?= .venv
BIN         := $(VENV)/bin

# Files keep their order: tests/conftest.py puts the longest first. Tests with servers wait half of their time.
PYTEST      := $(BIN)/pytest --dist loadfile --no-loadscope-reorder -o tmp_path_retention_policy=failed

# Tests write into memory, if there is much: stores wait for the disk at each write, and no test is about that.
MEMORY      := $(shell grep -qs ' /dev/shm .*noexec' /proc/mounts || df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8000 {print "/dev/shm"}')
test test-fast test-all test-oldest: export TMPDIR := $(or $(TMPDIR),$(MEMORY),/tmp)

FAST        := $(PYTEST) -n 2 -m fast --hypothesis-profile=$(PROFILE) $(PYTEST_ARGS)

# Touch every dependency: stores, brokers' clients, encryption, compression, checksums, command line, configuration.
OLDEST      := tests/unit $(wildcard $(addprefix tests/conformance/test_,redis_*.py s3_*.py))

.PHONY: release simulate faults soak demo test test-fast test-all test-oldest lint docs structure spark-versions bench bench-line bench-many bench-pulsar bench-kafka bench-spark compare clean
.DELETE_ON_ERROR:
SHELL       := bash
.SHELLFLAGS := -o pipefail -c

demo: $(VENV)/.demo
	$(BIN)/python examples/demo/demo.py $(if $(DIR),"$(DIR)")

test: lint
	$(FAST)

# The same without lint. On another Python: make test-fast VENV=.venv/.other PYTHON=python3.13
test-fast: $(VENV)/.test
	$(FAST)

# A test whose server is missing is skipped; with CLAIMCHECK_REQUIRE_SERVERS=1 it fails. A part runs without lint.
test-all: $(if $(SELECT),$(VENV)/.test,lint)
	exec $(BIN)/python tests/servers.py $(PYTEST) -n 4 $(if $(SELECT),-m "$(SELECT)") $(PYTEST_ARGS)

# Spark has its own environments: see spark-versions.
test-oldest: $(VENV)/.oldest/oldest.txt
	$(VENV)/.oldest/bin/pytest --dist loadfile --no-loadscope-reorder -n 2 -m fast --hypothesis-profile=fast $(PYTEST_ARGS) $(OLDEST)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

structure: $(VENV)/.test
	$(BIN)/python tests/structure.py

simulate: $(VENV)/.test
	$(BIN)/python -m tests.simulation.run $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS))

# Needs what make test-all needs. Two seconds a run, and half a minute with Spark. A full disk needs root.
faults: $(VENV)/.test
	$(BIN)/python -m tests.fault.random_faults $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) $(FAULT_ARGS)

release:
	PYTHON=$(PYTHON) .ci/release

soak: $(VENV)/.bench
	$(BIN)/python -m tests.fault.soak --hours $(or $(HOURS),2) --out bench-results/soak.png

# Takes some minutes per version. VERSIONS=4.2 runs one, VERSIONS=3.5,4.3 two.
spark-versions:
	$(PYTHON) tests/spark_versions.py $(if $(VERSIONS),--versions $(VERSIONS))

# Writes JSON into bench-results/. BENCH_ARGS="--quick" is a trial run, "--only redis,s3" measures a part.
# OLD=v0.1.0 (a git revision, or a checkout) prints for each row how many times as fast this version is, in 9 rounds.
bench: $(VENV)/.bench
	$(BIN)/python tests/benchmarks/bench.py $(if $(OLD),--old $(OLD)) $(BENCH_ARGS)

# Needs versitygw and redis-server on PATH.
bench-line: $(VENV)/.bench
	$(BIN)/python tests/benchmarks/bench.py --only line --out bench-results/line $(if $(OLD),--old $(OLD)) $(BENCH_ARGS)

# Needs redis-server.
bench-many: $(VENV)/.bench
	$(BIN)/python tests/benchmarks/bench.py --only many --out bench-results/many $(if $(OLD),--old $(OLD)) $(BENCH_ARGS)

# Needs java and CLAIMCHECK_TEST_PULSAR_JARS: see tests/real/pulsar.xml.
bench-pulsar: $(VENV)/.bench
	$(BIN)/python tests/benchmarks/bench.py --only pulsar --out bench-results/pulsar $(if $(OLD),--old $(OLD)) $(BENCH_ARGS)

# Needs java and CLAIMCHECK_TEST_KAFKA_JARS: see tests/real/kafka.xml.
bench-kafka: $(VENV)/.bench
	$(BIN)/python tests/benchmarks/bench.py --only kafka --out bench-results/kafka $(if $(OLD),--old $(OLD)) $(BENCH_ARGS)

# Needs redis-server; the Pulsar rows also need what bench-pulsar needs. Installs a Java for Spark if there is none.
bench-spark: $(VENV)/.bench $(VENV)/.demo
	$(BIN)/python tests/benchmarks/bench.py --only spark,spark-source --out bench-results/spark $(if $(OLD),--old $(OLD)) $(BENCH_ARGS)

# Kafka and Pulsar: those of the environment, or started from the jars, see tests/servers.py. Writes into compare-results/.
# Your own broker and store: make compare COMPARE_ARGS="--kafka localhost:9092 --config claimcheck.yaml"; --help has more.
compare: $(VENV)/.bench
	exec $(BIN)/python $(if $(filter --kafka% --pulsar% --config% --help,$(COMPARE_ARGS)),,tests/servers.py $(BIN)/python) -m tests.benchmarks.compare $(COMPARE_ARGS)

clean:
	rm -rf $(VENV) bench-results compare-results site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "claimcheck needs Python 3.11 or newer, but '$(PYTHON)' is: $$($(PYTHON) --version 2>&1 | head -n 1)" >&2; \
	  echo "To use another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.oldest/oldest.txt: pyproject.toml tests/oldest.py | $(VENV)/.test
	@echo "Installing the oldest dependencies into $(VENV)/.oldest (about 400 MB) ..."
	@$(BIN)/python tests/oldest.py $(VENV)/.oldest

# One stamp file for each. The installation is editable, so a change of the sources does not repeat it.
packages = $(if $(filter demo,$*),--requirement examples/demo/requirements.txt,--editable '.[$*]')
$(VENV)/.demo $(VENV)/.test $(VENV)/.bench $(VENV)/.docs: $(VENV)/.%: pyproject.toml examples/demo/requirements.txt | $(BIN)/python
	@if [ -e $@ ]; then echo "Their list has changed: updating the packages of make $* ..."; \
	 elif [ $* = docs ]; then echo "Installing claimcheck-messaging[docs] (about 100 MB) ..."; \
	 elif [ $* = bench ]; then echo "Installing claimcheck-messaging[bench] (about 500 MB) ..."; \
	 elif [ -e $(BIN)/claimcheck ]; then echo "Installing the packages of make $* (about 500 MB) ..."; \
	 else echo "Installing the packages of make $* into $(VENV) (about 1 GB with Spark and a Java; takes some minutes) ..."; fi
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off $(packages) | \
	  awk '/^Collecting/ { print "  " $$1, $$2; fflush() } /^(Installing|Successfully)/ { print "  " substr($$0, 1, 90); fflush() }'
	@touch $@
