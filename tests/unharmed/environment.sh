# Prints what a program can see of itself: descriptors, threads, signals, limits, variables.
ls /proc/self/fd
grep -E '^(Threads|SigPnd|ShdPnd|SigBlk|SigIgn|SigCgt|NoNewPrivs|Seccomp|CoreDumping|TracerPid|FDSize):' /proc/self/status
cat /proc/self/limits /proc/self/comm /proc/self/oom_score_adj
variables() { env -0 | grep -zvE '^(LD_PRELOAD|TLLM[A-Z_]*|_)=' | sort -z; }
variables | tr '\0' '\n' | grep -oE '^[A-Za-z_0-9]+='
variables | sha256sum
find . -type f
