// The host's whole path of a call of an operator, from Python's arguments to the driver's launches.
//
// Where a question of questions.hpp is answered with yes, Python's own function is called with the same arguments. A call
// of sizes, layouts and numbers that were never seen is Python's, too; the second of its kind is recorded while Python
// makes it, and from the third on such calls are made here.
#include "reading.hpp"

#include <structmember.h>

#include <cstddef>
#include <utility>

namespace host_launch {
namespace {

/// What `attach` was given.
PyObject* python_record = nullptr;
PyObject* python_stream = nullptr;

/// Python's object for an operator: it is called as Python's function is.
struct Call {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Operator* of;
};

/// Others may run Python meanwhile: memory may have to be waited for, and so may a queue that is full.
class WithoutLock {
  public:
    WithoutLock() : state_(PyEval_SaveThread()) {}
    WithoutLock(const WithoutLock&) = delete;
    WithoutLock& operator=(const WithoutLock&) = delete;
    ~WithoutLock() { PyEval_RestoreThread(state_); }

  private:
    PyThreadState* state_;
};

/// torch's own `empty_strided` on the current device and stream, past the keys that `listener` found nobody behind.
at::Tensor tensor_for(const Memory& memory, c10::Device device) {
    constexpr auto dense = DEVICE == c10::DeviceType::CUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
    return at::_ops::empty_strided::redispatch(
        c10::DispatchKeySet(dense), c10::fromIntArrayRefSlow(memory.sizes), c10::fromIntArrayRefSlow(memory.strides),
        memory.dtype, c10::kStrided, device, std::nullopt);
}

CUstream current_stream(c10::Device device) {
    const Owned index(PyLong_FromLong(device.index()));
    const Owned found(index.get() == nullptr ? nullptr : PyObject_CallOneArg(python_stream, index.get()));
    const auto stream = found.get() == nullptr ? 0 : PyLong_AsUnsignedLongLong(found.get());
    if (PyErr_Occurred() != nullptr) throw PythonError();
    return reinterpret_cast<CUstream>(stream);
}

/// Where samebits.ops._triton.launch counts its own.
void count_launch(const Launch& launch) {
    PyObject* counter = PyDict_GetItem(homes.launching, names().launches);
    PyObject* before = counter == nullptr ? nullptr : PyDict_GetItem(counter, launch.name);
    const Owned after(PyLong_FromLong(before == nullptr ? 1 : PyLong_AsLong(before) + 1));
    if (counter != nullptr && after.get() != nullptr) PyDict_SetItem(counter, launch.name, after.get());
    if (PyErr_Occurred() != nullptr) throw PythonError();
}

using Made = std::array<at::Tensor, MOST_MEMORIES>;

/// False where new memory is not aligned as it was when the launches were recorded: nothing was launched.
bool launched(const Prepared& prepared, Given& given, CUstream stream, Made& made) {
    const WithoutLock unlocked;
    for (size_t place = 0; place < prepared.memories.size(); ++place) {
        made[place] = tensor_for(prepared.memories[place], given.device);
        const auto address = reinterpret_cast<uint64_t>(made[place].data_ptr());
        if (address % ALIGNMENT != 0) return false;
        given.addresses[MOST_ARGUMENTS + place] = address;
    }
    for (const auto& each : prepared.launches) launch(each, given.addresses, stream);
    return true;
}

PyObject* wrapped(const Prepared& prepared, Made& made) {
    if (!prepared.is_tuple) return THPVariable_Wrap(std::move(made[prepared.results[0]]));
    PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(prepared.results.size()));
    for (size_t place = 0; tuple != nullptr && place < prepared.results.size(); ++place)
        PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(place), THPVariable_Wrap(at::Tensor(made[prepared.results[place]])));
    return tuple;
}

/// What a call gets, as Python hands it over.
struct Handed {
    PyObject* const* arguments;
    Py_ssize_t count;
    PyObject* named;
};

PyObject* by_python(Operator& of, const Handed& handed) {
    ++of.calls[1];
    return PyObject_Vectorcall(of.function, handed.arguments, handed.count, handed.named);
}

/// As Python's own call keeps them: a tuple.
PyObject* positional_of(const Handed& handed) {
    PyObject* positional = PyTuple_New(handed.count);
    for (Py_ssize_t place = 0; positional != nullptr && place < handed.count; ++place)
        PyTuple_SET_ITEM(positional, place, Py_NewRef(handed.arguments[place]));
    return positional;
}

/// As Python's own call keeps them: a dictionary.
PyObject* named_of(const Handed& handed) {
    Owned named(PyDict_New());
    const Py_ssize_t count = named.get() == nullptr || handed.named == nullptr ? 0 : PyTuple_GET_SIZE(handed.named);
    for (Py_ssize_t each = 0; each < count; ++each)
        if (PyDict_SetItem(named.get(), PyTuple_GET_ITEM(handed.named, each), handed.arguments[handed.count + each]) != 0)
            return nullptr;
    return Py_XNewRef(named.get());
}

/// Keeps what was seen of a call: facts, the reason why it cannot be made here, or None: not this time.
void keep(Operator& of, const Key& key, PyObject* seen) {
    const auto found = of.kept.find(key);  // another thread may have cleared the table
    if (found == of.kept.end() || seen == Py_None) return;
    if (PyUnicode_Check(seen)) {
        found->second.why = PyUnicode_AsUTF8(seen);
        return;
    }
    try {
        auto prepared = read_prepared(seen, static_cast<size_t>(PyTuple_GET_SIZE(of.names)));
        open_driver();
        found->second.prepared = std::move(prepared);
    } catch (const std::runtime_error& error) {
        found->second.why = error.what();
    }
}

/// Python's result, while what it launches is recorded for the next call.
PyObject* recorded(Operator& of, const Key& key, const Handed& handed) {
    ++of.calls[1];
    const Owned positional(positional_of(handed)), named(named_of(handed));
    if (positional.get() == nullptr || named.get() == nullptr) return nullptr;
    const Owned both(PyObject_CallFunctionObjArgs(
        python_record, of.function, of.names, positional.get(), named.get(), nullptr));
    if (both.get() == nullptr) return nullptr;
    keep(of, key, item(both.get(), 1));
    return Py_NewRef(item(both.get(), 0));
}

/// Nothing is kept any more. What goes with it may run Python, which then finds the table empty and whole.
void clear(Operator& of) { const auto dropped = std::exchange(of.kept, {}); }

/// Python's result of the first call of its kind.
PyObject* first_of(Operator& of, const Given& given, const Handed& handed) {
    PyObject* result = by_python(of, handed);
    if (result == nullptr) return nullptr;
    if (of.kept.size() >= KEPT_CALLS) clear(of);
    auto& kept = of.kept[given.key];
    if (kept.objects.empty()) kept.objects = objects_of(given);
    return result;
}

/// Why Python must make this call, as far as the call itself says; nothing where it need not.
const char* refusal_of(const Operator& of, const Handed& handed, Given& given) {
    if (python_record == nullptr) throw std::runtime_error("host_launch: called before attach");
    if (const char* why = read_places(of, handed.arguments, handed.count, handed.named, given)) return why;
    if (const char* why = listener()) return why;
    return read_arguments(of, given);
}

PyObject* result_of(Operator& of, const Handed& handed) {
    Given given;
    if (refusal_of(of, handed, given) != nullptr) return by_python(of, handed);
    const auto found = of.kept.find(given.key);
    if (found == of.kept.end()) return first_of(of, given, handed);
    const auto prepared = found->second.prepared;  // another thread may clear the table meanwhile
    if (prepared == nullptr && found->second.why.empty()) return recorded(of, given.key, handed);
    if (prepared == nullptr || !has_context()) return by_python(of, handed);
    Made made;
    if (!launched(*prepared, given, current_stream(given.device), made)) return by_python(of, handed);
    for (const auto& each : prepared->launches) count_launch(each);
    ++of.calls[0];
    return wrapped(*prepared, made);
}

/// What a function of Python does with C++'s exceptions; torch's own become what torch makes of them.
template <class Body>
PyObject* guarded(Body body) {
    try {
        return body();
    } catch (const PythonError&) {
        return nullptr;
    } catch (...) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}

Operator& operator_of(PyObject* self) { return *reinterpret_cast<Call*>(self)->of; }

PyObject* call(PyObject* self, PyObject* const* arguments, size_t count, PyObject* named) {
    return guarded([&] { return result_of(operator_of(self), {arguments, PyVectorcall_NARGS(count), named}); });
}

PyObject* refusal(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* named) {
    return guarded([&]() -> PyObject* {
        Given given;
        const auto& of = operator_of(self);
        if (const char* why = refusal_of(of, {arguments, count, named}, given)) return PyUnicode_FromString(why);
        const auto found = of.kept.find(given.key);
        const bool refused = found != of.kept.end() && !found->second.why.empty();
        return refused ? PyUnicode_FromString(found->second.why.c_str()) : Py_NewRef(Py_None);
    });
}

PyObject* forget(PyObject* self, PyObject*) {
    clear(operator_of(self));
    operator_of(self).calls = {};
    return Py_NewRef(Py_None);
}

PyObject* kept(PyObject* self, PyObject*) { return PyLong_FromSize_t(operator_of(self).kept.size()); }

PyObject* counted(PyObject* self, PyObject*) {
    return Py_BuildValue("KK", operator_of(self).calls[0], operator_of(self).calls[1]);
}

void deallocate(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<Call*>(self)->of;
    PyObject_Free(self);
    Py_DECREF(type);
}

#define FAST(function) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL | METH_KEYWORDS
PyMethodDef methods_of_call[] = {
    {"refusal", FAST(refusal), "Why Python makes the call with these arguments, or None."},
    {"forget", forget, METH_NOARGS, "Drop all that is kept and counted."},
    {"kept", kept, METH_NOARGS, "How many kinds of calls are kept."},
    {"counted", counted, METH_NOARGS, "Calls launched here, and calls handed to Python."},
    {nullptr, nullptr, 0, nullptr}};
PyMemberDef members_of_call[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Call, vectorcall), READONLY, nullptr}, {nullptr, 0, 0, 0, nullptr}};
PyType_Slot slots_of_call[] = {
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_methods, methods_of_call},
    {Py_tp_members, members_of_call},
    {0, nullptr}};
PyType_Spec spec_of_call = {
    "samebits_host_launch.Call", sizeof(Call), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots_of_call};
PyTypeObject* type_of_call = nullptr;

PyObject* calls_of(PyObject*, PyObject* given) {
    return guarded([&]() -> PyObject* {
        PyObject *function = item(given, 0), *parameters = item(given, 1);
        check(PyTuple_GET_SIZE(parameters) <= Py_ssize_t{MOST_ARGUMENTS}, "host_launch: a function of too many parameters");
        if (type_of_call == nullptr) type_of_call = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec_of_call));
        if (type_of_call == nullptr) throw PythonError();
        Call* made = PyObject_New(Call, type_of_call);
        if (made == nullptr) throw PythonError();
        made->vectorcall = call;
        made->of = new Operator;
        made->of->function = Py_NewRef(function);
        made->of->names = Py_NewRef(parameters);
        made->of->positional = number(given, 2);
        return reinterpret_cast<PyObject*>(made);
    });
}

PyObject* attach(PyObject*, PyObject* given) {
    return guarded([&]() -> PyObject* {
        const std::array<PyObject**, 7> places{&python_record,        &python_stream,   &homes.registering,  &homes.compiler,
                                               &homes.launch_numbers, &homes.launching, &homes.knobs_runtime};
        for (size_t place = 0; place < places.size(); ++place)
            Py_XSETREF(*places[place], Py_NewRef(item(given, static_cast<Py_ssize_t>(place))));
        return Py_NewRef(Py_None);
    });
}

/// Where torch says that a tensor's numbers are kept track of; attaching.py compares it with what Python says.
PyObject* implementation(PyObject*, PyObject* tensor) {
    return PyLong_FromVoidPtr(reinterpret_cast<THPVariable*>(tensor)->cdata.unsafeGetTensorImpl());
}

#ifdef STAND_IN
PyObject* use_driver(PyObject*, PyObject* table) {
    return guarded([&]() -> PyObject* {
        driver.encode = reinterpret_cast<decltype(driver.encode)>(number(table, 0));
        driver.launch = reinterpret_cast<decltype(driver.launch)>(number(table, 1));
        driver.context = reinterpret_cast<decltype(driver.context)>(number(table, 2));
        driver.error = reinterpret_cast<decltype(driver.error)>(number(table, 3));
        return Py_NewRef(Py_None);
    });
}

PyObject* plant(PyObject*, PyObject* names_of_faults) {
    return guarded([&]() -> PyObject* {
        uint64_t asked = 0;
        for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(names_of_faults); ++place) {
            const std::string name = PyUnicode_AsUTF8(item(names_of_faults, place));
            uint64_t found = 0;
            for (int each = 0; each < FAULTS; ++each) {
                const char* known = each < QUESTIONS ? QUESTION_NAMES[each] : FAULT_NAMES[each - QUESTIONS];
                found |= uint64_t{name == known} << each;
            }
            check(found != 0, "plant: no fault has this name");
            asked |= found;
        }
        planted = asked;
        return Py_NewRef(Py_None);
    });
}
#endif

PyMethodDef methods[] = {
    {"calls_of", calls_of, METH_VARARGS, "calls_of(function, names of parameters, positional ones): the function, called here."},
    {"attach", attach, METH_VARARGS, "The functions and modules of Python that calls here depend on."},
    {"implementation", implementation, METH_O, "The address of a tensor's implementation, as it is read here."},
#ifdef STAND_IN
    {"use_driver", use_driver, METH_VARARGS, "Addresses of the driver's functions."},
    {"plant", plant, METH_VARARGS, "Faults from now on, by name; none: none."},
#endif
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "samebits_host_launch", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace host_launch

PyMODINIT_FUNC PyInit_samebits_host_launch() { return PyModule_Create(&host_launch::definition); }
