#!/usr/bin/env bash
# An environment with a real trainer, for the tests marked `trainers`: scripts/trainers.sh FOLDER PYTHON TORCH
# Its package is installed without what it declares (GPU engines); the rest is what its writers of files import.
set -euo pipefail
folder=$1 python=$2 torch=$3
cmp -s "$0" "$folder/ready" && exit 0 # installed by this version of the script

pip() { "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install() {
  "$python" -m venv "$folder" &&
    pip "$torch" &&
    pip "tensordict==0.10.0" "transformers>=5.5.3,<5.11,!=5.6.0" "ray>=2.41" omegaconf orjson "TransferQueue>=0.1.10" &&
    pip accelerate cachetools codetiming datasets fastapi jmespath peft pillow pylatexenc tensorboard torchdata uvicorn &&
    pip --no-deps "verl==0.9.1" "trl==1.16.0" &&
    pip --no-deps --target "$folder/verl-0.8" "verl==0.8.0" # for the older rollout skip
}
if install; then
  cp "$0" "$folder/ready"
else
  rm -rf "$folder"
  echo "Can't install the trainers' packages; their tests are skipped."
fi
