# Runs programs with an empty environment, so without the preload.
env -i /bin/sh -c 'echo "$0 $#"; exit 3' name one; echo "status: $?"
env -i A=1 env
env -i "$BASH" --norc -c 'echo "${LD_PRELOAD-unset} ${TLLM_PROFILE_START_STOP-unset}"'
env -u LD_PRELOAD sh -c 'echo "${LD_PRELOAD-unset}"'
(exec -c env)
