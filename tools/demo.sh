#!/usr/bin/env bash
# What `make demo` shows: a training step of a small transformer, 8 ranks, TP 4 x DP 2, replayed
# between two workers on this machine over TCP. Usage: tools/demo.sh OUT
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-demo-out}
genie=.venv/bin/genie
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
mkdir -p "$out"

say "The trace: workloads/demo"
$genie inspect workloads/demo
say "The plan: what NCCL would send between the two hosts"
$genie plan workloads/demo --cluster local:2x4
say "Replay over TCP between two workers"
$genie replay workloads/demo --endpoints local:2 --iterations 10 --warmup 2 \
  -o "$out/run" --force --perfetto "$out/perfetto"
say "Bus bandwidth of all_reduce by size"
$genie bench all_reduce -b 1K -e 16M -f 4 -n 10 -w 2 --endpoints local:2 -o "$out/bench" --force
.venv/bin/python tools/demo_figures.py "$out"
say "Done. Pictures: $out/timeline.png, $out/busbw.png (and .svg); traces for ui.perfetto.dev: $out/perfetto"
