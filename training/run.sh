#!/usr/bin/env bash
# Retrain nano on a GPU machine: parse the sources, train, export. Needs torch with CUDA, tokenizers, safetensors; no network.
# usage: training/run.sh [OUT_DIR] [MINUTES]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-.data/nano-run} minutes=${2:-20}
export PYTHONPATH=.:runtime:kernels:model:tools PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1
mkdir -p "$out"
archive=.data/source.tar.xz executed=.data/executed.json.xz
python3 -m training.train --out "$out" --minutes "$minutes" $([ -f "$archive" ] && echo --archive "$archive") \
    $([ -f "$executed" ] && echo --executed "$executed")
python3 -m training.export "$out/weights.pt"
