#!/usr/bin/env bash
# Retrain nano on a GPU machine: parse the sources, train, export. Needs torch with CUDA, tokenizers, safetensors, Pillow; no network.
# usage: [NANO_TO=FOLDER] training/run.sh [OUT_DIR] [MINUTES] [more options of training.train]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-.data/nano-run} minutes=${2:-20}
export PYTHONPATH=.:runtime:kernels:model:tools PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1
mkdir -p "$out"
archive=.data/source.tar.xz executed=.data/executed.json.xz
python3 -m training.train --out "$out" --minutes "$minutes" $([ -f "$archive" ] && echo --archive "$archive") \
    $([ -f "$executed" ] && echo --executed "$executed") "${@:3}"
python3 -m training.export "$out/weights.pt" --to "${NANO_TO:-model/m3_model/nano}"
