/* Installs a frame evaluator (PEP 523) that calls CPython's own, whichever evaluator was installed before. For
 * CPython 3.9 to 3.11. */
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
