#!/bin/sh
# Runs a program with libtllmprof.so preloaded, for hosts that have the library but not the command. It sets the
# variables that `tllmprof run` sets. The library itself checks their values.
set -eu

usage() {
    cat <<'END'
Usage: tllmprof.sh [OPTIONS] [--] COMMAND...

  --window W       windows of iterations: A-B, N, A-, all, and comma lists of them; or steady[:N], N (50)
                   iterations from where their time has settled; or none
  --step RULE      what an iteration is: auto, a CUDA call such as cudaGraphLaunch/4, sym:, py: or nvtx:
  --warmup W       iterations not counted: a number of them, or capture
  --ranks LIST     ranks that open windows: 0,2-3
  --nsys[=ARGS]    under nsys, which captures the windows; ARGS are more arguments for it
  --help           this text

The library is TLLMPROF_LIB, or libtllmprof.so beside this script, in ../lib or in
../target/release.
END
}

fail() {
    printf 'tllmprof: %s\n' "$2" >&2
    exit "$1"
}

find_library() {
    if [ -n "${TLLMPROF_LIB:-}" ]; then
        [ -f "$TLLMPROF_LIB" ] ||
            fail 2 "TLLMPROF_LIB=\"$TLLMPROF_LIB\": there is no such file (wanted: the path of libtllmprof.so)"
        # CDPATH is emptied, because with it, cd may enter another folder and print its name.
        folder=$(CDPATH='' cd -- "$(dirname -- "$TLLMPROF_LIB")" && pwd)
        library=$folder/$(basename -- "$TLLMPROF_LIB")
        return
    fi
    here=$(dirname -- "$(readlink -f -- "$0")")
    for folder in "$here" "$here/../lib" "$here/../target/release"; do
        if [ -f "$folder/libtllmprof.so" ]; then
            library=$(CDPATH='' cd -- "$folder" && pwd)/libtllmprof.so
            return
        fi
    done
    fail 2 "libtllmprof.so was not found: TLLMPROF_LIB is not set, and there is none in $here, $here/../lib, $here/../target/release"
}

# Prints the number of windows in a list like 5-9,20-24. The library merges adjacent windows, so the
# number may be too high. nsys then waits for more windows until the program ends. This does no harm, because nsys has
# captured all windows of the program.
count_windows() {
    (
        IFS=,
        set -f
        # shellcheck disable=SC2086 # the shell splits $1 at commas, because IFS is a comma
        set -- $1
        echo $#
    )
}

# nsys_has NAME...: succeeds if the user has given nsys an option with one of these names. Such an option must not
# be added, because nsys refuses an option that is given twice.
nsys_has() {
    for name; do
        case " $nsys_arguments " in
        *" $name "* | *" $name="*) return 0 ;;
        esac
        case $name in
        --*) continue ;;
        esac
        # The value of a short option may follow directly, as in -tcuda.
        case " $nsys_arguments" in
        *" $name"*) return 0 ;;
        esac
    done
    return 1
}

nsys=no
nsys_arguments=
while [ $# -gt 0 ]; do
    case $1 in
    --window | --step | --warmup | --ranks)
        [ $# -ge 2 ] || fail 2 "$1: a value is missing"
        option=$1=$2
        shift 2
        ;;
    --)
        shift
        break
        ;;
    -*)
        option=$1
        shift
        ;;
    *) break ;;
    esac
    value=${option#*=}
    case $option in
    --window=*) export TLLMPROF_START_STOP="$value" ;;
    --step=*) export TLLMPROF_STEP="$value" ;;
    --warmup=*) export TLLMPROF_WARMUP="$value" ;;
    --ranks=*) export TLLMPROF_RANKS="$value" ;;
    --nsys) nsys=yes ;;
    --nsys=*)
        nsys=yes
        nsys_arguments=$value
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) fail 2 "there is no option ${option%%=*} (see tllmprof.sh --help)" ;;
    esac
done
if [ $# -eq 0 ]; then
    usage >&2
    exit 2
fi

library=
find_library
case $library in
*[\ :$]*)
    fail 2 "$library cannot be preloaded: the dynamic linker does not take a space, \":\" or \"\$\" in a path (copy the library to another folder, and set TLLMPROF_LIB)"
    ;;
esac

if [ $nsys = yes ]; then
    command -v nsys >/dev/null || fail 2 "nsys was not found on PATH"
    windows=${TLLMPROF_START_STOP:-${TLLM_PROFILE_START_STOP:-${TLLM_GPTM_PROFILE_START_STOP:-}}}
    set -f
    # shellcheck disable=SC2086 # $nsys_arguments holds several arguments, separated by spaces
    set -- $nsys_arguments "$@"
    set +f
    if [ -n "$windows" ] && [ "$windows" != none ]; then
        count=$(count_windows "$windows")
        # By default, nsys ends the program when the first window closes. With `stop`, nsys lets the program continue.
        # With `repeat:N`, nsys captures N windows.
        end=stop
        [ "$count" -eq 1 ] || end=repeat:$count
        nsys_has --capture-range-end || set -- --capture-range-end="$end" "$@"
        nsys_has -c --capture-range || set -- --capture-range=cudaProfilerApi "$@"
    fi
    # Inference engines fork their workers, which nsys does not trace without this option.
    nsys_has --trace-fork-before-exec || set -- --trace-fork-before-exec=true "$@"
    nsys_has -t --trace || set -- --trace=cuda,nvtx,osrt "$@"
    set -- nsys profile "$@"
fi

# The library is preloaded only from here on, so that it is not loaded into the programs that this script itself has
# started.
export LD_PRELOAD="$library${LD_PRELOAD:+:$LD_PRELOAD}"
exec "$@"
