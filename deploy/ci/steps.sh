#!/usr/bin/env bash
# Runs groups of steps, shows where the time went, and leaves nothing running.
#
#   steps.sh check                 quick ones, no services
#   steps.sh services              tests that need a broker process, Kafka, an API server, or Kubernetes (root)
#   steps.sh check services        both; services only if check passed
#
# A failed step does not hide the next ones, unless those need its result. TIDEMILL_STEPS='unit kafka' runs only these.
# A local cluster that runs already is removed first.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repo"
# shellcheck source=../local/versions.env
. deploy/local/versions.env
export TIDEMILL_CACHE=${TIDEMILL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidemill}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$TIDEMILL_CACHE/target}
# The cache is kept between runs; incremental state would make it several times as large.
export CARGO_INCREMENTAL=0
TOOLS=$TIDEMILL_CACHE/tools
cluster=deploy/local/cluster.sh

# --- check ---

step_setup() { deploy/local/tools.sh packages build check && bound_cache; }
step_format() { cargo fmt --all --check; }
step_scripts() {
  local scripts
  # The parts in lib/ are read together with cluster.sh, which sources them.
  mapfile -t scripts < <(git ls-files -co --exclude-standard '*.sh' .ci/run ':!deploy/local/lib')
  shellcheck --external-sources --source-path=SCRIPTDIR "${scripts[@]}"
}
step_dependencies() {
  deploy/local/tools.sh cargo-deny
  "$TOOLS/cargo-deny-$CARGO_DENY_VERSION/bin/cargo-deny" --locked check bans licenses sources
}
step_charts() {
  deploy/local/tools.sh helm
  local chart
  for chart in charts/*/; do
    "$TOOLS/helm-$HELM_VERSION/bin/helm" lint --strict --quiet "$chart"
    "$TOOLS/helm-$HELM_VERSION/bin/helm" template --kube-version "$KUBERNETES_VERSION" check "$chart" > /dev/null
  done
}
step_lints() { cargo clippy --workspace --all-targets --locked -- -D warnings; }
# The tests of tidemill-e2e that need nothing are in its library.
step_unit() {
  cargo test --workspace --exclude tidemill-e2e --locked --quiet
  cargo test -p tidemill-e2e --lib --locked --quiet
}

# A target folder that grew over years of runs fills the disk of whoever keeps it.
bound_cache() {
  local limit_gib=${TIDEMILL_TARGET_GIB_MAX:-25} size_gib
  [ -d "$CARGO_TARGET_DIR" ] || return 0
  size_gib=$(du -s --block-size=1G "$CARGO_TARGET_DIR" | cut -f1)
  [ "$size_gib" -le "$limit_gib" ] || { echo "the target folder has $size_gib GiB: cleaning it"; cargo clean; }
}

# --- services ---

step_tools() { deploy/local/tools.sh all; }
step_binaries() { cargo build --workspace --bins --locked; }
step_recipe() { deploy/local/selftest.sh; }
step_standalone() {
  deploy/local/tools.sh packages build clients
  e2e standalone
}
# Clients and a broker of others: mosquitto's, paho-mqtt, MQTT.js, rumqttd.
step_interop() {
  deploy/local/tools.sh packages build clients
  deploy/local/tools.sh interop
  export TIDEMILL_E2E_INTEROP=$TOOLS/interop-$INTEROP_VERSION
  e2e interop
}
# The long form of the fuzz tests; the short one is in `unit` and `standalone`. It goes another way each time.
step_fuzz() {
  export TIDEMILL_FUZZ_SEED=${TIDEMILL_FUZZ_SEED:-$(date +%s)}
  TIDEMILL_FUZZ_CASES=20000000 PROPTEST_CASES=100000 cargo test --workspace --locked --test codec -- --nocapture
  TIDEMILL_FUZZ_CASES=200000 cargo test --workspace --locked --test standalone_fuzz -- --nocapture
}
step_kafka() {
  $cluster kafka 1
  e2e kafka
}
step_processes() {
  $cluster kafka 1
  $cluster api
  e2e processes
}
# `make run` and `make demo` word for word. Leaves the demo's cluster, with the operator, for the step after it.
step_newcomer() { deploy/ci/newcomer.sh; }
step_kubernetes() { e2e kubernetes || { deploy/local/explain.sh; return 1; }; }

# Which test files of e2e/tests belong to which step; each matches one of these.
declare -A TESTS=(
  [standalone]='standalone*'
  [interop]='interop* rumqttd*'
  [kafka]='*kafka*'
  [processes]='*processes* api_server* leases*'
  [kubernetes]='pods*'
)

# test_files STEP: the names of its test files.
test_files() {
  local pattern file
  for pattern in ${TESTS[$1]}; do
    for file in e2e/tests/$pattern.rs; do
      [ ! -e "$file" ] || basename "$file" .rs
    done
  done
}

# Runs the test files of STEP with what runs now. The tests say themselves what they miss.
e2e() {
  local name targets=()
  for name in $(test_files "$1"); do targets+=(--test "$name"); done
  [ ${#targets[@]} -gt 0 ] || { echo "no test file matches ${TESTS[$1]}"; return 0; }
  eval "$($cluster env)"
  # Of the whole workspace, so that dependencies have the features they were built with.
  cargo test --workspace --locked --no-fail-fast "${targets[@]}"
}

# A test file that no step runs would never fail.
every_test_has_a_step() {
  local file step names=''
  for step in "${!TESTS[@]}"; do names+=" $(test_files "$step" | tr '\n' ' ')"; done
  for file in e2e/tests/*.rs; do
    [ -e "$file" ] || continue
    file=$(basename "$file" .rs)
    [[ " $names " == *" $file "* ]] || { echo "steps.sh: no step runs e2e/tests/$file.rs; name it in TESTS" >&2; return 1; }
  done
}

# --- running them ---

names=()
seconds=()
results=()

# Each step is a process of its own, so that `set -e` holds inside of it and nothing leaks into the next.
run_step() {
  local name=$1 started=$SECONDS result=passed
  if [ -n "${TIDEMILL_STEPS:-}" ] && [[ " $TIDEMILL_STEPS " != *" $name "* ]]; then return 0; fi
  printf '\n=== %s ===\n' "$name"
  "$repo/deploy/ci/steps.sh" --step "$name" || result=FAILED
  names+=("$name")
  seconds+=($((SECONDS - started)))
  results+=("$result")
  [ "$result" = passed ]
}

run_check() {
  local name failed=0
  run_step setup || return 1
  for name in format scripts dependencies charts lints unit; do run_step "$name" || failed=1; done
  return $failed
}

run_services() {
  local failed=0 name
  every_test_has_a_step || return 1
  # What a demo or an interrupted run left would decide the outcome.
  services_started=yes
  $cluster down
  run_step binaries || return 1
  for name in standalone interop; do run_step "$name" || failed=1; done
  [ "${TIDEMILL_SOAK:-}" != 1 ] || run_step fuzz || failed=1
  run_step tools || return 1
  for name in recipe kafka processes; do run_step "$name" || failed=1; done
  $cluster down
  if run_step newcomer; then run_step kubernetes || failed=1; else failed=1; fi
  return $failed
}

finish() {
  local status=$? i
  trap - EXIT INT TERM
  if [ "$services_started" = yes ]; then
    if [ "$status" -ne 0 ] && [ -d "$TIDEMILL_CACHE/run/local/logs" ]; then
      rm -rf "$TIDEMILL_CACHE/failed-logs"
      cp -r "$TIDEMILL_CACHE/run/local/logs" "$TIDEMILL_CACHE/failed-logs"
      printf '\nlogs of the local cluster: %s\n' "$TIDEMILL_CACHE/failed-logs"
    fi
    $cluster down || status=1
  fi
  printf '\n%-14s %8s  %s\n' step seconds result
  for i in "${!names[@]}"; do printf '%-14s %8d  %s\n' "${names[i]}" "${seconds[i]}" "${results[i]}"; done
  printf '%-14s %8d\n' total "$SECONDS"
  exit "$status"
}

if [ "${1:-}" = --step ]; then
  "step_$2"
  exit
fi

services_started=no
with_services=no
for group in "$@"; do
  case $group in
    check) ;;
    services) with_services=yes ;;
    *) echo "steps.sh: unknown group '$group' (check, services)" >&2; exit 2 ;;
  esac
done
[ $# -gt 0 ] || { echo "steps.sh: takes groups: check, services" >&2; exit 2; }
if [ "$with_services" = yes ] && [ "$(id -u)" -ne 0 ]; then
  echo "steps.sh: the service tests need root (a local Kubernetes); 'make check' does not" >&2
  exit 1
fi
trap finish EXIT
trap 'exit 130' INT TERM
for group in "$@"; do "run_$group"; done
