// The host's whole path of a call of `linear`, from Python's arguments to the driver's launch.
//
// Where a question of questions.h is answered with yes, or sizes were never seen, Python's own function is called with
// the same arguments; after sizes that were never seen, it prepares the launch for the next call.
#include "reading.h"

#include <optional>

namespace host_launch {
namespace {

/// What `attach` was given.
PyObject* python_linear = nullptr;
PyObject* python_prepare = nullptr;
PyObject* python_stream = nullptr;
std::array<uint64_t, 2> calls{};  // launched here, handed to Python

/// The arguments of a call, where they are of a form that is taken here; x as rows.
struct Given {
    PyObject* x = nullptr;
    PyObject* weight = nullptr;
    PyObject* bias = nullptr;
    int64_t rows = 0, x_stride = 0, x_step = 0;
    c10::Device device{DEVICE};

    const at::Tensor& tensor(PyObject* object) const { return THPVariable_Unpack(object); }
};

const char* read_arguments(PyObject* const* arguments, Py_ssize_t count, PyObject* named, Given& given) {
    if (count != 2 && count != 3) return "arguments";
    given.x = arguments[0], given.weight = arguments[1];
    PyObject* bias = count == 3 ? arguments[2] : Py_None;
    for (Py_ssize_t place = 0; named != nullptr && place < PyTuple_GET_SIZE(named); ++place) {
        PyObject* name = PyTuple_GET_ITEM(named, place);
        if (name == names().bias && count == 2)
            bias = arguments[count + place];
        else if (name != names().backend || arguments[count + place] != Py_None)
            return "arguments";
    }
    given.bias = bias == Py_None ? nullptr : bias;
    return nullptr;
}

/// Everything about the tensors that Python's function checks; it says what is wrong with them.
const char* read_tensors(Given& given) {
    for (PyObject* each : {given.x, given.weight, given.bias})
        if (const char* why = each == nullptr ? nullptr : particular(each)) return why;
    const auto &x = given.tensor(given.x), &weight = given.tensor(given.weight);
    const auto dtype = x.scalar_type();
    if (dtype != at::kBFloat16 && dtype != at::kHalf && dtype != at::kFloat) return "dtype";
    given.device = c10::impl::VirtualGuardImpl(DEVICE).getDevice();
    for (PyObject* each : {given.x, given.weight, given.bias}) {
        if (each == nullptr) continue;
        const auto& tensor = given.tensor(each);
        if (tensor.device() != given.device) return "device";
        if (tensor.scalar_type() != dtype) return "dtype";
        if (tensor.const_data_ptr() == nullptr) return "no memory";
    }
    const auto dimensions = x.dim();
    if (dimensions < 1 || weight.dim() != 2 || x.size(-1) != weight.size(1)) return "sizes";
    if (dimensions != 2 && !x.is_contiguous()) return "layout";
    given.rows = dimensions == 2 ? x.size(0) : x.numel() / std::max<int64_t>(x.size(-1), 1);
    given.x_stride = dimensions == 2 ? x.stride(0) : x.size(-1);
    given.x_step = x.stride(-1);
    if (given.bias != nullptr) {
        const auto& bias = given.tensor(given.bias);
        if (bias.dim() != 1 || bias.size(0) != weight.size(0)) return "sizes";
        if (!bias.is_contiguous()) return "layout";
    }
    return nullptr;
}

Addresses addresses_of(const Given& given) {
    const auto at = [&](PyObject* object) {
        return object == nullptr ? 0 : reinterpret_cast<uint64_t>(given.tensor(object).const_data_ptr());
    };
    return {at(given.x), at(given.weight), at(given.bias), 0};
}

Key key_of(const Given& given, const Addresses& addresses) {
    const auto &x = given.tensor(given.x), &weight = given.tensor(given.weight);
    // The tensor memory accelerator takes nothing less; what is chosen by other alignments is nothing.
    const int64_t aligned = (addresses[X] | addresses[WEIGHT]) % 16 == 0;
    const int64_t kinds = (given.device.index() * 256 + static_cast<int64_t>(x.scalar_type())) * 4 +
                          (given.bias != nullptr) * 2 + aligned;
    Key key{{kinds, given.rows, x.size(-1), weight.size(0), given.x_stride, given.x_step, weight.stride(0),
             weight.stride(1)}};
    if (is_planted(LAUNCH_BY_SIZES)) key.words[0] |= 1, key.words[4] = key.words[5] = key.words[6] = key.words[7] = 0;
    return key;
}

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

/// torch's own `empty` on the current device and stream, past the keys that `listener` found nobody behind.
at::Tensor memory_for(const Given& given) {
    const auto& x = given.tensor(given.x);
    c10::SmallVector<int64_t, 5> sizes(x.sizes().begin(), x.sizes().end());
    sizes.back() = given.tensor(given.weight).size(0);
    constexpr auto dense = DEVICE == c10::DeviceType::CUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
    return at::_ops::empty_memory_format::redispatch(
        c10::DispatchKeySet(dense), c10::fromIntArrayRefSlow(sizes), x.scalar_type(), c10::kStrided, given.device,
        std::nullopt, std::nullopt);
}

CUstream current_stream(c10::Device device) {
    const Owned index(PyLong_FromLong(device.index()));
    const Owned found(index.get() == nullptr ? nullptr : PyObject_CallOneArg(python_stream, index.get()));
    const auto stream = found.get() == nullptr ? 0 : PyLong_AsUnsignedLongLong(found.get());
    if (PyErr_Occurred() != nullptr) throw PythonError();
    return reinterpret_cast<CUstream>(stream);
}

/// Where samebits.ops._triton.launch counts its own.
void count_launch(const Prepared& prepared) {
    PyObject* counter = PyDict_GetItem(homes.launching, names().launches);
    PyObject* before = counter == nullptr ? nullptr : PyDict_GetItem(counter, prepared.name);
    const Owned after(PyLong_FromLong(before == nullptr ? 1 : PyLong_AsLong(before) + 1));
    if (counter != nullptr && after.get() != nullptr) PyDict_SetItem(counter, prepared.name, after.get());
    if (PyErr_Occurred() != nullptr) throw PythonError();
}

PyObject* launched(const Prepared& prepared, const Given& given, Addresses addresses) {
    CUstream stream = current_stream(given.device);
    at::Tensor out;
    {
        const WithoutLock unlocked;
        out = memory_for(given);
        addresses[OUT] = reinterpret_cast<uint64_t>(out.data_ptr());
        launch(prepared, addresses, stream);
    }
    count_launch(prepared);
    ++calls[0];
    return THPVariable_Wrap(std::move(out));
}

PyObject* by_python(PyObject* const* arguments, Py_ssize_t count, PyObject* named) {
    ++calls[1];
    return PyObject_Vectorcall(python_linear, arguments, count, named);
}

/// Python's result, after which the launch is kept that it made.
PyObject* prepared_for(const Given& given, const Key& key, PyObject* result) {
    if (result == nullptr) return nullptr;
    PyObject* bias = given.bias == nullptr ? Py_None : given.bias;
    const Owned facts(PyObject_CallFunctionObjArgs(python_prepare, given.x, given.weight, bias, result, nullptr));
    if (facts.get() == nullptr) {
        Py_DECREF(result);
        return nullptr;
    }
    const Owned guard(result);
    auto prepared = facts.get() == Py_None ? nullptr : read_prepared(facts.get());
    if (prepared != nullptr) open_driver();
    if (launches.size() >= KEPT_LAUNCHES) launches.clear();
    launches[key] = std::move(prepared);
    return Py_NewRef(result);
}

/// Why Python must make this call; nothing where it need not.
const char* refusal_of(PyObject* const* arguments, Py_ssize_t count, PyObject* named, Given& given) {
    if (python_linear == nullptr) throw std::runtime_error("host_launch: called before attach");
    if (const char* why = read_arguments(arguments, count, named, given)) return why;
    if (const char* why = listener()) return why;
    return read_tensors(given);
}

PyObject* linear_of(PyObject* const* arguments, Py_ssize_t count, PyObject* named) {
    Given given;
    if (refusal_of(arguments, count, named, given) != nullptr) return by_python(arguments, count, named);
    const Addresses addresses = addresses_of(given);
    const Key key = key_of(given, addresses);
    const auto found = launches.find(key);
    if (found == launches.end()) return prepared_for(given, key, by_python(arguments, count, named));
    const auto prepared = found->second;  // another thread may clear the table meanwhile
    if (prepared == nullptr || !has_context()) return by_python(arguments, count, named);
    return launched(*prepared, given, addresses);
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

PyObject* linear(PyObject*, PyObject* const* arguments, Py_ssize_t count, PyObject* named) {
    return guarded([&] { return linear_of(arguments, count, named); });
}

PyObject* refusal(PyObject*, PyObject* const* arguments, Py_ssize_t count, PyObject* named) {
    return guarded([&]() -> PyObject* {
        Given given;
        const char* why = refusal_of(arguments, count, named, given);
        if (why == nullptr) return Py_NewRef(Py_None);
        return PyUnicode_FromString(why);
    });
}

PyObject* attach(PyObject*, PyObject* given) {
    return guarded([&]() -> PyObject* {
        const std::array<PyObject**, 8> places{
            &python_linear,    &python_prepare,       &python_stream,  &homes.registering,
            &homes.compiler, &homes.launch_numbers, &homes.launching, &homes.knobs_runtime};
        for (size_t place = 0; place < places.size(); ++place)
            Py_XSETREF(*places[place], Py_NewRef(item(given, static_cast<Py_ssize_t>(place))));
        return Py_NewRef(Py_None);
    });
}

PyObject* forget(PyObject*, PyObject*) {
    launches.clear();
    calls = {};
    return Py_NewRef(Py_None);
}

PyObject* kept(PyObject*, PyObject*) { return PyLong_FromSize_t(launches.size()); }

PyObject* counted(PyObject*, PyObject*) { return Py_BuildValue("KK", calls[0], calls[1]); }

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
        planted = 0;
        for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(names_of_faults); ++place) {
            const std::string name = PyUnicode_AsUTF8(item(names_of_faults, place));
            for (int each = 0; each < QUESTIONS; ++each) planted |= uint64_t{name == QUESTION_NAMES[each]} << each;
            planted |= uint64_t{name == "descriptor by address"} << DESCRIPTOR_BY_ADDRESS;
            planted |= uint64_t{name == "launch by sizes"} << LAUNCH_BY_SIZES;
        }
        return Py_NewRef(Py_None);
    });
}
#endif

#define FAST(function) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL | METH_KEYWORDS
PyMethodDef methods[] = {
    {"linear", FAST(linear), "linear(x, weight, bias=None, *, backend=None): what samebits.ops.linear returns."},
    {"refusal", FAST(refusal), "Why Python makes this call, or None."},
    {"attach", attach, METH_VARARGS, "The functions and modules of Python that calls here depend on."},
    {"forget", forget, METH_NOARGS, "Drop every launch that is kept."},
    {"kept", kept, METH_NOARGS, "How many launches are kept."},
    {"counted", counted, METH_NOARGS, "Calls launched here, and calls handed to Python."},
#ifdef STAND_IN
    {"use_driver", use_driver, METH_VARARGS, "Addresses of the driver's functions."},
    {"plant", plant, METH_VARARGS, "Faults from now on, by name; none: none."},
#endif
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "samebits_host_launch", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace host_launch

PyMODINIT_FUNC PyInit_samebits_host_launch() { return PyModule_Create(&host_launch::definition); }
