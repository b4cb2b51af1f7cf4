// Launches that Python prepared, by all that they were chosen by; and descriptors, which are kept by address and layout.
//
// Knows no operator: a launch is a function of the driver, a grid and parameters that name operands.
#pragma once

#include "driver.h"
#include "questions.h"

#include <array>
#include <cstring>
#include <memory>
#include <unordered_map>

namespace host_launch {

enum Operand { X, WEIGHT, BIAS, OUT, OPERANDS };
using Addresses = std::array<uint64_t, OPERANDS>;

constexpr size_t MOST_PARAMETERS = 32;
/// As many as samebits/ops/matmul/triton_again.py remembers.
constexpr size_t KEPT_LAUNCHES = 4096;
/// Of a thread; one that is overwritten is made again.
constexpr size_t KEPT_DESCRIPTORS = 1024;

/// A matrix as the tensor memory accelerator sees it, but for its address. The axis that runs fastest comes first.
struct Layout {
    /// No two layouts have the same, so a descriptor is never taken for another's. 0: none.
    uint64_t identity = 0;
    CUtensorMapDataType type{};
    CUtensorMapSwizzle swizzle{};
    std::array<cuuint64_t, 2> shape{};
    std::array<cuuint64_t, 2> strides{};
    std::array<cuuint32_t, 2> box{};
};

struct Parameter {
    enum Kind { DESCRIPTOR, ADDRESS, VALUE } kind = VALUE;
    Operand operand = X;
    /// A number of 32 or 64 bits: the driver reads as many as the kernel declares, the lowest first.
    uint64_t value = 0;
    Layout layout;
};

struct Prepared {
    CUfunction function = nullptr;
    unsigned programs = 0, threads = 0, shared = 0;
    std::vector<Parameter> parameters;
    /// The name that launches are counted under, and the compiled kernel, which must live as long.
    PyObject* name = nullptr;
    PyObject* kernel = nullptr;

    Prepared() = default;
    Prepared(const Prepared&) = delete;
    Prepared& operator=(const Prepared&) = delete;
    ~Prepared() {
        Py_XDECREF(name);
        Py_XDECREF(kernel);
    }
};

struct Key {
    /// Device, dtype, bias and alignment in one; rows, K, N; strides of x and of weight.
    std::array<int64_t, 8> words{};
    bool operator==(const Key& other) const { return words == other.words; }
};

struct HashOfKey {
    size_t operator()(const Key& key) const {
        uint64_t hash = 0x9e3779b97f4a7c15;
        for (const int64_t word : key.words) {
            hash = (hash ^ static_cast<uint64_t>(word)) * 0xff51afd7ed558ccd;
            hash ^= hash >> 32;
        }
        return hash;
    }
};

/// Empty where Python's function alone can make the launch. Read and written with the interpreter's lock held.
using Launches = std::unordered_map<Key, std::shared_ptr<const Prepared>, HashOfKey>;
inline Launches& launches = *new Launches;  // never destroyed: Python is gone by then

inline CUtensorMap encoded(uint64_t address, const Layout& layout) {
    constexpr std::array<cuuint32_t, 2> elements{1, 1};
    alignas(64) CUtensorMap map;
    succeeded(
        driver.encode(
            &map, layout.type, 2, reinterpret_cast<void*>(address), layout.shape.data(), layout.strides.data(),
            layout.box.data(), elements.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, layout.swizzle,
            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "no tensor map");
    return map;
}

struct KeptDescriptor {
    uint64_t address = 0, identity = 0;
    CUtensorMap map{};
};

/// The descriptor of this matrix at this address.
inline const CUtensorMap& described(uint64_t address, const Layout& layout) {
    // Of each thread, since the interpreter's lock is not held.
    thread_local const std::unique_ptr<KeptDescriptor[]> kept(new KeptDescriptor[KEPT_DESCRIPTORS]);
    const uint64_t identity = is_planted(DESCRIPTOR_BY_ADDRESS) ? 1 : layout.identity;
    const uint64_t hash = (address ^ identity * 0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd;
    auto& found = kept[hash >> 32 & (KEPT_DESCRIPTORS - 1)];
    if (found.address != address || found.identity != identity) {
        found.identity = 0;  // where encoding fails, this is nobody's
        found.map = encoded(address, layout);
        found.address = address, found.identity = identity;
    }
    return found.map;
}

/// As the launcher that Triton generates does it, without clusters. The interpreter's lock need not be held.
inline void launch(const Prepared& prepared, const Addresses& addresses, CUstream stream) {
    alignas(64) std::array<CUtensorMap, OPERANDS> maps;
    std::array<void*, MOST_PARAMETERS> parameters;
    size_t count = 0, descriptors = 0;
    for (const auto& each : prepared.parameters) {
        if (each.kind == Parameter::DESCRIPTOR) {
            // A copy: the next descriptor may be kept in this one's place.
            maps[descriptors] = described(addresses[each.operand], each.layout);
            parameters[count++] = &maps[descriptors++];
        } else if (each.kind == Parameter::ADDRESS) {
            parameters[count++] = const_cast<uint64_t*>(&addresses[each.operand]);
        } else {
            parameters[count++] = const_cast<uint64_t*>(&each.value);
        }
    }
    CUlaunchConfig config{};
    config.gridDimX = prepared.programs;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = prepared.threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = prepared.shared;
    config.hStream = stream;
    succeeded(driver.launch(&config, prepared.function, parameters.data(), nullptr), "no launch");
}

}  // namespace host_launch
