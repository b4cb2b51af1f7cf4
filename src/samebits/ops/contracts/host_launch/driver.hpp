// The four functions of NVIDIA's driver that a launch needs, found when first used: this loads where there is no driver.
//
// The test's build (STAND_IN) is handed a table of functions in their place and never opens the driver.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace host_launch {

struct Driver {
    decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    decltype(&cuLaunchKernelEx) launch = nullptr;
    decltype(&cuCtxGetCurrent) context = nullptr;
    decltype(&cuGetErrorString) error = nullptr;
};

inline Driver driver;

template <class Function>
void find(void* library, const char* name, Function& found) {
    found = reinterpret_cast<Function>(dlsym(library, name));
    if (found == nullptr) throw std::runtime_error(std::string("host_launch: libcuda.so.1 has no ") + name);
}

inline void open_driver() {
    if (driver.launch != nullptr) return;
#ifdef STAND_IN
    throw std::runtime_error("host_launch: the test's build has no driver; allowed: after use_driver");
#else
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error("host_launch: libcuda.so.1 cannot be opened");
    find(library, "cuTensorMapEncodeTiled", driver.encode);
    find(library, "cuCtxGetCurrent", driver.context);
    find(library, "cuGetErrorString", driver.error);
    find(library, "cuLaunchKernelEx", driver.launch);
#endif
}

/// The words that Triton uses for the same.
inline void succeeded(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    const char* words = nullptr;
    driver.error(result, &words);
    throw std::runtime_error(std::string("Triton Error [CUDA]: ") + what + ": " + (words ? words : "unknown error"));
}

/// Whether this thread has a context; Triton's Python makes one where there is none.
inline bool has_context() {
    CUcontext current = nullptr;
    return driver.context(&current) == CUDA_SUCCESS && current != nullptr;
}

}  // namespace host_launch
