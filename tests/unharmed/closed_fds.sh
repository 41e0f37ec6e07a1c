# Runs a daemon that closes all its descriptors, and programs that start with descriptors 0 to 2
# closed.
cat > daemon.c << 'C'
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void) {
    if (fork() > 0) return 0;
    setsid();
    if (fork() > 0) _exit(0);
    for (int i = 0; i < 1024; i++) close(i);
    int first = open("/dev/null", O_RDWR), second = dup(0), third = dup(0);
    int file = open("daemon.part", O_CREAT | O_WRONLY, 0644);
    dprintf(file, "%d %d %d %d\n", first, second, third, file);
    rename("daemon.part", "daemon.out");
    return 0;
}
C
gcc daemon.c -o daemon || exit
./daemon; echo "daemon: $?"
for i in $(seq 500); do [ -e daemon.out ] && break; sleep 0.02; done
cat daemon.out
cat > lowest.c << 'C'
#include <fcntl.h>
#include <unistd.h>
int main(void) { return 10 + open("/dev/null", O_RDONLY); }
C
gcc lowest.c -o lowest || exit
./lowest <&-; echo "no stdin: $?"
./lowest >&-; echo "no stdout: $?"
./lowest 2>&-; echo "no stderr: $?"
./lowest <&- >&- 2>&-; echo "none: $?"
cat <&-; echo "cat: $?"
echo text 2> /dev/null >&- ; echo "echo: $?"
python3 -c 'import os; os._exit(10 + os.open("/dev/null", 0))' <&- >&- 2>&-; echo "python: $?"
