#!/bin/sh
# Builds and runs all of them, and shows what stands out in each. TLLMPROF and PYTHON name the commands to use.
cd "$(dirname "$0")" || exit 1
tllmprof=${TLLMPROF:-tllmprof}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

show() { # NAME STEP OPTIONS… -- COMMAND…
    name=$1 step=$2
    shift 2
    echo "== $name"
    "$tllmprof" run --trace "$folder/$name-%p.tllmprof" --window 5-24 --step "$step" "$@" 2>&1 |
        sed -n '/^what stands out$/,$p; /^nothing stands out$/,$p; /error/p; /libcuda/p'
}

for name in healthy small_kernels host_waits slow_rank allocations; do
    cc -O2 "$name.c" -o "$folder/$name" -ldl || exit 1
    step=cuStreamSynchronize
    [ "$name" = host_waits ] && step=$step/6
    show "$name" "$step" -- "$folder/$name"
done
for name in gc_pauses gil_contention; do
    show "$name" cuStreamSynchronize --gc --gil -- "${PYTHON:-python3}" "$name.py"
done
