/* The spans that are open in a thread, in the order in which they began. */

#pragma once
#include "recorder_kinds.h"

typedef struct {
    int64_t number, began;
    const void *module; /* Whose call this is; NULL: nobody's. Compared, never looked at. */
    const void *error;  /* What was being handled when that call began. */
    PyObject *kind;     /* Of that call. */
} Open;

typedef struct {
    PyObject_HEAD Py_ssize_t depth, room, modules;
    int64_t thread;
    Open *open;
    PyObject *names; /* Kinds of the modules within the outermost that was called, by `id`. */
} Stack;

static void stack_dealloc(Stack *self) {
    while (self->depth) Py_XDECREF(self->open[--self->depth].kind);
    PyMem_Free(self->open);
    Py_XDECREF(self->names);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int64_t stack_inside(const Stack *self) { return self->depth ? self->open[self->depth - 1].number : 0; }

static Open *stack_push(Stack *self, int64_t number) {
    if (self->depth == self->room) {
        Py_ssize_t room = self->room ? 2 * self->room : 16;
        Open *open = PyMem_Realloc(self->open, (size_t)room * sizeof *open);
        if (!open) {
            PyErr_NoMemory();
            return NULL;
        }
        self->open = open, self->room = room;
    }
    self->open[self->depth] = (Open){.number = number};
    return &self->open[self->depth++];
}

static void stack_remove(Stack *self, Py_ssize_t at) {
    PyObject *kind = self->open[at].kind;
    self->modules -= kind != NULL;
    memmove(&self->open[at], &self->open[at + 1], (size_t)(--self->depth - at) * sizeof *self->open);
    Py_XDECREF(kind);
}

static void stack_end(Stack *self, int64_t number) {
    Py_ssize_t at = self->depth - 1;
    while (at >= 0 && self->open[at].number != number) at--;
    if (at >= 0) stack_remove(self, at);
}

/* close(number): a span has ended, the innermost or, of a generator or a task, another one; in any thread. */
static PyObject *stack_close(Stack *self, PyObject *number) {
    int64_t wanted = PyLong_AsLongLong(number);
    if (wanted == -1 && PyErr_Occurred()) return NULL;
    stack_end(self, wanted);
    Py_RETURN_NONE;
}

static PyMethodDef stack_methods[] = {{"close", (PyCFunction)stack_close, METH_O, NULL}, {NULL, NULL, 0, NULL}};

static PyTypeObject StackType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "samebits.trace.recorder.Stack",
    .tp_basicsize = sizeof(Stack),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)stack_dealloc,
    .tp_methods = stack_methods,
};

/* The stack of this thread in the recorder that it last met, whose `threads` keeps it. */
static _Thread_local struct {
    uint64_t recorder;
    Stack *stack;
} here;

/* Borrowed. A thread that has the number of one that ended begins anew. */
static Stack *stack_of_thread(uint64_t recorder, PyObject *threads) {
    if (here.recorder == recorder) return here.stack;
    unsigned long thread = PyThread_get_thread_ident();
    PyObject *number = PyLong_FromUnsignedLong(thread), *made = PyType_GenericAlloc(&StackType, 0);
    int kept = number && made ? PyDict_SetItem(threads, number, made) : -1;
    Py_XDECREF(number);
    Py_XDECREF(made);
    if (kept < 0) return NULL;
    here.recorder = recorder, here.stack = (Stack *)made;
    here.stack->thread = (int64_t)thread;
    return here.stack;
}
