/* Installs a frame evaluator (PEP 523) for CPython 3.9 to 3.11. It calls CPython's own evaluator instead of the
 * one that was installed before. */
void *PyInterpreterState_Get(void);
void *_PyInterpreterState_GetEvalFrameFunc(void *);
void _PyInterpreterState_SetEvalFrameFunc(void *, void *);
void *_PyEval_EvalFrameDefault(void *, void *, int);

static void *found;

static void *evaluate(void *thread, void *frame, int throws) { return _PyEval_EvalFrameDefault(thread, frame, throws); }

void take(void) {
    found = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), (void *)evaluate);
}

void give_back(void) { _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), found); }

void give_to_python(void) { _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), (void *)_PyEval_EvalFrameDefault); }
