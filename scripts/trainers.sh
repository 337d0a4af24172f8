#!/usr/bin/env bash
# An environment with real trainers, for the tests marked `trainers`: scripts/trainers.sh FOLDER PYTHON TORCH
# A trainer's package is installed without what it declares (GPU engines); the rest is what its writers of files import.
# With SLIME, ROLL or CURE in the environment (checkouts), also what their code imports or starts.
# If that fails, an older environment stays. In CI it is an error, unless the package index does not answer.
set -euo pipefail
folder=${1%/} python=$2 torch=$3
older=$folder.older away=

# uv installs these 130 packages in 20 seconds, pip in 160: it resolves faster, downloads several files at once, and
# leaves compiling to the first import. It does not read pip's settings, so those of the environment are handed on, and
# pip installs torch first: a machine may have a small build of it where only pip looks.
[ -z "${PIP_FIND_LINKS:-}" ] || export UV_FIND_LINKS=${PIP_FIND_LINKS// /,}
[ -z "${PIP_INDEX_URL:-}" ] || export UV_INDEX_URL=$PIP_INDEX_URL
[ -z "${PIP_EXTRA_INDEX_URL:-}" ] || export UV_EXTRA_INDEX_URL=$PIP_EXTRA_INDEX_URL
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=$PIP_CERT

uv="uv==0.13.9"
pip() { "$folder/bin/uv" pip install --quiet --python "$folder/bin/python" "$@"; }
install() {
  local packages=("$torch" "tensordict==0.10.0" "transformers>=5.5.3,<5.11,!=5.6.0" "ray>=2.41" "TransferQueue>=0.1.10")
  packages+=(accelerate cachetools codetiming datasets fastapi jmespath omegaconf orjson peft pillow pylatexenc)
  packages+=(tensorboard torchdata uvicorn)
  "$python" -m venv "$folder" &&
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$uv" "$torch" &&
    pip "${packages[@]}" &&
    pip --no-deps "verl==0.9.1" "trl==1.16.0" &&
    pip --no-deps --target "$folder/verl-0.8" "verl==0.8.0" # for the older rollout skip
}
install_and_replace() { # the older environment is at its place again if the new one is not complete
  [ ! -d "$folder" ] || [ -d "$older" ] || mv "$folder" "$older" || return 1
  rm -rf "$folder"
  if ! install; then
    ! is_index_away || away=yes
    if [ -n "$away" ] || ! install; then # a download may break off, so it is tried once more
      rm -rf "$folder"
      [ ! -d "$older" ] || mv "$older" "$folder"
      return 1
    fi
  fi
  rm -rf "$older"
}
is_index_away() {
  local probe=("$folder/bin/python" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps)
  probe+=(--timeout 15 --retries 1 --dest "$folder/probe" "$uv")
  [ -x "$folder/bin/python" ] && ! env -u PIP_FIND_LINKS "${probe[@]}" # links may lead to a folder of this machine
}
install_for_checkouts() { pip pytest wandb; }
install_for_live_plug_ins() { # what NeMo-RL, SkyRL, AReaL and OpenRLHF import
  pip aiofiles aiohttp cloudpathlib colorlog einops flask func_timeout hydra-core jaxtyping lark loguru matplotlib numba &&
    pip math-verify openai prometheus_client pybase64 rich tabulate tenacity uvloop wandb zstandard
}
describe() { "$python" -VV && echo "$torch" && cat "$0"; } # what an environment depends on
run_once() { # run_once STAMP COMMAND: runs the command, unless it was run for the same description
  { [ -f "$folder/$1" ] && [ "$(describe)" = "$(cat "$folder/$1")" ]; } || { "$2" && describe >"$folder/$1"; }
}

if ! run_once ready install_and_replace; then
  if [ -d "$folder" ]; then
    echo "Can't install the trainers' packages; their tests run with the older ones."
  else
    echo "Can't install the trainers' packages; their tests are skipped."
  fi
  if [ -n "${CI:-}" ] && [ -z "$away" ]; then
    echo "In CI that is an error, because the package index answers." >&2
    exit 1
  fi
elif [ -n "${SLIME:-}${ROLL:-}${CURE:-}" ] && ! run_once ready-for-checkouts install_for_checkouts; then
  echo "Can't install what slime, ROLL and CURE import; tests that need it fail."
fi
if [ -x "$folder/bin/python" ] && [ -n "${NEMO_RL:-}${SKYRL:-}${AREAL:-}${OPENRLHF:-}" ] &&
  ! run_once ready-for-live-plug-ins install_for_live_plug_ins; then
  echo "Can't install what NeMo-RL, SkyRL, AReaL and OpenRLHF import; tests that need it fail."
fi
