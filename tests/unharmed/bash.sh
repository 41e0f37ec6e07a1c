# Checks the shell itself: forks, traps, pipes, file descriptors, exit status.
set -u
declare -A table=([one]=1 [two]=2)
for key in one two; do echo "$key=${table[$key]}"; done
diff <(printf 'a\nb\n') <(printf 'a\nc\n')
echo "diff: $?"
trap 'echo trapped USR1' USR1
kill -USR1 $BASHPID
coproc upper { tr a-z A-Z; }
echo shout >&"${upper[1]}"
# When the coprocess ends, bash closes its own ends of the coprocess's pipes, possibly before cat
# has started. So cat reads from a duplicate.
exec {answer}<&"${upper[0]}"
eval "exec ${upper[1]}>&-"
cat <&"$answer"
exec {answer}<&-
for i in 1 2 3 4 5 6 7 8; do (exit "$i") & pids[i]=$!; done
for i in "${!pids[@]}"; do wait "${pids[i]}"; echo "child $i: $?"; done
exec 7>kept; echo through seven >&7; exec 7>&-; cat kept
false | true | (exit 5); echo "${PIPESTATUS[@]}"
no-such-command-here; echo "missing: $?"
echo $((1 << 20)) "$(ulimit -n > /dev/null; echo nested "$(echo deep)")"
trap 'echo at exit' EXIT
exit 7
