/* What spans have in common, and the text of their lines: made once, told often. */

#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD PyObject *name, *granularity, *facts;
    PyObject *head, *tail; /* Text of a JSON line around a span's numbers, once it was asked for. */
} Kind;

static int kind_init(Kind *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"name", "granularity", "facts", NULL};
    PyObject *name, *granularity, *facts;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "UUO", names, &name, &granularity, &facts)) return -1;
    Py_XSETREF(self->name, Py_NewRef(name));
    Py_XSETREF(self->granularity, Py_NewRef(granularity));
    Py_XSETREF(self->facts, Py_NewRef(facts));
    return 0;
}

static void kind_dealloc(Kind *self) {
    Py_XDECREF(self->name);
    Py_XDECREF(self->granularity);
    Py_XDECREF(self->facts);
    Py_XDECREF(self->head);
    Py_XDECREF(self->tail);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef kind_members[] = {
    {"name", T_OBJECT_EX, offsetof(Kind, name), READONLY, NULL},
    {"granularity", T_OBJECT_EX, offsetof(Kind, granularity), READONLY, NULL},
    {"facts", T_OBJECT_EX, offsetof(Kind, facts), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject KindType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "samebits.trace.recorder.Kind",
    .tp_basicsize = sizeof(Kind),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)kind_init,
    .tp_dealloc = (destructor)kind_dealloc,
    .tp_members = kind_members,
};

/* Where a span was and when. */
typedef struct {
    int64_t number, parent, thread, began, ended;
} Place;

typedef struct {
    PyObject *kind;
    Place place;
} Record;

enum { DIGITS = 20, NAMES = 64 }; /* Of a number; of all five names with what stands around them. */

static char *put_number(char *at, const char *before, int64_t number) {
    size_t size = strlen(before);
    char digits[DIGITS], *digit = digits + DIGITS;
    memcpy(at, before, size);
    do *--digit = (char)('0' + number % 10);
    while (number /= 10);
    memcpy(at + size, digit, (size_t)(digits + DIGITS - digit));
    return at + size + (digits + DIGITS - digit);
}

static char *put_ascii(char *at, PyObject *text) {
    memcpy(at, PyUnicode_DATA(text), (size_t)PyUnicode_GET_LENGTH(text));
    return at + PyUnicode_GET_LENGTH(text);
}

/* The texts of a kind, asked for once: `words` of it is what stands before and behind the numbers. */
static int have_texts(Kind *kind, PyObject *words) {
    if (kind->head) return 0;
    PyObject *texts = PyObject_CallOneArg(words, (PyObject *)kind), *head, *tail;
    if (!texts) return -1;
    int fine = PyArg_ParseTuple(texts, "UU", &head, &tail);
    if (fine && PyUnicode_IS_ASCII(head) && PyUnicode_IS_ASCII(tail)) {
        kind->head = Py_NewRef(head), kind->tail = Py_NewRef(tail);
    } else if (fine) {
        PyErr_SetString(PyExc_ValueError, "trace: a line has characters beyond ASCII; allowed: JSON escapes them");
    }
    Py_DECREF(texts);
    return kind->head ? 0 : -1;
}

static PyObject *lines_of(const Record *records, Py_ssize_t count, PyObject *words) {
    Py_ssize_t room = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Kind *kind = (Kind *)records[i].kind;
        if (have_texts(kind, words) < 0) return NULL;
        room += PyUnicode_GET_LENGTH(kind->head) + PyUnicode_GET_LENGTH(kind->tail) + 5 * DIGITS + NAMES;
    }
    PyObject *lines = PyBytes_FromStringAndSize(NULL, room);
    if (!lines) return NULL;
    char *at = PyBytes_AS_STRING(lines);
    for (Py_ssize_t i = 0; i < count; i++) {
        const Place *place = &records[i].place;
        at = put_ascii(at, ((Kind *)records[i].kind)->head);
        at = put_number(at, ", \"number\": ", place->number);
        at = put_number(at, ", \"parent\": ", place->parent);
        at = put_number(at, ", \"thread\": ", place->thread);
        at = put_number(at, ", \"began\": ", place->began);
        at = put_number(at, ", \"ended\": ", place->ended);
        at = put_ascii(at, ((Kind *)records[i].kind)->tail);
    }
    _PyBytes_Resize(&lines, at - PyBytes_AS_STRING(lines));
    return lines;
}

/* Objects of the type `span`. */
static PyObject *spans_of(const Record *records, Py_ssize_t count, PyObject *span) {
    PyObject *spans = PyList_New(count);
    for (Py_ssize_t i = 0; spans && i < count; i++) {
        const Kind *kind = (const Kind *)records[i].kind;
        const Place *place = &records[i].place;
        PyObject *made =
            PyObject_CallFunction(span, "OOLLLLLOO", kind->name, kind->granularity, (long long)place->number,
                                  (long long)place->parent, (long long)place->thread, (long long)place->began,
                                  (long long)place->ended, Py_None, kind->facts);
        if (made)
            PyList_SET_ITEM(spans, i, made);
        else
            Py_CLEAR(spans);
    }
    return spans;
}
