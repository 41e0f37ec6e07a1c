# Statuses of programs that a signal ends; this script ends by one too.
ulimit -c 0
# The shell has messages of its own about them, with the process id.
cat > main.c << 'C'
#include <signal.h>
#include <stdlib.h>
int main(int count, char **words) {
    if (count == 1) return *(volatile int *)0;
    raise(atoi(words[1]));
    return 0;
}
C
gcc -O1 main.c -o main || exit
for number in 1 2 3 6 8 9 10 13 14 15 17 18 23 31 34 64; do
    { ./main $number; } 2> /dev/null; echo "$number: $?"
done
{ ./main; } 2> /dev/null; echo "null: $?"
timeout -s INT 0.2 sleep 60; echo "timeout: $?"
kill -TERM $$
