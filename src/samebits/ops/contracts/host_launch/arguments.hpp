// The arguments of a call, as words that a launch is kept by: every size, stride, dtype, alignment and number.
//
// Knows no operator: two calls with the same words differ in what their tensors hold and where they lie alone.
#pragma once

#include "prepared.hpp"

#include <unordered_map>

namespace host_launch {

constexpr size_t MOST_WORDS = 96;
/// Python's launches look at no more of an address than this.
constexpr uint64_t ALIGNMENT = 16;
/// Of an operator.
constexpr size_t KEPT_CALLS = 4096;

struct Key {
    size_t count = 0;
    std::array<int64_t, MOST_WORDS> words;  // the first `count` of them

    bool add(int64_t word) {
        if (count == MOST_WORDS) return false;
        words[count++] = word;
        return true;
    }
    bool operator==(const Key& other) const {
        return count == other.count && std::memcmp(words.data(), other.words.data(), count * sizeof words[0]) == 0;
    }
};

struct HashOfKey {
    size_t operator()(const Key& key) const {
        uint64_t hash = 0x9e3779b97f4a7c15;
        for (size_t place = 0; place < key.count; ++place) {
            hash = (hash ^ static_cast<uint64_t>(key.words[place])) * 0xff51afd7ed558ccd;
            hash ^= hash >> 32;
        }
        return hash;
    }
};

/// What is known of calls with the same words.
struct Kept {
    /// Empty where such a call was seen once, or where it cannot be made here.
    std::shared_ptr<const Prepared> prepared;
    /// Why it cannot; empty where nobody has tried.
    std::string why;
    /// Objects whose addresses are among the words: nothing else may come to lie there.
    std::vector<PyObject*> objects;

    Kept() = default;
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    ~Kept() {
        for (PyObject* each : objects) Py_DECREF(each);
    }
};

/// A function of Python whose calls are made here. Read and written with the interpreter's lock held.
struct Operator {
    PyObject* function = nullptr;
    PyObject* names = nullptr;
    Py_ssize_t positional = 0;
    std::unordered_map<Key, Kept, HashOfKey> kept;
    std::array<uint64_t, 2> calls{};  // launched here, handed to Python

    ~Operator() {
        Py_XDECREF(function);
        Py_XDECREF(names);
    }
};

/// A call's arguments by the place of their parameter; nothing where one is not given.
struct Given {
    std::array<PyObject*, MOST_ARGUMENTS> slots{};
    Addresses addresses{};
    Key key;
    c10::Device device{DEVICE};
    bool on_device = false;  // whether there is a tensor at all
};

inline Py_ssize_t place_of(const Operator& of, PyObject* name) {
    const Py_ssize_t count = PyTuple_GET_SIZE(of.names);
    for (Py_ssize_t place = 0; place < count; ++place)
        if (PyTuple_GET_ITEM(of.names, place) == name) return place;
    for (Py_ssize_t place = 0; place < count; ++place)
        if (PyUnicode_Compare(PyTuple_GET_ITEM(of.names, place), name) == 0) return place;
    return -1;
}

inline const char* read_places(
    const Operator& of, PyObject* const* arguments, Py_ssize_t count, PyObject* named, Given& given) {
    if (count > of.positional) return "arguments";
    for (Py_ssize_t place = 0; place < count; ++place) given.slots[place] = arguments[place];
    for (Py_ssize_t each = 0; named != nullptr && each < PyTuple_GET_SIZE(named); ++each) {
        const Py_ssize_t place = place_of(of, PyTuple_GET_ITEM(named, each));
        if (place < 0 || given.slots[place] != nullptr) return "arguments";
        given.slots[place] = arguments[count + each];
    }
    return nullptr;
}

enum Kind : int64_t { ABSENT, TENSOR, OBJECT, WHOLE, REAL };

inline const char* read_tensor(PyObject* object, size_t place, Given& given) {
    if (const char* why = particular(object)) return why;
    const auto& tensor = THPVariable_Unpack(object);
    if (!given.on_device) {
        given.device = c10::impl::VirtualGuardImpl(DEVICE).getDevice();
        given.on_device = true;
    }
    if (tensor.device() != given.device) return "device";
    const auto address = reinterpret_cast<uint64_t>(tensor.const_data_ptr());
    if (address == 0) return "no memory";
    given.addresses[place] = address;
    const int64_t alignment = is_planted(WITHOUT_ALIGNMENT) ? 0 : static_cast<int64_t>(address % ALIGNMENT);
    const int64_t dimensions = tensor.dim();
    const int64_t dtype = static_cast<int64_t>(tensor.scalar_type());
    bool fits = given.key.add(TENSOR | dtype << 8 | alignment << 16 | dimensions << 24);
    for (const int64_t size : tensor.sizes()) fits = fits && given.key.add(size);
    for (const int64_t stride : tensor.strides()) fits = fits && given.key.add(is_planted(WITHOUT_STRIDES) ? 0 : stride);
    return fits ? nullptr : "axes";
}

/// Numbers by value; names, dtypes, None, True and False by what they are, for equal ones are one object.
inline const char* read_value(PyObject* object, Given& given) {
    int64_t kind = OBJECT, word = 0;
    if (PyLong_CheckExact(object)) {
        int overflow = 0;
        kind = WHOLE, word = PyLong_AsLongLongAndOverflow(object, &overflow);
        if (overflow != 0) return "a number of more than 64 bits";
    } else if (PyFloat_CheckExact(object)) {
        const double number = PyFloat_AS_DOUBLE(object);
        kind = REAL;
        std::memcpy(&word, &number, sizeof word);
    } else if (object == Py_None || PyBool_Check(object) || PyUnicode_CheckExact(object) || THPDtype_Check(object)) {
        word = reinterpret_cast<int64_t>(object);
    } else {
        return QUESTION_NAMES[KIND];
    }
    if (kind != OBJECT && is_planted(WITHOUT_NUMBERS)) word = 0;
    return given.key.add(kind) && given.key.add(word) ? nullptr : "axes";
}

/// Why the arguments are of no form that is taken here; Python's function says what is wrong with them, if anything.
inline const char* read_arguments(const Operator& of, Given& given) {
    const auto count = static_cast<size_t>(PyTuple_GET_SIZE(of.names));
    given.key.add(0);
    for (size_t place = 0; place < count; ++place) {
        PyObject* object = given.slots[place];
        const char* why = nullptr;
        if (object == nullptr)
            why = given.key.add(ABSENT) ? nullptr : "axes";
        else if (THPVariableClass != nullptr && THPVariable_CheckExact(object))
            why = read_tensor(object, place, given);
        else
            why = read_value(object, given);
        if (why != nullptr) return why;
    }
    given.key.words[0] = given.device.index();
    return given.on_device ? nullptr : "no tensor";
}

/// Those of the arguments whose address is a word of the key.
inline std::vector<PyObject*> objects_of(const Given& given) {
    std::vector<PyObject*> found;
    for (PyObject* each : given.slots) {
        const bool counts = each != nullptr && !PyLong_CheckExact(each) && !PyFloat_CheckExact(each);
        if (counts && !THPVariable_CheckExact(each)) found.push_back(Py_NewRef(each));
    }
    return found;
}

}  // namespace host_launch
