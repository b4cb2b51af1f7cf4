// Launches that Python's function was seen to make, and descriptors, which are kept by address and layout.
//
// Knows no operator: a launch is a function of the driver, a grid and parameters that name the memory they speak of.
#pragma once

#include "driver.hpp"
#include "questions.hpp"

#include <array>
#include <cstring>
#include <memory>

namespace host_launch {

constexpr size_t MOST_ARGUMENTS = 12, MOST_MEMORIES = 4, MOST_PARAMETERS = 48, MOST_DESCRIPTORS = 8;
/// Of a thread; one that is overwritten is made again.
constexpr size_t KEPT_DESCRIPTORS = 1024;

/// Of a call: those of its arguments, by the place of a parameter in the signature, then those of new memory.
using Addresses = std::array<uint64_t, MOST_ARGUMENTS + MOST_MEMORIES>;

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
    /// Among `Addresses`.
    size_t source = 0;
    /// A number of 32 or 64 bits: the driver reads as many as the kernel declares, the lowest first. Of an address or
    /// a descriptor: bytes behind the start of its source.
    uint64_t value = 0;
    Layout layout;
};

struct Launch {
    CUfunction function = nullptr;
    unsigned programs = 0, threads = 0, shared = 0;
    std::vector<Parameter> parameters;
    /// The name that launches are counted under, and the compiled kernel, which must live as long.
    PyObject* name = nullptr;
    PyObject* kernel = nullptr;

    Launch() = default;
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;
    Launch(Launch&& other) noexcept { *this = std::move(other); }
    Launch& operator=(Launch&& other) noexcept {
        function = other.function, programs = other.programs, threads = other.threads, shared = other.shared;
        parameters = std::move(other.parameters);
        std::swap(name, other.name), std::swap(kernel, other.kernel);
        return *this;
    }
    ~Launch() {
        Py_XDECREF(name);
        Py_XDECREF(kernel);
    }
};

/// A tensor that the call makes: a result, or what a launch needs beside it.
struct Memory {
    at::ScalarType dtype{};
    c10::SmallVector<int64_t, 5> sizes, strides;
};

/// All that a call does.
struct Prepared {
    std::vector<Memory> memories;
    std::vector<Launch> launches;
    /// Numbers of memories; one of them alone is no tuple.
    std::vector<size_t> results;
    bool is_tuple = false;
};

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
inline void launch(const Launch& prepared, const Addresses& addresses, CUstream stream) {
    alignas(64) std::array<CUtensorMap, MOST_DESCRIPTORS> maps;
    std::array<uint64_t, MOST_PARAMETERS> pointers;
    std::array<void*, MOST_PARAMETERS> parameters;
    size_t count = 0, descriptors = 0;
    for (const auto& each : prepared.parameters) {
        if (each.kind == Parameter::DESCRIPTOR) {
            // A copy: the next descriptor may be kept in this one's place.
            maps[descriptors] = described(addresses[each.source] + each.value, each.layout);
            parameters[count++] = &maps[descriptors++];
        } else if (each.kind == Parameter::ADDRESS) {
            pointers[count] = addresses[each.source] + each.value;
            parameters[count] = &pointers[count];
            ++count;
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
