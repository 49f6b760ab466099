# The two commands of the README are `make quicktour` and `make test`; a bare `make` lists the rest.
PRESET ?= ci
JOBS ?= $(shell scripts/jobs)
PREFIX ?= /usr/local
ACCELERATE_GOLDEN_DIR ?= tests/golden
BUILD = build/$(PRESET)

# Clones of this repository share what ccache has compiled; a user without a writable home keeps it under build/.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
export CCACHE_STATSLOG ?= $(CURDIR)/build/ccache.log
ifneq ($(shell test -w "$$HOME" && echo writable),writable)
export CCACHE_DIR ?= $(CURDIR)/build/ccache
endif
export ACCELERATE_MAKE_BEGAN := $(shell date +%s)
export PRESET JOBS PREFIX

.DEFAULT_GOAL := help
.PHONY: help quicktour test golden soak test-cluster test-stock-pypi install bench lint format clean setup test-setup cluster-setup configure build
# Set-up, then configuring, then building: -j is for the compilers.
.NOTPARALLEL:

help: ## list these targets
	@echo "Accelerate for C++. PRESET=$(PRESET) JOBS=$(JOBS) PREFIX=$(PREFIX) can be set on the command line."
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1@\2/p' Makefile | while IFS=@ read -r name does; do printf '  make %-16s %s\n' "$$name" "$$does"; done

quicktour: configure ## install what is missing, build, and train a small model on two CPU processes
	@echo "== build: the library, the command line and one example, $(JOBS) compilers at a time (two or three minutes when cold)"
	@cmake --build --preset $(PRESET) -j $(JOBS) --target accelerate_cli first_run
	@echo "== quicktour: accelerate launch --cpu --num_processes 2 $(BUILD)/examples/first_run $(BUILD)/first_run"
	@$(BUILD)/cli/accelerate launch --cpu --num_processes 2 $(BUILD)/examples/first_run $(BUILD)/first_run

test: test-setup build ## the same set-up and what tests need, then the linters, every test, the sanitizer build of the torch-free part, and the budgets
	@scripts/test

golden: build ## the conformance tests alone, on ACCELERATE_GOLDEN_DIR (default tests/golden)
	@echo "== golden: conformance tests on $(abspath $(ACCELERATE_GOLDEN_DIR))"
	@ACCELERATE_GOLDEN_DIR=$(abspath $(ACCELERATE_GOLDEN_DIR)) ctest --test-dir $(BUILD) -L '^golden$$' --no-tests=error --verbose

soak: test-setup cluster-setup build ## the full counts: soak tests, fuzzing, then sanitizer builds of what links torch (two hours or more; PARTS="counts fuzz asan tsan")
	@scripts/soak $(PARTS)

test-cluster: cluster-setup build ## launches on hosts made of network namespaces, whose links are cut, under a Slurm of its own, with MPI, ssh and pdsh (root; ten minutes)
	@echo "== cluster: scenes on several hosts"
	@python3 tests/cluster/hosts.py --cli $(BUILD)/cli/accelerate --examples $(BUILD)/examples --rounds 3
	@echo "== cluster: scenes under Slurm"
	@python3 tests/cluster/slurm.py --cli $(BUILD)/cli/accelerate --examples $(BUILD)/examples
	@echo "== cluster: hostfiles"
	@python3 tests/cluster/hostfile.py --cli $(BUILD)/cli/accelerate --example $(BUILD)/examples/sharded
	@echo "== cluster: MPI"
	@python3 tests/cluster/mpi.py --cli $(BUILD)/cli/accelerate --example $(BUILD)/examples/sharded --scenes $(BUILD)/tests/scenes

test-stock-pypi: ## the quicktour, an installed package and the Python peers with the CUDA build of torch from PyPI and no CUDA toolkit (downloads 3 GB)
	@tests/package/stock_pypi

install: setup ## library, headers, command line and CMake package into PREFIX, built with preset release
	@scripts/install

bench: test-setup ## build the benchmarks with preset release and run them
	@echo "== bench: building with $(JOBS) compilers at a time, then measuring (minutes)"
	@cmake --preset release -DACCELERATE_BUILD_BENCHMARKS=ON
	@cmake --build --preset release --target bench -j $(JOBS)

lint: test-setup ## clang-format and clang-tidy, which change nothing; a part of make test
	@scripts/lint

format: ## clang-format our own sources in place
	@scripts/lint format

clean: ## remove what was built; build/venv (LibTorch and the Python peers) stays
	@find build -mindepth 1 -maxdepth 1 ! -name venv -exec rm -rf {} + 2>/dev/null || true

setup: ## what building needs, as far as it is missing: Debian packages and LibTorch
	@scripts/setup

test-setup: ## the same, and what tests need: linters, shells, the Python peers
	@scripts/setup test

cluster-setup: ## what building needs, and what make test-cluster starts: Slurm, munge, MPI, ssh, pdsh, iproute2
	@scripts/setup cluster

configure: setup
	@echo "== configure: $(BUILD)"
	@rm -f $(CCACHE_STATSLOG)
	@cmake --preset $(PRESET)

build: configure ## build all of PRESET
	@echo "== build: $(BUILD) with $(JOBS) compilers at a time (minutes when cold, seconds when ccache is warm)"
	@cmake --build --preset $(PRESET) -j $(JOBS)
