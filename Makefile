# make demo [DIR=folder]   every file of a folder through a small broker and back through Spark
# make test                lint, types, layers and tests, as CI runs them
# make bench               what the stores cost, against the raw socket, raw HTTP and the vendors' own clients
# make bench-pulsar        Pulsar through the wrappers, against the native producer and consumer
# make bench-kafka         Kafka through the wrappers, against the native producer and consumer
# make bench-spark         Spark's jobs, against what people write by hand
# make structure           the library in numbers: lines, files, functions, imports
# make spark-versions      which features run on which pyspark, each in an environment of its own (about 500 MB at a time)
# make bench-peers         the same payloads through claimcheck and through what else there is for Python
# All make their own environment in .venv; python3 (3.11 or newer) and pip are all they need.
# Another Python: make demo PYTHON=python3.12

PYTHON      ?= python3
PYTEST_ARGS ?= -q -n 2 --dist loadfile --instafail --maxfail=12 --durations=20 --durations-min=5
BENCH_ARGS  ?=
VENV        := .venv
BIN         := $(VENV)/bin

.PHONY: demo test lint structure spark-versions bench bench-peers bench-pulsar bench-kafka bench-spark clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	$(BIN)/claimcheck demo $(if $(DIR),--dir "$(DIR)")

test: lint
	$(BIN)/pytest $(PYTEST_ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

structure: $(VENV)/.test
	$(BIN)/python tests/structure.py

# Takes some minutes per version. VERSIONS=4.2 tries one, VERSIONS=3.5,4.3 two.
spark-versions:
	$(PYTHON) tests/spark_versions.py $(if $(VERSIONS),--versions $(VERSIONS))

# Both write JSON and PNG into bench-results/. BENCH_ARGS="--quick" tries them, "--only redis,s3" measures a part.
bench: $(VENV)/.bench
	$(BIN)/python tests/benchmarks/bench.py $(BENCH_ARGS)

bench-peers: $(VENV)/.bench
	$(BIN)/python tests/benchmarks/peers.py $(BENCH_ARGS)

# Needs java, and CLAIMCHECK_TEST_PULSAR_JARS: see tests/real/pulsar.xml.
bench-pulsar: $(VENV)/.bench
	$(BIN)/python tests/benchmarks/bench.py --only pulsar --out bench-results/pulsar $(BENCH_ARGS)

# Needs java, and CLAIMCHECK_TEST_KAFKA_JARS: see tests/real/kafka.xml.
bench-kafka: $(VENV)/.bench
	$(BIN)/python tests/benchmarks/bench.py --only kafka --out bench-results/kafka $(BENCH_ARGS)

# Needs redis-server; for Spark it brings a Java where there is none, and for the rows of Pulsar see above.
bench-spark: $(VENV)/.bench $(VENV)/.demo
	$(BIN)/python tests/benchmarks/bench.py --only spark,spark-source --out bench-results/spark $(BENCH_ARGS)

clean:
	rm -rf $(VENV) .venv-peers bench-results build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "claimcheck needs Python 3.11 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1 | head -n 1)" >&2; \
	  echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp per extra. The installation is editable: a change of the sources needs no second one.
$(VENV)/.demo $(VENV)/.test $(VENV)/.bench: $(VENV)/.%: pyproject.toml | $(BIN)/python
	@if [ -e $@ ]; then echo "Installing what pyproject.toml names now ..."; \
	 elif [ $* = bench ]; then echo "Installing what claimcheck[bench] needs (about 500 MB, once) ..."; \
	 elif [ -e $(BIN)/claimcheck ]; then echo "Installing what claimcheck[$*] needs besides (about 400 MB, once) ..."; \
	 else echo "Installing claimcheck[$*] into $(VENV) (about 1 GB with Spark and a Java, once; quietly, some minutes) ..."; fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@
