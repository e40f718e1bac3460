# The first that works and that the locks support; python3, which is then refused, where none does.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3 python; do \
    $$name -c 'import ensurepip' && $$name locks/environment.py check && echo $$name && exit; \
    done 2> /dev/null; echo python3)
# What is installed stays; DEVICE=cuda or DEVICE=cpu changes it.
DEVICE ?= $(if $(wildcard .venv/.ready-cuda),cuda,cpu)
BIN := .venv/bin
READY := .venv/.ready-$(DEVICE)
DEV_READY := .venv/.dev-$(DEVICE)
LM_EVAL_READY := .venv-lm-eval/.ready
TRITON_READY := .triton/.ready
CLUSTER_READY := .venv/.cluster-$(DEVICE)
DEMO ?= checkpoints

.PHONY: help setup setup-lm-eval setup-triton setup-cluster try-cluster browser demo test lint lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(READY): locks/$(DEVICE).txt locks/environment.py pyproject.toml
	@rm -rf $(if $(filter-out $(READY),$(wildcard .venv/.ready-*)),.venv)
	@$(PYTHON) locks/environment.py install $(DEVICE)
	@touch $@

$(DEV_READY): locks/dev.txt | $(READY)
	@$(PYTHON) locks/environment.py install dev
	@touch $@

setup: $(READY) ## make .venv with the locked packages (DEVICE=cuda for a GPU)

$(LM_EVAL_READY): locks/lm-eval.txt locks/environment.py | $(READY)
	@$(PYTHON) locks/environment.py install lm-eval
	@touch $@

setup-lm-eval: $(LM_EVAL_READY) ## make .venv-lm-eval, the interpreter that accuracy=lm_eval needs

$(TRITON_READY): locks/triton.txt locks/environment.py | $(READY)
	@$(PYTHON) locks/environment.py install triton
	@touch $@

setup-triton: $(TRITON_READY) ## make .triton, whose interpreter the tests of our kernels need

$(CLUSTER_READY): locks/cluster.txt locks/environment.py | $(READY)
	@$(PYTHON) locks/environment.py install cluster
	@touch $@

setup-cluster: $(CLUSTER_READY) ## add Ray and submitit to .venv, for launcher=ray and launcher=slurm

# After what installs into .venv, too: two installers at once would disturb each other.
try-cluster: $(DEV_READY)
	@$(MAKE) --no-print-directory setup-cluster || \
	    echo "Ray and submitit could not be installed: the tests of both launchers are skipped"
	@command -v slurmctld munged > /dev/null || \
	    echo "Slurm is not installed (apt-get install slurm-wlm munge): its tests are skipped"

browser: ## install Debian's Chromium for the tests of the report's page, where there is none
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || \
	    { echo "installing chromium" && $(if $(filter 0,$(shell id -u)),,sudo -n) sh -c \
	    'apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium \
	    fonts-dejavu-core' > /dev/null 2>&1; } || \
	    echo "there is no Chromium, and none could be installed: the page's tests are skipped"

demo: $(READY) ## quantize SmolLM2 on this machine, ask it something, measure it, write the report
	@$(BIN)/python -m quantize recipe=w8a8_smooth_gptq model=smollm2-135m replace=true \
	    calibration.samples=16 calibration.length=256 output_dir=$(DEMO)
	@$(BIN)/python -m serve model=smollm2-135m checkpoint_root=$(DEMO) \
	    prompt='What is the capital of Japan?'
	@$(BIN)/python -m evaluate model=smollm2-135m checkpoint_root=$(DEMO) results=$(DEMO)/demo.jsonl \
	    scenario=interactive scenario.interactive.input_tokens=32 \
	    scenario.interactive.output_tokens=8 repeats=5

test: lint $(DEV_READY) $(LM_EVAL_READY) $(TRITON_READY) try-cluster browser ## lint, types and all tests that this machine can run
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=30

lint: $(DEV_READY) ## ruff (lint and format) and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

lock: ## resolve the packages anew into locks/
	@$(PYTHON) locks/environment.py lock

clean: ## remove .venv, caches and built files (checkpoints stay)
	rm -rf .venv .venv-lm-eval .triton .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info
