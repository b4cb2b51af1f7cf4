/* What the facts of an operator's call depend on, as words, and the kinds of calls that were met.

   That is the operator, the shapes and dtypes of its tensors, which of these share memory, and its other arguments;
   numbers with a point decide no size, whole ones only that of a result. Tensors are looked at through DLPack's table
   of functions, which makes no object: ten times less than asking for `shape`. */

#pragma once
#include "recorder_kinds.h"

enum { WORDS = 2048, INTEGERS = 32, TENSORS = 512, SLOTS = 4096, DEPTH = 4 };

/* DLPack 1, as torch hands it out. */
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint32_t dtype; /* A code, its bits, its lanes. */
    const int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major, minor;
    const void *earlier;
    void (*others[3])(void);
    int (*look)(void *tensor, DLTensor *seen);
} Exchange;

enum { CUDA = 2 };
static PyTypeObject *tensor_type = NULL;
static const Exchange *dlpack = NULL;

/* look_at(Tensor): which objects are tensors, and how one looks at them. */
static PyObject *look_at(PyObject *Py_UNUSED(module), PyObject *type) {
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    const Exchange *found = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule); /* The table is torch's own, for as long as the process lasts. */
    if (!found) return NULL;
    if (found->major != 1 || !found->look) {
        PyErr_Format(PyExc_RuntimeError, "trace: torch's DLPack is %u.%u; allowed: 1.x", found->major, found->minor);
        return NULL;
    }
    dlpack = found, tensor_type = (PyTypeObject *)Py_NewRef(type);
    Py_RETURN_NONE;
}

typedef struct {
    int64_t words[WORDS];
    int64_t integers[INTEGERS];
    const void *addresses[TENSORS];
    Py_ssize_t count, integer_count, tensor_count;
    int unknown; /* Something that is no plain value, or more than there is room for. */
    int on_gpu;  /* Where the first tensor is. */
} Key;

enum { TENSOR, SEQUENCE, TEXT, INTEGER, FLOAT, SINGLE, TAGS = 8 };

static void put(Key *key, int64_t word) {
    if (key->count < WORDS)
        key->words[key->count++] = word;
    else
        key->unknown = 1;
}

static void put_tensor(Key *key, PyObject *tensor) {
    DLTensor seen;
    if (key->tensor_count == TENSORS || dlpack->look(tensor, &seen)) {
        key->unknown = 1;
        return;
    }
    Py_ssize_t same = 0;
    while (same < key->tensor_count && key->addresses[same] != seen.data) same++;
    key->on_gpu |= !key->tensor_count && seen.device_type == CUDA;
    key->addresses[key->tensor_count++] = seen.data;
    put(key, TENSOR + TAGS * (int64_t)seen.ndim);
    put(key, same);
    put(key, seen.dtype);
    for (int32_t i = 0; i < seen.ndim; i++) put(key, seen.shape[i]);
}

static void put_text(Key *key, PyObject *text) {
    Py_ssize_t size = 0;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
    put(key, TEXT + TAGS * size);
    for (Py_ssize_t at = 0; bytes && at < size; at += 8) {
        int64_t word = 0;
        memcpy(&word, bytes + at, (size_t)(size - at < 8 ? size - at : 8));
        put(key, word);
    }
    key->unknown |= !bytes;
}

static void put_value(Key *key, PyObject *value, int depth) {
    if (PyType_IsSubtype(Py_TYPE(value), tensor_type)) {
        put_tensor(key, value);
    } else if (value == Py_None || PyBool_Check(value)) {
        put(key, SINGLE + TAGS * (value == Py_None ? 2 : value == Py_True));
    } else if (PyUnicode_CheckExact(value)) {
        put_text(key, value);
    } else if (PyLong_CheckExact(value) && key->integer_count < INTEGERS) {
        put(key, INTEGER);
        key->integers[key->integer_count++] = PyLong_AsLongLong(value);
    } else if (PyFloat_CheckExact(value)) {
        put(key, FLOAT);
    } else if ((PyList_CheckExact(value) || PyTuple_CheckExact(value)) && depth < DEPTH) {
        put(key, SEQUENCE + TAGS * PySequence_Fast_GET_SIZE(value));
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); i++)
            put_value(key, PySequence_Fast_GET_ITEM(value, i), depth + 1);
    } else {
        key->unknown = 1;
    }
}

/* The key of a call; whatever fails in reading it fails again where Python looks for its facts. */
static void read_call(Key *key, PyObject *name, PyObject *arguments) {
    key->count = key->integer_count = key->tensor_count = key->unknown = key->on_gpu = 0;
    put_text(key, name);
    put_value(key, arguments, 0);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        key->unknown = 1;
    }
}

/* Kinds of calls that were met, whoever recorded: words and numbers alone. */
typedef struct {
    uint64_t hash;
    Py_ssize_t count;
    int64_t *words;
    PyObject *kind;
} Slot;

static Slot slots[SLOTS];
static Py_ssize_t known = 0;

static void forget_kinds(void) {
    for (Py_ssize_t i = 0; i < SLOTS; i++) {
        PyMem_Free(slots[i].words);
        Py_XDECREF(slots[i].kind);
        slots[i] = (Slot){0};
    }
    known = 0;
}

static uint64_t mixed(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ (hash >> 29);
}

static uint64_t hash_of(const Key *key) {
    uint64_t hash = (uint64_t)key->count;
    for (Py_ssize_t i = 0; i < key->count; i++) hash = mixed(hash, (uint64_t)key->words[i]);
    return hash;
}

/* The slot of a key, or the free one where it belongs; half of them are free. */
static Slot *slot_of(const Key *key, uint64_t hash) {
    for (uint64_t at = hash % SLOTS;; at = (at + 1) % SLOTS) {
        Slot *slot = &slots[at];
        int same = slot->hash == hash && slot->count == key->count;
        if (!slot->kind || (same && !memcmp(slot->words, key->words, (size_t)key->count * sizeof *key->words)))
            return slot;
    }
}

/* A new reference to what a call is; `kind_of` finds it where it is met for the first time. */
static PyObject *kind_of_call(Key *key, PyObject *kind_of, PyObject *const *call, PyObject *result) {
    for (Py_ssize_t i = 0; result != Py_None && i < key->integer_count; i++) put(key, key->integers[i]);
    uint64_t hash = key->unknown ? 0 : hash_of(key);
    Slot *slot = key->unknown ? NULL : slot_of(key, hash);
    if (slot && slot->kind) return Py_NewRef(slot->kind);
    PyObject *kind = PyObject_CallFunctionObjArgs(kind_of, call[0], call[2], result, call[3], NULL);
    if (!kind || !slot) return kind;
    if (known == SLOTS / 2) forget_kinds();
    slot = slot_of(key, hash); /* Another thread may have been here meanwhile. */
    int64_t *words = slot->kind ? NULL : PyMem_Malloc((size_t)key->count * sizeof *words);
    if (words) {
        memcpy(words, key->words, (size_t)key->count * sizeof *words);
        *slot = (Slot){hash, key->count, words, Py_NewRef(kind)};
        known++;
    }
    return kind;
}
