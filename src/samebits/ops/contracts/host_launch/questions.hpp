// What sends a call to Python's function: the questions of samebits/ops/registering.py, asked of torch in C++.
//
// Each is at least as wide as Python's, so that a call which Python would hand to torch's dispatcher is never taken
// here. The first that is answered with yes gives its name.
#pragma once

#include "torch_parts.hpp"

namespace host_launch {

#ifdef STAND_IN
// In the test's build CPU tensors stand for those of a GPU, and questions can be made deaf.
constexpr auto DEVICE = c10::DeviceType::CPU;
constexpr c10::DispatchKeySet PLAIN(
    {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutocastCPU,
     c10::DispatchKey::ADInplaceOrView});
inline uint64_t planted = 0;
#else
constexpr auto DEVICE = c10::DeviceType::CUDA;
constexpr c10::DispatchKeySet PLAIN(
    {c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA, c10::DispatchKey::AutocastCUDA,
     c10::DispatchKey::ADInplaceOrView});
constexpr uint64_t planted = 0;
#endif

enum Question {
    DISPATCH_MODE,
    FUNCTION_MODE,
    FUNCTORCH,
    TRACING,
    FORWARD_AD,
    PROFILER,
    OTHER_KEYS,
    COMPILING,
    OBSERVED,
    FORCED,
    LAUNCH_HOOK,
    KIND,
    KEYS,
    GRADIENT,
    QUESTIONS,
};
constexpr const char* QUESTION_NAMES[QUESTIONS] = {
    "dispatch mode", "function mode", "functorch",     "tracing",     "forward AD", "profiler", "other keys",
    "compiling",     "observed",      "forced launch", "launch hook", "kind",       "keys",     "gradient"};

/// Faults that are planted beside deaf questions.
enum Fault { DESCRIPTOR_BY_ADDRESS = QUESTIONS, WITHOUT_STRIDES, WITHOUT_NUMBERS, WITHOUT_ALIGNMENT, FAULTS };
constexpr const char* FAULT_NAMES[FAULTS - QUESTIONS] = {
    "descriptor by address", "without strides", "without numbers", "without alignment"};

inline bool is_planted(int fault) { return planted >> fault & 1; }

/// Python's modules whose variables answer what only Python knows, as dictionaries (borrowed for ever: modules stay).
struct Homes {
    PyObject* registering = nullptr;
    PyObject* compiler = nullptr;
    PyObject* launch_numbers = nullptr;
    PyObject* launching = nullptr;
    PyObject* knobs_runtime = nullptr;
};
inline Homes homes;

struct Names {
    PyObject* around = PyUnicode_InternFromString("_around");
    PyObject* compiling = PyUnicode_InternFromString("_is_compiling_flag");
    PyObject* forced = PyUnicode_InternFromString("_forced");
    PyObject* launches = PyUnicode_InternFromString("_launches");
    PyObject* enter_hook = PyUnicode_InternFromString("launch_enter_hook");
    PyObject* calls = PyUnicode_InternFromString("calls");
};
inline const Names& names() {
    static const Names made;
    return made;
}

/// A new reference, or nothing where an error is set.
class Owned {
  public:
    explicit Owned(PyObject* object) : object_(object) {}
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() { Py_XDECREF(object_); }
    PyObject* get() const { return object_; }

  private:
    PyObject* object_;
};

inline bool is_empty_list(PyObject* list) { return list != nullptr && PyList_Check(list) && PyList_GET_SIZE(list) == 0; }

inline bool hooked() {
    const Owned chain(PyObject_GetAttr(homes.knobs_runtime, names().enter_hook));
    const Owned calls(chain.get() == nullptr ? nullptr : PyObject_GetAttr(chain.get(), names().calls));
    PyErr_Clear();
    return !is_empty_list(calls.get());
}

/// The keys that a thread has of its own accord; any other is a mode, a transform or a trace.
inline bool has_other_keys() {
    constexpr auto usual = c10::default_included_set | c10::autocast_dispatch_keyset;
    return (c10::impl::tls_local_dispatch_key_set().included_.raw_repr() & ~usual.raw_repr()) != 0;
}

inline bool answer(Question question) {
    switch (question) {
        case DISPATCH_MODE: return c10::impl::TorchDispatchModeTLS::stack_len() != 0;
        case FUNCTION_MODE: return at::impl::torch_function_mode_enabled();
        case FUNCTORCH: return !at::functorch::getDynamicLayerStack().empty();
        case TRACING: return torch::jit::tracer::getTracingState() != nullptr;
        case FORWARD_AD: return torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
        case PROFILER: return torch::profiler::impl::profilerEnabled();
        case OTHER_KEYS: return has_other_keys();
        case COMPILING: return PyDict_GetItem(homes.compiler, names().compiling) != Py_False;
        case OBSERVED: return PyDict_GetItem(homes.registering, names().around) != Py_None;
        case FORCED: return !is_empty_list(PyDict_GetItem(homes.launch_numbers, names().forced));
        default: return hooked();
    }
}

/// Whether anybody listens, or wants this launch to be another one.
inline const char* listener() {
    for (int each = DISPATCH_MODE; each <= LAUNCH_HOOK; ++each)
        if (!is_planted(each) && answer(static_cast<Question>(each))) return QUESTION_NAMES[each];
    return nullptr;
}

/// Whether a tensor is more than numbers in memory: a subclass, a view of another sign, one that wants a gradient.
inline const char* particular(PyObject* given) {
    if (!THPVariable_CheckExact(given)) return QUESTION_NAMES[KIND];
    const auto& tensor = THPVariable_Unpack(given);
    if (!is_planted(KEYS) && (tensor.key_set().raw_repr() & ~PLAIN.raw_repr()) != 0) return QUESTION_NAMES[KEYS];
    if (!is_planted(GRADIENT) && c10::GradMode::is_enabled() && tensor.requires_grad()) return QUESTION_NAMES[GRADIENT];
    return nullptr;
}

}  // namespace host_launch
