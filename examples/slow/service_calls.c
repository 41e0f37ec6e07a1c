/* An example that suffers from a slow service: each step asks another process over a socket, and waits for its answer.
 *
 *   cc -O2 service_calls.c -o service_calls -ldl -lpthread
 *   tllmprof run --window 5-74 --step cuStreamSynchronize --stacks=1000 -- ./service_calls 80    # 80 steps
 */
#include "gpu.h"

#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 30, KERNEL_NS = 3000000, ANSWER_US = 6000 };

static void serve(int listener)
{
    char question[64];
    int client = accept(listener, NULL, NULL);
    while (client >= 0 && recv(client, question, sizeof question, 0) > 0) {
        usleep(ANSWER_US);
        if (send(client, question, 1, MSG_NOSIGNAL) != 1)
            break;
    }
    _exit(0);
}

/* Starts the service as a process of its own, which is no child of this one. Returns a socket that is connected to it. */
static int connect_to_service(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "service-%d", (int)getpid());
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), service = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&name, sizeof name) != 0 || listen(listener, 1) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        close(service);
        if (fork() == 0)
            serve(listener);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    close(listener);
    int connected = connect(service, (struct sockaddr *)&name, sizeof name);
    unlink(name.sun_path);
    return connected == 0 ? service : -1;
}

__attribute__((noinline)) static int look_up(int service)
{
    char answer = 0;
    if (send(service, "?", 1, MSG_NOSIGNAL) != 1 || recv(service, &answer, 1, 0) != 1)
        return -1;
    return answer;
}

int main(int count, char **words)
{
    int steps = count > 1 ? atoi(words[1]) : STEPS;
    int service = connect_to_service();
    if (service < 0)
        return 1;
    gpu_start(0);
    for (int step = 0; step < steps; step++) {
        if (look_up(service) < 0)
            return 1;
        gpu_launch(KERNEL_NS);
        gpu_wait();
    }
    return 0;
}
