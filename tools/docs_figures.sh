#!/usr/bin/env bash
# Draw the schedule diagrams of docs/nccl.md into docs/img.
set -euo pipefail
cd "$(dirname "$0")/.."
draw() { # NAME KIND CLUSTER SIZE ENV...
  local name=$1 kind=$2 cluster=$3 size=$4 folder; shift 4
  folder=$(mktemp -d)
  local env=(); for setting in "$@"; do env+=(--env "$setting"); done
  .venv/bin/python -m genie.cli figure schedule --collective "$kind" --cluster "$cluster" \
    --size "$size" "${env[@]}" -o "$folder" --formats svg >/dev/null
  mv "$folder/schedule.svg" "docs/img/$name.svg"; rmdir "$folder"
}
draw ring all_reduce h100x1:4 4K NCCL_ALGO=allreduce:Ring NCCL_PROTO=LL
draw tree all_reduce h100x1:8 4K NCCL_ALGO=allreduce:Tree NCCL_PROTO=LL
draw nvls_tree all_reduce h100x8use2:4 64K NCCL_ALGO=allreduce:NVLSTree
draw pat all_gather h100x1:8 4K NCCL_ALGO=allgather:PAT
draw all_to_all all_to_all h100x1:4 4K
