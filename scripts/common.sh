# Sourced by the scripts beside it: strict mode, the repository's root as working folder, and one way to talk.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PRESET=${PRESET:-ci}
JOBS=${JOBS:-$(scripts/jobs)}
export CTEST_OUTPUT_ON_FAILURE=1

# One line before a step: what it does and what it takes.
say() { printf '== %s\n' "$*"; }

# Prints one sentence and exits.
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# run_logged LOG COMMAND...: keeps the output in LOG and shows every 30 s that something still happens.
run_logged() {
  local log=$1 began=$SECONDS shown=0 status=0
  shift
  mkdir -p "$(dirname "$log")"
  printf '\n$ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null &
  local pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    if ((SECONDS - began >= shown + 30)); then
      shown=$((SECONDS - began))
      printf '   ... still at it after %d s\n' "$shown"
    fi
    sleep 0.2
  done
  wait "$pid" || status=$?
  return "$status"
}
