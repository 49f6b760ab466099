# Sourced by the shell tests beside it. A claim is a name, a command, and what its exit status and output must be.
# shellcheck shell=bash disable=SC2034
set -uo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
scratch=$(mktemp -d)
chmod 755 "$scratch"
trap 'rm -rf "$scratch"' EXIT
broken=0 held=0

# run COMMAND...: keeps the exit status and the output, line breaks as blanks because CMake wraps its messages.
run() {
  output=$("$@" 2>&1 </dev/null)
  status=$?
  flat=$(tr -s '\n ' ' ' <<<"$output")
}

# claim NAME CONDITION...: the condition is a command that looks at $status, $output and $flat.
claim() {
  local name=$1
  shift
  if "$@"; then
    held=$((held + 1))
    return
  fi
  broken=$((broken + 1))
  printf 'BROKEN: %s\n  condition: %s\n  exit status: %s\n%s\n' "$name" "$*" "$status" "${output//$'\n'/$'\n'  | }"
}

says() { [[ $flat == *"$1"* ]]; }
says_not() { [[ $flat != *"$1"* ]]; }
succeeds() { ((status == 0)); }
# Fails, and with exactly one sentence that begins as our errors do.
fails_with_one_sentence() { ((status != 0)) && [[ $(grep -c '^error: ' <<<"$output") == 1 ]]; }
fails() { ((status != 0)); }

finish() {
  printf '%d claims held, %d broken\n' "$held" "$broken"
  ((broken == 0))
}
