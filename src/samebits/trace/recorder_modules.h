/* Calls of modules as spans: what torch's hooks before and after them call. */

#pragma once

typedef struct {
    PyObject_HEAD PyObject *named;  /* Kinds of all modules in one, by `id`. */
    PyObject *kind_of;              /* The kind of a module that is in none that was called. */
    PyObject *ended;                /* The kind of a call: of its kind, what it gave and its error. */
    int sampled;                    /* Whether what a call gives is told. */
} Modules;

enum { TREES = 64, NESTED = 32 };

/* Which modules are in one, where and of which types. 0: not known, as one that is within itself. */
static uint64_t tree_of(PyObject *module, uint64_t hash, int depth) {
    PyObject *inner = depth < NESTED ? PyObject_GetAttrString(module, "_modules") : NULL, *name, *each;
    PyErr_Clear();
    int fine = inner && PyDict_Check(inner);
    hash = mixed(mixed(hash, (uintptr_t)module), (uintptr_t)Py_TYPE(module));
    for (Py_ssize_t at = 0; fine && PyDict_Next(inner, &at, &name, &each);) {
        hash = each == Py_None ? hash : tree_of(each, mixed(hash, (uint64_t)PyObject_Hash(name)), depth + 1);
        fine = hash != 0;
    }
    Py_XDECREF(inner);
    return fine ? mixed(hash, 0) : 0;
}

/* Kinds of all modules in one, by `id`, of trees that were met: names of a tree that is as it was are as they were. */
static PyObject *names_of(Modules *self, PyObject *outermost) {
    static PyObject *trees = NULL;
    if (!trees && !(trees = PyDict_New())) return NULL;
    uint64_t hash = tree_of(outermost, 1, 0);
    PyObject *key = PyLong_FromUnsignedLongLong(hash), *names = key ? PyDict_GetItemWithError(trees, key) : NULL;
    Py_XINCREF(names);
    if (!names && !PyErr_Occurred()) {
        names = PyObject_CallOneArg(self->named, outermost);
        if (PyDict_GET_SIZE(trees) == TREES) PyDict_Clear(trees);
        if (names && hash && PyDict_SetItem(trees, key, names) < 0) Py_CLEAR(names);
    }
    Py_XDECREF(key);
    return names;
}

/* A new reference to the kind of a module by its place in the outermost that was called, of which `names` are. */
static PyObject *kind_of_module(Modules *self, Stack *stack, PyObject *module) {
    if (!stack->modules) {
        PyObject *names = names_of(self, module);
        if (!names) return NULL;
        Py_XSETREF(stack->names, names);
    }
    PyObject *number = PyLong_FromVoidPtr(module);
    PyObject *kind = number ? PyDict_GetItemWithError(stack->names, number) : NULL;
    Py_XDECREF(number);
    if (kind) return Py_NewRef(kind);
    return PyErr_Occurred() ? NULL : PyObject_CallOneArg(self->kind_of, module);
}

/* before(module, arguments) */
static PyObject *modules_before(Modules *self, PyObject *const *given, Py_ssize_t count) {
    if (!current || count != 2) Py_RETURN_NONE;
    Recorder *recorder = (Recorder *)Py_NewRef((PyObject *)current);
    Stack *stack = stack_of_thread(recorder->serial, recorder->threads);
    PyObject *kind = stack ? kind_of_module(self, stack, given[0]) : NULL;
    Open *open = kind ? stack_push(stack, ++recorder->numbers) : NULL;
    if (open) {
        PyObject *error = PyErr_GetHandledException();
        open->module = given[0], open->error = error, open->kind = kind;
        Py_XDECREF(error); /* It is handled for longer than this call. */
        stack->modules++;
        open->began = now();
    }
    Py_DECREF(recorder);
    if (open) Py_RETURN_NONE;
    Py_XDECREF(kind);
    return NULL;
}

/* A call of a module that is under way has ended. With the outermost span of its thread everything is told. */
static int end_call(Modules *self, Recorder *recorder, Stack *stack, Py_ssize_t at, PyObject *output, int64_t ended) {
    const Open open = stack->open[at];
    PyObject *kind = Py_NewRef(open.kind), *error = output == Py_None ? PyErr_GetHandledException() : NULL;
    stack_remove(stack, at);
    Place place = {open.number, at ? stack->open[at - 1].number : 0, stack->thread, open.began, ended};
    int failed = error && error != open.error;
    if (failed || (self->sampled && output))
        Py_SETREF(kind, PyObject_CallFunctionObjArgs(self->ended, kind, output ? output : Py_None,
                                                     failed ? (PyObject *)Py_TYPE(error) : Py_None, NULL));
    Py_XDECREF(error);
    int kept = kind ? keep(recorder, kind, &place) : -1;
    Py_XDECREF(kind);
    return kept == 0 && !place.parent && recorder->records ? tell(recorder) : kept;
}

/* after(module, arguments, output). A call that began before these hooks is not there; one that an interrupt cut off,
   after which torch calls nothing, ends with the call around it. */
static PyObject *modules_after(Modules *self, PyObject *const *given, Py_ssize_t count) {
    if (!current || count != 3) Py_RETURN_NONE;
    int64_t ended = now();
    Recorder *recorder = current;
    Stack *stack = stack_of_thread(recorder->serial, recorder->threads);
    if (!stack) return NULL;
    Py_ssize_t at = stack->depth - 1;
    while (at >= 0 && stack->open[at].module != given[0]) at--;
    if (at < 0) Py_RETURN_NONE;
    Py_INCREF(recorder);
    Py_INCREF(stack);
    int kept = 0;
    for (Py_ssize_t inner = stack->depth - 1; kept == 0 && inner > at; inner--)
        if (stack->open[inner].kind) kept = end_call(self, recorder, stack, inner, NULL, ended);
    if (kept == 0) kept = end_call(self, recorder, stack, at, given[2], ended);
    Py_DECREF(stack);
    Py_DECREF(recorder);
    if (kept < 0) return NULL;
    Py_RETURN_NONE;
}

static int modules_init(Modules *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"named", "kind_of", "ended", "sampled", NULL};
    PyObject *named, *kind_of, *ended;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OOOp", names, &named, &kind_of, &ended, &self->sampled))
        return -1;
    Py_XSETREF(self->named, Py_NewRef(named));
    Py_XSETREF(self->kind_of, Py_NewRef(kind_of));
    Py_XSETREF(self->ended, Py_NewRef(ended));
    return 0;
}

static void modules_dealloc(Modules *self) {
    Py_XDECREF(self->named);
    Py_XDECREF(self->kind_of);
    Py_XDECREF(self->ended);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef modules_methods[] = {
    {"before", (PyCFunction)(void (*)(void))modules_before, METH_FASTCALL, NULL},
    {"after", (PyCFunction)(void (*)(void))modules_after, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject ModulesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "samebits.trace.recorder.Modules",
    .tp_basicsize = sizeof(Modules),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)modules_init,
    .tp_dealloc = (destructor)modules_dealloc,
    .tp_methods = modules_methods,
};
