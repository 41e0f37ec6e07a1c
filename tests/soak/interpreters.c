/* interpreters TICKETS SECONDS: for each ticket, starts Python, runs threads and garbage
 * collections in it, and ends Python. The program is linked to a shared or static libpython. */
#include "pace.h"

extern void Py_InitializeEx(int);
extern int Py_FinalizeEx(void);
extern int PyRun_SimpleString(const char *);

static const char SOURCE[] = "import gc, threading\n"
                             "def work():\n"
                             "    ring = []\n"
                             "    ring.append(ring)\n"
                             "    gc.collect()\n"
                             "threads = [threading.Thread(target=work) for _ in range(2)]\n"
                             "for thread in threads: thread.start()\n"
                             "for thread in threads: thread.join()\n";

int main(int argc, char **argv)
{
    pace_begin(argc, argv);
    while (pace_next() >= 0) {
        Py_InitializeEx(0);
        if (PyRun_SimpleString(SOURCE) != 0)
            return 4;
        if (Py_FinalizeEx() != 0)
            return 5;
    }
    return 0;
}
