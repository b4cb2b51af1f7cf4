// A driver that launches nothing: it records the last launch and says yes, so that the host's path runs without a GPU.
//
// A tensor map holds what it was encoded from, in plain numbers. Has what Triton's own C code asks a driver for, too.
#include <cuda.h>

#include <cstdint>
#include <cstring>

#define STUB extern "C" __attribute__((visibility("default")))

namespace {

constexpr int MOST = 32, BYTES = 128;

/// As stub.py reads it.
struct Launch {
    uint64_t grid[3], block[3], shared, stream, function, attributes, count;
    unsigned char parameters[MOST][BYTES];
};
Launch last;
uint64_t launches, encodings, contexts = 1;
CUresult answer = CUDA_SUCCESS;  // to a launch
uint64_t known, sizes[MOST], parameters;  // of one kernel

struct Encoded {
    uint64_t address, type, rank, shape[2], stride, box[2], elements[2], interleave, swizzle, promotion, fill;
};
static_assert(sizeof(Encoded) <= BYTES);

}  // namespace

STUB void* stub_last() { return &last; }
STUB uint64_t stub_launches() { return launches; }
STUB uint64_t stub_encodings() { return encodings; }
/// Whether the calling thread looks as if it had a context.
STUB void stub_contexts(uint64_t here) { contexts = here; }
/// What launches are answered from now on; none that fails is recorded.
STUB void stub_answers(int result) { answer = static_cast<CUresult>(result); }
/// Bytes of each parameter of a kernel, which a driver knows; of another kernel no parameters are recorded.
STUB void stub_sizes(uint64_t function, uint64_t count, const uint64_t* given) {
    known = function, parameters = count;
    std::memcpy(sizes, given, count * sizeof *given);
}

STUB CUresult cuTensorMapEncodeTiled(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* shape,
    const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* elements, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    const Encoded encoded{reinterpret_cast<uint64_t>(address), static_cast<uint64_t>(type), rank,
                          {shape[0], shape[1]}, strides[0], {box[0], box[1]}, {elements[0], elements[1]},
                          static_cast<uint64_t>(interleave), static_cast<uint64_t>(swizzle),
                          static_cast<uint64_t>(promotion), static_cast<uint64_t>(fill)};
    std::memset(map, 0, sizeof *map);
    std::memcpy(map, &encoded, sizeof encoded);
    ++encodings;
    return CUDA_SUCCESS;
}

STUB CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** given, void**) {
    if (answer != CUDA_SUCCESS) return answer;
    last.grid[0] = config->gridDimX, last.grid[1] = config->gridDimY, last.grid[2] = config->gridDimZ;
    last.block[0] = config->blockDimX, last.block[1] = config->blockDimY, last.block[2] = config->blockDimZ;
    last.shared = config->sharedMemBytes, last.attributes = config->numAttrs;
    last.stream = reinterpret_cast<uint64_t>(config->hStream);
    last.function = reinterpret_cast<uint64_t>(function);
    last.count = last.function == known ? parameters : 0;
    for (uint64_t each = 0; each < last.count; ++each) {
        std::memset(last.parameters[each], 0, BYTES);
        std::memcpy(last.parameters[each], given[each], sizes[each]);
    }
    ++launches;
    return CUDA_SUCCESS;
}

STUB CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = reinterpret_cast<CUcontext>(contexts);
    return CUDA_SUCCESS;
}

STUB CUresult cuGetErrorString(CUresult, const char** words) {
    *words = "an error of the stub";
    return CUDA_SUCCESS;
}

// What Triton's own C code asks for besides: to load a kernel, and to look at a pointer.
STUB CUresult cuDeviceGet(CUdevice* device, int) { return *device = 0, CUDA_SUCCESS; }
STUB CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) { return *value = 232448, CUDA_SUCCESS; }
STUB CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return cuCtxGetCurrent(context); }
STUB CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
STUB CUresult cuCtxGetLimit(size_t* limit, CUlimit) { return *limit = 0, CUDA_SUCCESS; }
STUB CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
STUB CUresult cuModuleLoadData(CUmodule* module, const void*) { return *module = nullptr, CUDA_SUCCESS; }
STUB CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) { return *value = 1024, CUDA_SUCCESS; }
STUB CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
STUB CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
STUB CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
    static uint64_t functions = 1000;
    return *function = reinterpret_cast<CUfunction>(++functions), CUDA_SUCCESS;
}
STUB CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction, const CUlaunchConfig*) {
    return *count = 1, CUDA_SUCCESS;
}
STUB CUresult cuPointerGetAttribute(void* found, CUpointer_attribute, CUdeviceptr address) {
    std::memcpy(found, &address, sizeof address);
    return CUDA_SUCCESS;
}
