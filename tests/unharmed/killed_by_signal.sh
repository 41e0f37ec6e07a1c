# Prints the status of programs that a signal kills. This script itself is also killed by one.
ulimit -c 0
# The shell prints messages with process ids about programs that are killed. The ids differ between
# runs, so these messages go to /dev/null below.
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
