# Every target sets up what it needs; the only things taken for granted are python3, make and a package index.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test test-postgres test-sqlite check check-lint fmt cover release sql explain bench prove docs site lock clean

PYTHON ?= python3
# two, because the long tests wait on disks and processes rather than on the processor; who is done early takes of the other's
TEST_PROCESSES ?= 2

VENV := .venv
# so that what the tests start by the thousand is not compiled by each of them
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
# what running takes is some thirty small packages; those of the tests, Spark and the tools are a hundred and large
RUNNABLE := $(VENV)/.runnable
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# benchmarks and examples are checked as soon as they exist
TYPED := src tests docs/_site $(wildcard benchmarks examples)
FAST_TESTS := tests/core tests/repo tests/contract tests/runtime tests/app

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make the virtual environment with the locked dependencies

# made again only when the locks or the project file changed
$(READY): requirements/lock.txt $(RUNNABLE) $(DOCS_READY)
	@echo "make: bringing what the checks and tests need to $(VENV), once; a hundred packages, some of them large"
	$(PIP_INSTALL) --require-hashes -r requirements/lock.txt
	@touch $(READY)

$(RUNNABLE): requirements/run.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; Longshore needs Python 3.11 or newer (make PYTHON=/path/to/python)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Longshore needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1); name another with make PYTHON=python3.12" >&2; exit 1; }
	@echo "make: setting up $(VENV), once; some thirty small packages"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --require-hashes -r requirements/run.txt
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(RUNNABLE)

$(DOCS_READY): requirements/docs.txt $(RUNNABLE)
	$(PIP_INSTALL) --require-hashes -r requirements/docs.txt
	@touch $(DOCS_READY)

run: $(RUNNABLE) ## start the whole platform on this machine (API, scheduler, a worker, a status page) until Ctrl-C
	$(BIN)/longshore up

test: check-lint ## the style, type and import checks, the whole test suite, and the tests of claims on PostgreSQL 15
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal
	$(BIN)/python -m tests.postgres_versions 15

test-postgres: $(READY) ## the tests of plans, claims and limits on other versions of PostgreSQL (VERSIONS="14 16 17")
	$(BIN)/python -m tests.postgres_versions $(or $(VERSIONS),15)

test-sqlite: $(READY) ## the backend contract, the runtime and the command line on SQLite alone
	LONGSHORE_TEST_STORES=sqlite $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) -m 'not postgres and not spark' tests/core tests/contract tests/runtime tests/app tests/cli

# on the store that needs neither disk nor server; make test runs every test on every store
check: check-lint ## the style, type and import checks and the fast tests, in under a minute
	LONGSHORE_TEST_STORES=memory $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) -p no:schemathesis -m 'not slow and not postgres' $(FAST_TESTS)

check-lint: $(READY) ## formatting, ruff, mypy --strict and the import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict $(TYPED)
	$(BIN)/lint-imports

fmt: $(READY) ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

cover: $(READY) ## run the fast tests on memory and SQLite, and print the share of lines and branches they cover
	LONGSHORE_TEST_STORES='memory sqlite' $(BIN)/python -m coverage run -m pytest -q -p no:schemathesis -m 'not postgres' $(FAST_TESTS) tests/backends
	$(BIN)/python -m coverage report

release: test ## test, build the packages, try the wheel in an empty environment, and tag the version of pyproject.toml
	$(BIN)/python -m tests.release

sql: $(READY) ## print every SQL statement, ready to paste into sqlite3 or psql (NAMES="claim_span": some of them)
	@$(BIN)/python -m tests.show_sql $(NAMES)

explain: $(READY) ## the same with the plan of each statement on a filled database
	@$(BIN)/python -m tests.show_sql --explain $(NAMES)

bench: $(READY) ## measure the product beside bare SQL and print the ratios
	$(BIN)/python -m benchmarks

prove: $(READY) ## the long forms of the proofs; dated summaries go into docs/proofs (PARTS="engine spark": some of them)
	LONGSHORE_PROVE=1 $(BIN)/python -m tests.prove $(PARTS)

docs: $(READY) ## write the generated pages and drawings in docs/
	$(BIN)/python -m docs._site.generate

# the theme announces the end of its support at every build; requirements/docs.in records the date
site: $(DOCS_READY) ## build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m docs._site.build site

lock: ## compile the lock anew, keeping its versions where they still fit (UPGRADE=1 takes the newest)
	@tool=$$(mktemp -d) && trap 'rm -rf "$$tool"' EXIT && \
	$(PYTHON) -m venv "$$tool" && "$$tool/bin/python" -m pip install --quiet --disable-pip-version-check uv && \
	compile() { env -u PIP_FIND_LINKS -u UV_FIND_LINKS "$$tool/bin/uv" pip compile --quiet --no-config --custom-compile-command 'make lock' \
		--universal --python-version 3.11 --fork-strategy fewest --generate-hashes --no-emit-index-url --no-emit-find-links pyproject.toml "$$@"; } && \
	compile requirements/lock.in $(if $(UPGRADE),--upgrade) --extra server --extra postgres --extra spark --extra otel --output-file requirements/lock.txt && \
	compile requirements/run.in --constraints requirements/lock.txt --extra server --output-file requirements/run.txt && \
	compile requirements/run.in --constraints requirements/lock.txt --extra server --extra postgres --extra otel --output-file requirements/image.txt && \
	compile requirements/docs.in --constraints requirements/lock.txt $(if $(UPGRADE),--upgrade) --output-file requirements/docs.txt

clean: ## remove the virtual environment and what the tools left behind
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests $(wildcard benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +
