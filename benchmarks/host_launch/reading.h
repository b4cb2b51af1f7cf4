// Prepared launches as Python hands them over, read once each: a tuple of numbers and tuples, made by preparing.py.
#pragma once

#include "prepared.h"

#include <initializer_list>

namespace host_launch {

/// Python has set an error; it is raised as it is.
struct PythonError {};

inline PyObject* item(PyObject* tuple, Py_ssize_t place) {
    PyObject* found = PyTuple_GetItem(tuple, place);
    if (found == nullptr) throw PythonError();
    return found;
}

inline int64_t number(PyObject* tuple, Py_ssize_t place) {
    const int64_t found = PyLong_AsLongLong(item(tuple, place));
    if (found == -1 && PyErr_Occurred() != nullptr) throw PythonError();
    return found;
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

/// (kind, operand, number, layout or None)
inline Parameter read_parameter(PyObject* facts) {
    Parameter parameter;
    parameter.kind = static_cast<Parameter::Kind>(number(facts, 0));
    parameter.operand = static_cast<Operand>(number(facts, 1));
    parameter.value = static_cast<uint64_t>(number(facts, 2));
    if (parameter.kind == Parameter::DESCRIPTOR) parameter.layout = read_layout(item(facts, 3));
    if (parameter.kind < 0 || parameter.kind > Parameter::VALUE || parameter.operand < 0 || parameter.operand >= OPERANDS)
        throw std::runtime_error("host_launch: a parameter of no kind or operand that is known");
    return parameter;
}

/// (function, programs, warps, bytes of shared memory, name, compiled kernel, parameters)
inline std::shared_ptr<const Prepared> read_prepared(PyObject* facts) {
    auto prepared = std::make_shared<Prepared>();
    prepared->function = reinterpret_cast<CUfunction>(number(facts, 0));
    prepared->programs = static_cast<unsigned>(number(facts, 1));
    prepared->threads = 32 * static_cast<unsigned>(number(facts, 2));
    prepared->shared = static_cast<unsigned>(number(facts, 3));
    prepared->name = Py_NewRef(item(facts, 4));
    prepared->kernel = Py_NewRef(item(facts, 5));
    PyObject* parameters = item(facts, 6);
    size_t descriptors = 0;
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(parameters); ++place) {
        prepared->parameters.push_back(read_parameter(item(parameters, place)));
        descriptors += prepared->parameters.back().kind == Parameter::DESCRIPTOR;
    }
    if (prepared->parameters.size() > MOST_PARAMETERS || descriptors > OPERANDS)
        throw std::runtime_error("host_launch: more parameters or descriptors than a launch has room for");
    return prepared;
}

}  // namespace host_launch
