# Runs a static program. It has no loader, so the preload cannot reach it. Programs that it starts
# must still work.
cat > main.c << 'C'
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    printf("%d %s\n", count, words[1]);
    fflush(stdout);
    if (system("echo from its child") != 0) return 1;
    fprintf(stderr, "on stderr\n");
    _exit(23);
}
C
gcc -static main.c -o main || exit
./main word; echo "main: $?"
gcc -static-pie -fPIE main.c -o pie 2> /dev/null && { ./pie word; echo "pie: $?"; }
exit 0
