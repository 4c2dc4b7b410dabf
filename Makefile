# Each target works in a fresh clone: the first one creates .venv and installs everything into it.

ENGINE ?=
READER ?= feeds
SECONDS ?= 1200
DAY ?= $(shell date +%F)
PYTHONS ?= python3.11 python3 python3.12 python3.13 python3.14

BIN := .venv/bin
READY := .venv/.ready
# One worker has the tests on Spark and one those with a browser. Both often wait for other processes.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadgroup

# Tests start many programs: each would compile its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo serve test lint house docs bench bench-stage1 feedparser-tests fuzz soak clean

demo: $(READY)
	$(BIN)/mmqjp demo $(if $(ENGINE),--engine $(ENGINE),--both)

# The same in a browser, until Ctrl-C.
serve: $(READY)
	$(BIN)/mmqjp demo --serve --engine $(or $(ENGINE),duckdb)

# Lint runs beside the tests, whose processes often wait for each other, and says afterwards what it found.
test: $(READY)
	@$(MAKE) --no-print-directory lint > .lint.log 2>&1 & lint=$$!; \
	status=0; $(PYTEST) || status=$$?; \
	wait $$lint || { cat .lint.log >&2; status=1; }; \
	exit $$status

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Figures of the structure: modules, lines, names that stand twice, chains of imports, files that take part.
house: $(READY)
	$(BIN)/python -W ignore -m tests.support.house

# The documentation as a site, in site/. A link that leads nowhere fails.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	$(BIN)/zensical build --strict --clean

# Most cases take long on Spark, so the benchmarks of stage 2 measure fewer there.
bench: bench-stage1
	for name in technical rss realistic; do \
		$(BIN)/mmqjp bench $$name $(call kept,$$name-duckdb) || exit 1; \
		$(BIN)/mmqjp bench $$name --engine spark --quick $(call kept,$$name-spark) || exit 1; \
	done
	$(BIN)/mmqjp bench state $(call kept,state)
	$(BIN)/mmqjp bench cluster $(call kept,cluster)
	$(BIN)/mmqjp bench adversarial --json bench-results/adversarial.json
	$(BIN)/mmqjp bench whole-path --json bench-results/whole-path.json
	$(BIN)/mmqjp bench expert --csv bench-results/expert.csv --json bench-results/expert.json
	$(BIN)/mmqjp bench peers $(call kept,peers)
	$(BIN)/mmqjp bench fanout --csv bench-results/fanout.csv --json bench-results/fanout.json
	$(BIN)/mmqjp bench fanout --kind same --queries 1 --pairs 20000 --json bench-results/fanout-pairs.json
	$(BIN)/mmqjp bench near $(call kept,near)
	$(BIN)/mmqjp bench absence $(call kept,absence)
	$(BIN)/mmqjp bench latency --csv bench-results/latency.csv --json bench-results/latency.json
	$(BIN)/mmqjp bench latency --engine spark --quick --json bench-results/latency-spark.json
	$(BIN)/mmqjp bench serve --csv bench-results/serve.csv --json bench-results/serve.json
	$(BIN)/mmqjp bench registration --csv bench-results/registration.csv --json bench-results/registration.json
	$(BIN)/mmqjp bench feeds --json bench-results/feeds.json
	for name in technical indexes double-top feeds rumor hybrid aggregates kleene errors windows peers; do \
		$(BIN)/mmqjp bench patterns $$name $(call kept,patterns-$$name) || exit 1; \
	done
	for name in held memory places trends; do \
		$(BIN)/mmqjp bench patterns $$name --csv bench-results/patterns-$$name.csv \
			--json bench-results/patterns-$$name.json || exit 1; \
	done

bench-stage1: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	@mkdir -p bench-results
	$(BIN)/mmqjp bench stage1 $(call kept,stage1)

kept = --csv bench-results/$(1).csv --json bench-results/$(1).json --plot bench-results/$(1)

# The test cases of the installed release of feedparser, which tests/feeds/test_feedparser_cases.py reads.
feedparser-tests: $(READY)
	rm -rf .feedparser
	version=$$($(BIN)/python -c 'import feedparser; print(feedparser.__version__)') && \
	$(BIN)/python -m pip download --quiet --no-deps --no-binary feedparser --dest .feedparser "feedparser==$$version" && \
	tar -xzf .feedparser/feedparser-$$version.tar.gz -C .feedparser
	$(PYTEST) tests/feeds/test_feedparser_cases.py

# READER is queries, feeds or configuration. What it finds is in crash-*, what it has tried in .cache/fuzz.
fuzz: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3.0'
	$(BIN)/python -m tests.fuzz $(READER) -max_total_time=$(SECONDS)

# Its random cases are others each day, a twentieth of what tests name: make soak DAY=2026-11-26 repeats those of a day.
soak: $(READY)
	MMQJP_TESTS_DAY=$(DAY) $(PYTEST) -m "" --hypothesis-profile=soak
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	@mkdir -p bench-results
	$(BIN)/mmqjp bench flat-state --documents 1000000 --json bench-results/flat-state.json --plot bench-results/flat-state

clean:
	rm -rf .venv .lint.log .feedparser .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis bench-results build dist site .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@for python in $(PYTHONS); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "creating .venv with $$python"; \
			exec $$python -m venv .venv; \
		fi; \
	done; \
	echo "error: no Python 3.11 or newer is on PATH: install one, or name it with make PYTHONS=/path/to/python" >&2; exit 1
	@# Python compiles a module when it is first imported; most never are.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	@touch $@
