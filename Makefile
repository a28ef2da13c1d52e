# Everything is built into bin/ from modules that go.mod files pin. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.ONESHELL:
.SUFFIXES:
MAKEFLAGS += --no-print-directory --no-builtin-rules

ROOT := $(CURDIR)
BIN := $(ROOT)/bin
# Images and the leftovers of runs.
RUN := $(ROOT)/.run

# One set of compiler settings, so that programs, images, tests and the linter share one build cache.
export CGO_ENABLED := 0

# The operator's image. `make deploy IMG=registry.example.com/taskwarden:v1` puts another one into the manifests.
IMG ?= taskwarden.dev/taskwarden:dev
# The image of the workers in examples/ and in the tests. The demo puts another one into its samples; the tests do not.
IMAGING_IMG ?= taskwarden.dev/imaging:dev
# Where `make demo` runs: local (a cluster of its own), current (the one that kubectl talks to) or kind.
CLUSTER ?= local
# For deploy and undeploy, which work on the reader's own cluster.
KUBECTL ?= kubectl
# Names of the local clusters. Give others to run two checkouts side by side.
LOCAL_CLUSTER ?= taskwarden
API_CLUSTER ?= api
E2E_CLUSTER ?= e2e
FAULTS_CLUSTER ?= faults
# More arguments for `go test`, such as GOTESTFLAGS='-run TestCancel -v'.
GOTESTFLAGS ?=
# The fault suite: LONG=1 asks for its long form, SEED=n for the random run of that seed, RUNS=n for so many with the next seeds.
export LONG SEED RUNS
# More arguments for the benchmark and the demo.
BENCH_ARGS ?=
DEMO_ARGS ?=

# Every Go module of the repository, and those of them, other than the root, that have tests.
MODULES := $(patsubst %/go.mod,%,$(patsubst ./%,%,$(shell find . -name go.mod -not -path './bin/*' -not -path './.run/*' -not -path './dist/*' | sort)))
MODULES := . $(filter-out . go.mod,$(MODULES))
OTHER_TEST_MODULES := examples/imaging hack/cluster
# Modules with code of ours; the remaining ones only pin versions.
LINT_MODULES := . $(OTHER_TEST_MODULES) hack/tools/lint

say = printf '\n==> %s\n'

##@ General

.PHONY: help
help: ## Show this text.
	@awk 'BEGIN { FS = ":.*## "; print "Usage: make TARGET" } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## Build the operator into bin/taskwarden.
	@$(say) "building bin/taskwarden"
	go build -o $(BIN)/taskwarden ./cmd/taskwarden

.PHONY: images
images: $(BIN)/cluster ## Build the images of the operator and of the example workers as tar files, without Docker.
	@$(say) "building images into .run/images"
	@mkdir -p $(RUN)/images
	$(BIN)/cluster image --package ./cmd/taskwarden --package ./cmd/taskwarden-reporter --dir . --tag $(IMG) -o $(RUN)/images/taskwarden.tar
	$(BIN)/cluster image --package ./cmd/imaging --package ./cmd/worker --dir examples/imaging --tag $(IMAGING_IMG) \
		--package ./cmd/sh --file examples/imaging/testdata/landscape.png:/pictures/landscape.png -o $(RUN)/images/imaging.tar

.PHONY: clean
clean: ## Delete what was built here. The cache of the local cluster stays.
	rm -rf $(BIN) $(RUN) dist

##@ Generated files

.PHONY: generate
generate: generate-code generate-manifests generate-docs ## Regenerate everything that is generated.

.PHONY: generate-code
generate-code: $(BIN)/controller-gen
	@$(say) "generating deep copies"
	$(BIN)/controller-gen object paths=./api/...

# controller-gen writes the CRD from the types; hack/gen adds the rules of the state table and writes docs/states.md.
.PHONY: generate-manifests
generate-manifests: generate-code $(BIN)/controller-gen
	@$(say) "generating the CRD, the state table and the controller's role"
	rm -rf $(BIN)/crd
	$(BIN)/controller-gen crd:generateEmbeddedObjectMeta=true paths=./api/... output:crd:dir=$(BIN)/crd
	go run ./hack/gen
	$(BIN)/controller-gen rbac:roleName=taskwarden-controller paths=./controllers/... output:rbac:dir=config/rbac

.PHONY: generate-docs
generate-docs: generate-code $(BIN)/crd-ref-docs
	@$(say) "generating docs/api.md"
	$(BIN)/crd-ref-docs --config hack/tools/crd-ref-docs/config.yaml --templates-dir hack/tools/crd-ref-docs/templates \
		--source-path api/v1alpha1 --renderer markdown --output-path docs/api.md --log-level ERROR

##@ Checks

.PHONY: verify
verify: verify-modules verify-format verify-generated ## Regenerate everything and fail on any difference; check modules and format.

.PHONY: verify-generated
verify-generated: generate
	@$(say) "comparing with what is committed"
	changed=$$(git status --porcelain --untracked-files=all)
	if [[ -n $$changed ]]; then
		git --no-pager diff
		printf '%s\n' "$$changed"
		echo "The files above differ from the last commit. Run 'make generate' and commit the result."
		exit 1
	fi

.PHONY: verify-modules
verify-modules:
	@for module in $(MODULES); do
		$(say) "go mod tidy -diff in $$module"
		go -C "$$module" mod tidy -diff
	done

.PHONY: verify-format
verify-format:
	@$(say) "gofmt"
	unformatted=$$(git ls-files --cached --others --exclude-standard '*.go' | xargs "$$(go env GOROOT)/bin/gofmt" -l)
	if [[ -n $$unformatted ]]; then
		printf 'Not formatted:\n%s\n' "$$unformatted"
		exit 1
	fi

.PHONY: lint
lint: $(BIN)/golangci-lint ## Run golangci-lint with kube-api-linter in every module.
	@failed=
	for module in $(LINT_MODULES); do
		$(say) "golangci-lint in $$module"
		(cd "$$module" && $(BIN)/golangci-lint run --config $(ROOT)/.golangci.yml ./...) || failed=1
	done
	[[ -z $$failed ]]

##@ Tests

.PHONY: test
test: test-unit test-api test-e2e test-cluster ## Run all tests, with all their set-up.

.PHONY: test-unit
test-unit: ## Run the tests that need no cluster, in every module.
	@$(say) "unit tests"
	packages=$$(go list ./... | grep -vE '/test/(api|e2e|faults)(/|$$)')
	go test -timeout 10m $(GOTESTFLAGS) $$packages
	for module in $(OTHER_TEST_MODULES); do
		$(say) "unit tests in $$module"
		go -C "$$module" test -timeout 10m $(GOTESTFLAGS) ./...
	done

.PHONY: test-api
test-api: $(BIN)/cluster ## Run the tests against a real API server without nodes. KEEP=1 keeps it for the next run.
	@$(say) "API-server tests"
	hack/with-cluster.sh $(API_CLUSTER) --node none -- bash -euc '
		export TASKWARDEN_TEST_KUBECONFIG=$$CLUSTER_KUBECONFIG TASKWARDEN_TEST_AUDIT_LOG=$$CLUSTER_AUDIT_LOG
		go test -count=1 -timeout 30m -parallel 8 $(GOTESTFLAGS) ./test/api/...'

.PHONY: test-faults
test-faults: $(BIN)/cluster ## Kill, refuse, delay and lose what the operator does, at a real API server. LONG=1: all of it.
	@$(say) "fault tests"
	hack/with-cluster.sh $(FAULTS_CLUSTER) --node none -- bash -euc '
		export TASKWARDEN_TEST_KUBECONFIG=$$CLUSTER_KUBECONFIG TASKWARDEN_TEST_AUDIT_LOG=$$CLUSTER_AUDIT_LOG
		go test -count=1 -timeout 3h -parallel 8 $(GOTESTFLAGS) ./test/faults/...'

.PHONY: test-e2e
test-e2e: images ## Run the tests against a real cluster with real containers (root on Debian). KEEP=1 keeps it.
	@$(say) "end-to-end tests"
	hack/with-cluster.sh $(E2E_CLUSTER) --node kubelet -- bash -euc '
		$(BIN)/cluster load-image --name $$CLUSTER_NAME $(RUN)/images/taskwarden.tar $(RUN)/images/imaging.tar
		export TASKWARDEN_E2E_KUBECONFIG=$$CLUSTER_KUBECONFIG TASKWARDEN_E2E_AUDIT_LOG=$$CLUSTER_AUDIT_LOG
		go test -count=1 -timeout 30m $(GOTESTFLAGS) ./test/e2e/...'

.PHONY: test-cluster
test-cluster: ## Run the tests of the local cluster itself, which start clusters of their own (root on Debian).
	@$(say) "tests of the local cluster"
	go -C hack/cluster test -tags cluster -count=1 -timeout 30m $(GOTESTFLAGS) .

.PHONY: bench
bench: $(BIN)/cluster ## Compare Tasks with plain Jobs on simulated nodes; prints one JSON line for each figure.
	@$(say) "building the local cluster with simulated nodes"
	$(BIN)/cluster build --with kwok >/dev/null
	$(say) "benchmark"
	TASKWARDEN_CLUSTER_BIN=$(BIN)/cluster go run ./test/bench $(BENCH_ARGS)

.PHONY: bench-reports
bench-reports: $(BIN)/cluster ## Measure how the reports of 500 workers arrive, also when the gateways fail; prints one JSON line for each figure.
	@$(say) "building the local cluster with simulated nodes"
	$(BIN)/cluster build --with kwok >/dev/null
	$(say) "benchmark of reports"
	TASKWARDEN_CLUSTER_BIN=$(BIN)/cluster go run ./test/benchreports $(BENCH_ARGS)

##@ See it run

.PHONY: demo
demo: images ## Show sample Tasks from start to end. CLUSTER=local (default), current or kind.
	@CLUSTER=$(CLUSTER) IMG=$(IMG) IMAGING_IMG=$(IMAGING_IMG) LOCAL_CLUSTER=$(LOCAL_CLUSTER) TASKWARDEN_CLUSTER_BIN=$(BIN)/cluster go run ./hack/demo $(DEMO_ARGS)

.PHONY: demo-down
demo-down: $(BIN)/cluster ## Take away what `make demo` has left.
	@CLUSTER=$(CLUSTER) LOCAL_CLUSTER=$(LOCAL_CLUSTER) TASKWARDEN_CLUSTER_BIN=$(BIN)/cluster go run ./hack/demo --down

.PHONY: cluster-up
cluster-up: $(BIN)/cluster $(BIN)/kubectl ## Bring the local cluster up, and print how to talk to it.
	@kubeconfig=$$($(BIN)/cluster up --name $(LOCAL_CLUSTER))
	printf '\nexport KUBECONFIG=%q PATH=%q:$$PATH\n' "$$kubeconfig" "$(BIN)"

.PHONY: cluster-down
cluster-down: $(BIN)/cluster ## Take the local cluster down.
	@$(BIN)/cluster down --name $(LOCAL_CLUSTER)

.PHONY: deploy
deploy: ## Install the operator (image IMG) into the cluster that KUBECTL talks to.
	@$(say) "installing $(IMG)"
	mkdir -p $(RUN)/deploy
	printf '%s\n' \
		'apiVersion: kustomize.config.k8s.io/v1beta1' \
		'kind: Kustomization' \
		'resources:' \
		'  - ../../config/default' \
		'images:' \
		'  - name: taskwarden.dev/taskwarden' \
		'    newName: $(call image_name,$(IMG))' \
		'    $(call image_tag,$(IMG))' >$(RUN)/deploy/kustomization.yaml
	$(KUBECTL) apply -k $(RUN)/deploy
	$(KUBECTL) wait --for=condition=Established crd/tasks.taskwarden.dev --timeout 1m
	$(KUBECTL) --namespace taskwarden-system rollout status deployment/taskwarden-controller --timeout 3m
	$(KUBECTL) --namespace taskwarden-system rollout status deployment/taskwarden-gateway --timeout 3m

.PHONY: undeploy
undeploy: ## Remove the operator, the CRD and with it ALL Tasks from the cluster that KUBECTL talks to.
	@$(say) "removing the operator"
	$(KUBECTL) delete -k config/default --ignore-not-found

# registry:5000/a/b:tag or registry:5000/a/b@sha256:..., in two parts.
image_name = $(shell printf '%s' '$(1)' | sed -E 's/@sha256:.*$$//; s/:[^:\/]*$$//')
image_tag = $(shell printf '%s' '$(1)' | sed -nE 's/^.*@(sha256:.*)$$/digest: "\1"/p; t; s/^.*:([^:\/]*)$$/newTag: "\1"/p; t; s/^.*$$/newTag: "latest"/p')

##@ Tools

.PHONY: tools
tools: $(BIN)/controller-gen $(BIN)/crd-ref-docs $(BIN)/golangci-lint $(BIN)/cluster ## Build the tools into bin/.

$(BIN)/controller-gen: hack/tools/go.mod hack/tools/go.sum
	@$(say) "building bin/controller-gen"
	go -C hack/tools build -o $@ sigs.k8s.io/controller-tools/cmd/controller-gen && touch $@

$(BIN)/crd-ref-docs: hack/tools/go.mod hack/tools/go.sum
	@$(say) "building bin/crd-ref-docs"
	go -C hack/tools build -o $@ github.com/elastic/crd-ref-docs && touch $@

$(BIN)/golangci-lint: hack/tools/lint/go.mod hack/tools/lint/go.sum hack/tools/lint/main.go
	@$(say) "building bin/golangci-lint (some minutes the first time)"
	go -C hack/tools/lint build -trimpath -ldflags '-s -w' -o $@ . && touch $@

# Go knows best whether it is up to date.
.PHONY: $(BIN)/cluster
$(BIN)/cluster:
	@go -C hack/cluster build -o $@ .

# kubectl is one of the programs of the local cluster. It also has the kustomize that this repository uses.
.PHONY: $(BIN)/kubectl
$(BIN)/kubectl: $(BIN)/cluster
	@programs=$$($(BIN)/cluster build)
	ln -sf "$$programs/kubectl" $@
