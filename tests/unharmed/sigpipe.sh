# Writes to pipes whose reader has ended. SIGPIPE's default action must be unchanged.
yes | head -n 3; echo "${PIPESTATUS[@]}"
seq 1000000 | sed -n 5q; echo "${PIPESTATUS[@]}"
(trap '' PIPE; yes 2> refused | head -n 1; echo "${PIPESTATUS[@]}"; cat refused)
python3 -c 'import sys
for n in range(1000000): print(n)' 2> trace | head -n 2; echo "${PIPESTATUS[@]}"
tail -n 1 trace
cat /etc/passwd | grep -c root | tr 0-9 n
