#!/usr/bin/env bash
# Runs a command while a local cluster is up, and takes the cluster down afterwards, also when the command fails.
#
#   hack/with-cluster.sh NAME [option of `cluster up`...] -- COMMAND [ARGUMENT...]
#
# The command finds in its environment what `cluster env` prints, with the prefix CLUSTER_ (CLUSTER_KUBECONFIG,
# CLUSTER_AUDIT_LOG, CLUSTER_KUBECTL, ...), and CLUSTER_NAME.
# KEEP=1 leaves the cluster up, and uses one that is up already: the loop of edit and test costs seconds then.
set -euo pipefail

name=$1
shift
up=()
while [[ $# -gt 0 && $1 != -- ]]; do
	up+=("$1")
	shift
done
shift

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cluster=$root/bin/cluster
keep=${KEEP:-}

say() { printf '==> %s\n' "$*"; }

# Two runs that share one cluster would end it under each other.
lock=${TASKWARDEN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/taskwarden}/with-$name.lock
mkdir -p "$(dirname "$lock")"
exec 9>"$lock"
if ! flock --nonblock 9; then
	say "another run uses cluster $name: waiting for its end"
	flock 9
fi

finish() {
	local status=$?
	trap - EXIT
	if [[ -n $keep ]]; then
		say "cluster $name stays up (KEEP=1); end it with: bin/cluster down --name $name"
		exit "$status"
	fi
	if [[ $status -eq 0 ]]; then
		"$cluster" down --name "$name" 9>&- || status=$?
	else
		"$cluster" down --name "$name" --keep-logs 9>&- || true
		say "failed; logs and audit log are in ${CLUSTER_CLUSTER_DIR:-the folder of cluster $name}"
	fi
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ -z $keep ]]; then
	"$cluster" down --name "$name" 9>&-
fi
# What the cluster starts must not inherit the lock.
"$cluster" up --name "$name" "${up[@]}" 9>&- >/dev/null

while IFS='=' read -r key value; do
	export "CLUSTER_$key=$value"
done < <("$cluster" env --name "$name")
export CLUSTER_NAME=$name

"$@" 9>&-
