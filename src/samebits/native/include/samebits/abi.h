// The plain C boundary: names per instruction set, and an error path that never throws into Python.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#define SAMEBITS_EXPORT extern "C" __attribute__((visibility("default")))

// A kernel file is compiled once per instruction set with SAMEBITS_ISA set to its name, as in sources.py.
#define SAMEBITS_JOIN_(a, b) a##_##b
#define SAMEBITS_JOIN(a, b) SAMEBITS_JOIN_(a, b)
#ifdef SAMEBITS_ISA
#define SAMEBITS_NAME(op) SAMEBITS_JOIN(samebits_##op, SAMEBITS_ISA)
#endif

namespace samebits {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Keeps the message for this thread until the next failing call.
void remember_error(const char* message) noexcept;

// Runs the body; anything thrown becomes a status code and a message. 0 done, 1 refused, 2 out of memory, 3 unforeseen.
template <class Body>
int32_t guarded(Body&& body) noexcept {
    try {
        body();
        return 0;
    } catch (const Error& error) {
        remember_error(error.what());
        return 1;
    } catch (const std::bad_alloc&) {
        remember_error("out of memory");
        return 2;
    } catch (const std::exception& error) {
        remember_error(error.what());
        return 3;
    } catch (...) {
        remember_error("unknown failure");
        return 3;
    }
}

}  // namespace samebits
