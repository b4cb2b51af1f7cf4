// What Python saw of a call, read once: a tuple of numbers and tuples, made by recording.py and parameters.py.
#pragma once

#include "arguments.hpp"

namespace host_launch {

/// Python has set an error; it is raised as it is.
struct PythonError {};

inline PyObject* item(PyObject* tuple, Py_ssize_t place) {
    PyObject* found = PyTuple_GetItem(tuple, place);
    if (found == nullptr) throw PythonError();
    return found;
}

inline int64_t number_of(PyObject* object) {
    const int64_t found = PyLong_AsLongLong(object);
    if (found == -1 && PyErr_Occurred() != nullptr) throw PythonError();
    return found;
}

inline int64_t number(PyObject* tuple, Py_ssize_t place) { return number_of(item(tuple, place)); }

inline void check(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(what);
}

/// (element type, bytes of an element, swizzle, tile rows, tile columns, rows, columns, stride of a row)
inline Layout read_layout(PyObject* facts) {
    static uint64_t layouts = 0;
    const auto bytes = static_cast<uint64_t>(number(facts, 1));
    Layout layout;
    layout.identity = ++layouts;
    layout.type = static_cast<CUtensorMapDataType>(number(facts, 0));
    layout.swizzle = static_cast<CUtensorMapSwizzle>(number(facts, 2));
    layout.box = {static_cast<cuuint32_t>(number(facts, 4)), static_cast<cuuint32_t>(number(facts, 3))};
    layout.shape = {static_cast<cuuint64_t>(number(facts, 6)), static_cast<cuuint64_t>(number(facts, 5))};
    const uint64_t stride = bytes * static_cast<uint64_t>(number(facts, 7));
    layout.strides = {stride, layout.shape[1] * stride};
    return layout;
}

/// (kind, source, number, layout or None); a source below `arguments` is an argument, one above new memory
inline Parameter read_parameter(PyObject* facts, size_t arguments, size_t memories) {
    Parameter parameter;
    const int64_t kind = number(facts, 0);
    check(kind >= Parameter::DESCRIPTOR && kind <= Parameter::VALUE, "a parameter of no kind that is known");
    parameter.kind = static_cast<Parameter::Kind>(kind);
    const auto source = static_cast<size_t>(number(facts, 1));
    check(source < arguments + memories, "a parameter of no memory that is known");
    parameter.source = source < arguments ? source : MOST_ARGUMENTS + source - arguments;
    parameter.value = static_cast<uint64_t>(number(facts, 2));
    if (parameter.kind == Parameter::DESCRIPTOR) parameter.layout = read_layout(item(facts, 3));
    return parameter;
}

/// (function, programs, warps, bytes of shared memory, name, compiled kernel, parameters)
inline Launch read_launch(PyObject* facts, size_t arguments, size_t memories) {
    Launch launch;
    launch.function = reinterpret_cast<CUfunction>(number(facts, 0));
    launch.programs = static_cast<unsigned>(number(facts, 1));
    launch.threads = 32 * static_cast<unsigned>(number(facts, 2));
    launch.shared = static_cast<unsigned>(number(facts, 3));
    launch.name = Py_NewRef(item(facts, 4));
    launch.kernel = Py_NewRef(item(facts, 5));
    PyObject* parameters = item(facts, 6);
    size_t descriptors = 0;
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(parameters); ++place) {
        launch.parameters.push_back(read_parameter(item(parameters, place), arguments, memories));
        descriptors += launch.parameters.back().kind == Parameter::DESCRIPTOR;
    }
    check(
        launch.parameters.size() <= MOST_PARAMETERS && descriptors <= MOST_DESCRIPTORS,
        "more parameters or descriptors than are kept of a launch");
    return launch;
}

/// (dtype, sizes, strides)
inline Memory read_memory(PyObject* facts) {
    Memory memory;
    PyObject* dtype = item(facts, 0);
    check(THPDtype_Check(dtype), "memory of no dtype");
    memory.dtype = reinterpret_cast<THPDtype*>(dtype)->scalar_type;
    PyObject *sizes = item(facts, 1), *strides = item(facts, 2);
    for (Py_ssize_t axis = 0; axis < PyTuple_GET_SIZE(sizes); ++axis) {
        memory.sizes.push_back(number(sizes, axis));
        memory.strides.push_back(number(strides, axis));
    }
    return memory;
}

/// (memories, launches, the number of the result's memory or a tuple of such)
inline std::shared_ptr<const Prepared> read_prepared(PyObject* facts, size_t arguments) {
    auto prepared = std::make_shared<Prepared>();
    PyObject *memories = item(facts, 0), *launches = item(facts, 1), *results = item(facts, 2);
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(memories); ++place)
        prepared->memories.push_back(read_memory(item(memories, place)));
    const size_t count = prepared->memories.size();
    check(count <= MOST_MEMORIES, "more new tensors than are kept of a call");
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(launches); ++place)
        prepared->launches.push_back(read_launch(item(launches, place), arguments, count));
    prepared->is_tuple = PyTuple_Check(results);
    for (Py_ssize_t place = 0; place < (prepared->is_tuple ? PyTuple_GET_SIZE(results) : 1); ++place) {
        const auto memory = static_cast<size_t>(number_of(prepared->is_tuple ? item(results, place) : results));
        check(memory < count, "a result of no memory that is known");
        prepared->results.push_back(memory);
    }
    return prepared;
}

}  // namespace host_launch
