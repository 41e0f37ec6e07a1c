#!/bin/sh
# Builds and runs all programs of causes.txt, and prints the main finding of each. The environment variables TLLMPROF
# and PYTHON may name the tllmprof command and the Python to use.
cd "$(dirname "$0")" || exit 1
tllmprof=${TLLMPROF:-tllmprof}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

grep -v '^#' causes.txt | while IFS='|' read -r program finds says step window variables options work; do
    echo "== $program: $finds"
    set -- $program
    file=$1
    shift
    case $file in
    *.c)
        cc -O2 "$file" -o "$folder/${file%.c}" -ldl -lpthread || exit 1
        set -- "$folder/${file%.c}" "$@"
        ;;
    *) set -- "${PYTHON:-python3}" "$file" "$@" ;;
    esac
    env $variables "$tllmprof" run --trace "$folder/${file%.*}-$#-%p.tllmprof" --window $window --step $step $options -- "$@" \
        2>&1 </dev/null | sed -n '/^what stands out$/,$p; /^nothing stands out$/,$p; /error/p; /libcuda/p'
done
