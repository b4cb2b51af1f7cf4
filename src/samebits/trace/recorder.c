/* What a recording does at a kernel and at a module: two clocks and plain numbers into an array.

   After a kernel the interpreter's code and data have left the first caches, and every object that is made there costs
   a microsecond. So spans are told in batches, while code is warm, and what they have in common is found once. Nothing
   that is kept refers to a tensor. Everything runs with Python's lock held. */

#include "recorder_calls.h"
#include "recorder_kinds.h"
#include "recorder_threads.h"
#include <time.h>

typedef struct {
    PyObject_HEAD PyObject *on_gpu, *kind_of, *failed, *full;
    PyObject *threads; /* The stack of each, by its number. */
    uint64_t serial;
    int64_t numbers;
    Record *records; /* NULL: it has ended. */
    Py_ssize_t count, room;
} Recorder;

static uint64_t recorders = 0;
/* That goes on now; it is kept by who made it. */
static Recorder *current = NULL;

static int64_t now(void) {
    struct timespec time; /* The clock of Python's perf_counter_ns. */
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Has Python tell what was kept; another thread may close the recorder meanwhile. */
static int tell(Recorder *self) {
    PyObject *full = Py_NewRef(self->full), *told = PyObject_CallNoArgs(full);
    Py_DECREF(full);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

static int keep(Recorder *self, PyObject *kind, const Place *place) {
    while (self->records && self->count == self->room)
        if (tell(self) < 0) return -1;
    if (self->records) self->records[self->count++] = (Record){Py_NewRef(kind), *place};
    return 0;
}

/* A call that failed is kept, too, and its exception stays as it is. */
static void keep_failure(Recorder *self, PyObject *name, const Place *place) {
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *error = PyErr_GetRaisedException(), *type = (PyObject *)Py_TYPE(error);
#else
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
#endif
    PyObject *failed = Py_NewRef(self->failed), *kind = PyObject_CallFunctionObjArgs(failed, name, type, NULL);
    Py_DECREF(failed);
    if (!kind || keep(self, kind, place) < 0) PyErr_Clear();
    Py_XDECREF(kind);
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(type, error, trace);
#endif
}

/* around(name, run, arguments, flops): one call of an operator, recorded. */
static PyObject *recorder_around(Recorder *self, PyObject *const *call, Py_ssize_t count) {
    if (count != 4 || !PyTuple_Check(call[2])) {
        PyErr_SetString(PyExc_TypeError, "around: allowed are a name, a function, a tuple of its arguments, flops");
        return NULL;
    }
    if (!self->records) return PyObject_CallObject(call[1], call[2]);
    Key key;
    /* Before the call: what it writes is not in the caches' way yet. */
    read_call(&key, call[0], call[2]);
    if (key.on_gpu) return PyObject_Vectorcall(self->on_gpu, call, 4, NULL);
    Stack *stack = stack_of_thread(self->serial, self->threads);
    if (!stack) return NULL;
    Place place = {++self->numbers, stack_inside(stack), stack->thread, 0, 0};
    if (!stack_push(stack, place.number)) return NULL;
    Py_INCREF(self);
    Py_INCREF(stack);
    place.began = now();
    PyObject *result = PyObject_CallObject(call[1], call[2]);
    place.ended = now();
    stack_end(stack, place.number);
    Py_DECREF(stack);
    if (self->records && !result) {
        keep_failure(self, call[0], &place);
    } else if (self->records) {
        PyObject *kind_of = Py_NewRef(self->kind_of), *kind = kind_of_call(&key, kind_of, call, result);
        Py_DECREF(kind_of);
        if (!kind || keep(self, kind, &place) < 0) Py_CLEAR(result);
        Py_XDECREF(kind);
    }
    Py_DECREF(self);
    return result;
}

/* open(): a span of this thread that begins: its stack, number, parent and thread. */
static PyObject *recorder_open(Recorder *self, PyObject *Py_UNUSED(none)) {
    Stack *stack = stack_of_thread(self->serial, self->threads);
    if (!stack) return NULL;
    int64_t number = ++self->numbers, parent = stack_inside(stack);
    if (!stack_push(stack, number)) return NULL;
    return Py_BuildValue("OLLL", stack, (long long)number, (long long)parent, (long long)stack->thread);
}

/* inside(): the number of the span that this thread is in; 0: none. */
static PyObject *recorder_inside(Recorder *self, PyObject *Py_UNUSED(none)) {
    Stack *stack = stack_of_thread(self->serial, self->threads);
    return stack ? PyLong_FromLongLong((long long)stack_inside(stack)) : NULL;
}

/* keep(kind, number, parent, thread, began, ended): a span that has ended. */
static PyObject *recorder_keep(Recorder *self, PyObject *arguments) {
    PyObject *kind;
    long long number, parent, thread, began, ended;
    if (!PyArg_ParseTuple(arguments, "O!LLLLL", &KindType, &kind, &number, &parent, &thread, &began, &ended))
        return NULL;
    Place place = {number, parent, thread, began, ended};
    if (keep(self, kind, &place) < 0) return NULL;
    Py_RETURN_NONE;
}

static void let_go(Record *records, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) Py_DECREF(records[i].kind);
    PyMem_Free(records);
}

/* take(span, words): what was kept since the last time, as objects of the type `span` and as lines of JSON; neither is
   made of None. Other threads go on into an array of their own. */
static PyObject *recorder_take(Recorder *self, PyObject *const *given, Py_ssize_t arguments) {
    if (arguments != 2) {
        PyErr_SetString(PyExc_TypeError, "take: allowed are two arguments");
        return NULL;
    }
    Record *records = self->records, *fresh = records ? PyMem_Malloc((size_t)self->room * sizeof *fresh) : NULL;
    Py_ssize_t count = records ? self->count : 0;
    if (records && !fresh) return PyErr_NoMemory();
    self->records = fresh, self->count = 0;
    PyObject *spans = given[0] == Py_None ? Py_NewRef(Py_None) : spans_of(records, count, given[0]);
    PyObject *lines = !spans                 ? NULL
                      : given[1] == Py_None ? Py_NewRef(Py_None)
                                            : lines_of(records, count, given[1]);
    let_go(records, count);
    if (lines) return Py_BuildValue("NN", spans, lines);
    Py_XDECREF(spans);
    return NULL;
}

/* forget(): what was kept is not told. */
static PyObject *recorder_forget(Recorder *self, PyObject *Py_UNUSED(none)) {
    while (self->count) Py_DECREF(self->records[--self->count].kind);
    Py_RETURN_NONE;
}

/* close(): keeps nothing from now on, and lets go of everything. A call that is under way is no longer told. */
static PyObject *recorder_close(Recorder *self, PyObject *Py_UNUSED(none)) {
    if (current == self) current = NULL;
    Record *records = self->records;
    Py_ssize_t count = self->count;
    self->records = NULL, self->count = 0;
    let_go(records, count);
    Py_CLEAR(self->on_gpu);
    Py_CLEAR(self->kind_of);
    Py_CLEAR(self->failed);
    Py_CLEAR(self->full);
    Py_RETURN_NONE;
}

static void recorder_dealloc(Recorder *self) {
    Py_XDECREF(recorder_close(self, NULL));
    Py_XDECREF(self->threads);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int recorder_init(Recorder *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"on_gpu", "kind_of", "failed", "full", "room", NULL};
    PyObject *on_gpu, *kind_of, *failed, *full;
    Py_ssize_t room;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OOOOn", names, &on_gpu, &kind_of, &failed, &full, &room))
        return -1;
    if (self->serial || !dlpack || room < 1) {
        PyErr_SetString(PyExc_ValueError, "Recorder: allowed is one with room, made once, after look_at(Tensor)");
        return -1;
    }
    self->on_gpu = Py_NewRef(on_gpu), self->kind_of = Py_NewRef(kind_of);
    self->failed = Py_NewRef(failed), self->full = Py_NewRef(full);
    self->serial = ++recorders, self->room = room;
    self->threads = PyDict_New();
    self->records = PyMem_Malloc((size_t)room * sizeof *self->records);
    if (!self->threads || !self->records) {
        PyErr_NoMemory();
        return -1;
    }
    current = self;
    return 0;
}

static PyMethodDef recorder_methods[] = {
    {"around", (PyCFunction)(void (*)(void))recorder_around, METH_FASTCALL, NULL},
    {"open", (PyCFunction)recorder_open, METH_NOARGS, NULL},
    {"inside", (PyCFunction)recorder_inside, METH_NOARGS, NULL},
    {"keep", (PyCFunction)recorder_keep, METH_VARARGS, NULL},
    {"take", (PyCFunction)(void (*)(void))recorder_take, METH_FASTCALL, NULL},
    {"forget", (PyCFunction)recorder_forget, METH_NOARGS, NULL},
    {"close", (PyCFunction)recorder_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject RecorderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "samebits.trace.recorder.Recorder",
    .tp_basicsize = sizeof(Recorder),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)recorder_init,
    .tp_dealloc = (destructor)recorder_dealloc,
    .tp_methods = recorder_methods,
};

#include "recorder_modules.h"

static PyMethodDef functions[] = {{"look_at", look_at, METH_O, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "samebits.trace.recorder", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_recorder(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyType_Ready(&StackType) == 0 && PyModule_AddType(module, &KindType) == 0 &&
        PyModule_AddType(module, &RecorderType) == 0 && PyModule_AddType(module, &ModulesType) == 0)
        return module;
    Py_XDECREF(module);
    return NULL;
}
