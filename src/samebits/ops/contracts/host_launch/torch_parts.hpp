// The parts of torch that are needed here. Its own headers of them take half a minute to compile.
//
// Declared as in torch 2.11 to 2.13; of another version the headers themselves are read.
#pragma once

#include <Python.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided_ops.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/version.h>

#include <exception>
#include <memory>
#include <vector>

// ATen/functorch/DynamicLayer.h needs headers that torch's wheels do not have.
namespace at::functorch {
struct DynamicLayer;
const std::vector<DynamicLayer>& getDynamicLayerStack();
}  // namespace at::functorch

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11 && TORCH_VERSION_MINOR <= 13

struct THPVariable {
    PyObject_HEAD
    at::Tensor cdata;
};
extern PyObject* THPVariableClass;
extern PyObject* ParameterClass;
PyObject* THPVariable_Wrap(at::TensorBase&& variable);

inline bool THPVariable_CheckExact(PyObject* object) {
    const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    return type == THPVariableClass || type == ParameterClass;
}

inline const at::Tensor& THPVariable_Unpack(PyObject* object) {
    return reinterpret_cast<THPVariable*>(object)->cdata;
}

namespace torch {
void translate_exception_to_python(const std::exception_ptr& exception);
}

namespace torch::jit::tracer {
struct TracingState;
const std::shared_ptr<TracingState>& getTracingState();
}  // namespace torch::jit::tracer

namespace torch::profiler::impl {
bool profilerEnabled();
}

#else

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#endif
