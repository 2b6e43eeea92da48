# Every target installs what it needs; what is slow to build is kept under $(TIDEMILL_CACHE). See docs/local-cluster.md.

export TIDEMILL_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tidemill
export CARGO_TARGET_DIR ?= $(TIDEMILL_CACHE)/target

.DEFAULT_GOAL := help
.PHONY: help run demo down check test bench soak tools images crds clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## the standalone broker on 127.0.0.1 with the embedded log (ARGS='...' for its flags)
	@deploy/local/tools.sh packages build clients
	cargo build --release --locked -p tidemill-broker
	@exec "$(CARGO_TARGET_DIR)/release/tidemill-broker" serve $(ARGS)

demo: ## a local Kubernetes and Kafka, the operator, and three brokers (root)
	@deploy/local/demo.sh

down: ## stops what demo or test left running, and removes its state
	@deploy/local/cluster.sh down

check: ## format, lints, dependency rules, unit tests; no services
	@deploy/ci/steps.sh check

test: ## everything: check, then tests on a real Kafka and a real Kubernetes (root)
	@deploy/ci/steps.sh check services

bench: ## the benchmarks; prints figures
	@deploy/local/tools.sh packages build clients
	cargo build --release --locked -p tidemill-broker
	cargo run --release --locked -p tidemill-e2e --bin bench -- $(ARGS)

soak: ## the long forms of the crash, fault, race and fuzz tests (root)
	@TIDEMILL_SOAK=1 deploy/ci/steps.sh services

tools: ## Kubernetes, etcd, CoreDNS, Helm, Kafka and the Debian packages, built once
	@deploy/local/tools.sh all

images: ## the images of broker and operator as OCI archives (root)
	@deploy/local/tools.sh packages
	@deploy/images/build.sh all

crds: ## writes the generated resource definitions again
	TIDEMILL_UPDATE_GOLDEN=1 cargo test --locked -p tidemill-crds --test golden

clean: ## removes compiled code and images, not the tools
	cargo clean
	rm -rf "$(TIDEMILL_CACHE)/images"
