/* host MODE LIBPYTHON: embeds Python. This source is built in three ways:
 *   with LINKED             a program that is linked to libpython
 *   with LINKED and PLUGIN  a library that is linked to libpython and is loaded by another program (plugin_host.c)
 *   with neither            a program that opens libpython with dlopen when it needs it */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUNCTIONS(EACH)                                                                                                \
    EACH(void, Py_InitializeEx, (int))                                                                                 \
    EACH(int, Py_FinalizeEx, (void))                                                                                   \
    EACH(int, PyRun_SimpleString, (const char *))                                                                      \
    EACH(void *, Py_NewInterpreter, (void))                                                                            \
    EACH(void, Py_EndInterpreter, (void *))                                                                            \
    EACH(void *, PyThreadState_Get, (void))                                                                            \
    EACH(void *, PyThreadState_Swap, (void *))                                                                         \
    EACH(void *, PyEval_SaveThread, (void))                                                                            \
    EACH(void, PyEval_RestoreThread, (void *))                                                                         \
    EACH(int, PyGILState_Ensure, (void))                                                                               \
    EACH(void, PyGILState_Release, (int))                                                                              \
    EACH(int, PySys_AddAuditHook, (int (*)(const char *, void *, void *), void *))                                     \
    EACH(void, PyErr_SetString, (void *, const char *))                                                                \
    EACH(void, PyErr_Clear, (void))

#ifdef LINKED
#define DECLARE(result, name, args) extern result name args;
FUNCTIONS(DECLARE)
extern void *PyExc_ValueError;
#define RAISE() PyErr_SetString(PyExc_ValueError, "no hooks here")
static void find(const char *library) { (void)library; }
#else
#define DECLARE(result, name, args) static result(*name) args;
FUNCTIONS(DECLARE)
static void **value_error;
#define RAISE() PyErr_SetString(*value_error, "no hooks here")
static void *handle;
static void find(const char *library)
{
    /* Opens libpython with RTLD_GLOBAL, because extension modules of the standard library look for the
     * interpreter's functions among the global symbols. */
    handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    if (handle == NULL) {
        printf("%s\n", dlerror());
        exit(3);
    }
#define FIND(result, name, args) name = (result(*) args)dlsym(handle, #name);
    FUNCTIONS(FIND)
    value_error = dlsym(handle, "PyExc_ValueError");
}
#endif

static const char *work = "import truth; truth.work(); print('worked', flush=True)";

static void runs(const char *source)
{
    if (PyRun_SimpleString(source) != 0)
        exit(4);
}

static void *let_go;

static void begins(void)
{
    if (let_go != NULL)
        PyEval_RestoreThread(let_go);
    Py_InitializeEx(0);
}

static void ends(void)
{
    runs("truth.report()");
    printf("finalised: %d\n", Py_FinalizeEx());
}

static void sub_interpreters(void)
{
    void *subs[3], *own = PyThreadState_Get();
    runs(work);
    for (int i = 0; i < 3; i++) {
        subs[i] = Py_NewInterpreter();
        runs(work);
    }
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < 3; i++) {
            PyThreadState_Swap(subs[i]);
            runs(work);
        }
    for (int i = 0; i < 3; i++) {
        PyThreadState_Swap(subs[i]);
        runs("truth.report_sub()");
        Py_EndInterpreter(subs[i]);
    }
    PyThreadState_Swap(own);
}

static int raises(const char *event, void *args, void *data)
{
    (void)args, (void)data;
    if (strcmp(event, "sys.addaudithook") != 0)
        return 0;
    RAISE();
    return -1;
}

static void *native(void *arg)
{
    for (int i = 0; i < 50; i++) {
        int state = PyGILState_Ensure();
        runs("truth.work(1)");
        PyGILState_Release(state);
    }
    return arg;
}

static void native_threads(void)
{
    pthread_t threads[8];
    runs("import truth");
    void *state = PyEval_SaveThread();
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, native, NULL);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    PyEval_RestoreThread(state);
}

static void run(const char *mode, const char *library)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    if (strcmp(mode, "again") == 0) {
        find(library);
        for (int i = 0; i < 4; i++) {
            begins();
            runs(work);
            ends();
        }
        return;
    }
#ifndef LINKED
    if (strcmp(mode, "reopen") == 0) {
        for (int i = 0; i < 3; i++) {
            find(library);
            begins();
            runs("import sys; print(sys.version_info[:2] >= (3, 8))");
            runs("import gc, truth; truth.work()");
            ends();
            printf("closed: %d\n", dlclose(handle));
        }
        return;
    }
    if (strcmp(mode, "two") == 0) { /* two interpreters of different versions, whose functions have the same names */
        for (char *next = strdup(library), *one; (one = strsep(&next, ":")) != NULL;) {
            char *home = strsep(&next, ":");
            setenv("PYTHONHOME", home, 1);
            handle = dlopen(one, RTLD_NOW | RTLD_LOCAL);
            if (handle == NULL)
                exit(3);
#define FIND_LOCAL(result, name, args) name = (result(*) args)dlsym(handle, #name);
            FUNCTIONS(FIND_LOCAL)
            Py_InitializeEx(0);
            runs("import gc, sys; [gc.collect() for _ in range(5)]; print(sys.version_info[:2])");
        }
        return;
    }
#endif
    find(library);
    if (strcmp(mode, "audit") == 0)
        PySys_AddAuditHook(raises, NULL);
    begins();
    if (strcmp(mode, "sub-interpreters") == 0)
        sub_interpreters();
    else if (strcmp(mode, "native-threads") == 0)
        native_threads();
    else
        runs(work);
    if (strcmp(mode, "audit") == 0) {
        printf("refused: %d\n", PySys_AddAuditHook(raises, NULL));
        PyErr_Clear();
    }
    if (strcmp(mode, "left") == 0)
        runs("truth.report()");
    else if (strcmp(mode, "let-go") == 0) {
        runs("truth.report()");
        PyEval_SaveThread();
    } else
        ends();
}

#ifdef PLUGIN
void run_plugin(const char *mode, const char *library) { run(mode, library); }
/* Starts Python in the plugin's constructor, which runs before the library under test can look for Python in the
 * plugin. */
__attribute__((constructor)) static void early(void)
{
    if (getenv("PLUGIN_BEGINS") != NULL) {
        begins();
        runs("print('begun by the constructor', flush=True)");
        if (strcmp(getenv("PLUGIN_BEGINS"), "lets-go") == 0)
            let_go = PyEval_SaveThread();
    }
}
#else
int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    run(argv[1], argv[2]);
    return 7;
}
#endif
