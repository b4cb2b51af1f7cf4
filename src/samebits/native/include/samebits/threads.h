// A small thread pool: independent tasks, each run exactly once, by whichever thread is free.
//
// Tasks never share an accumulator, so neither the number of threads nor who runs what can reach a result's bits.
#pragma once

#include <cstdint>
#include <type_traits>

namespace samebits {

using TaskFunction = void (*)(void* context, int64_t task, int32_t worker);

// Runs task 0..count-1 on at most `threads` threads (the caller is one of them). A task's exception is rethrown here.
void run_tasks(int64_t count, int32_t threads, TaskFunction function, void* context);

// body(task) or body(task, worker); worker numbers 0..threads-1 tell private scratch memory apart.
template <class Body>
void parallel_for(int64_t count, int32_t threads, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_tasks(
        count, threads,
        [](void* context, int64_t task, int32_t worker) {
            if constexpr (std::is_invocable_v<Plain&, int64_t, int32_t>) {
                (*static_cast<Plain*>(context))(task, worker);
            } else {
                (*static_cast<Plain*>(context))(task);
            }
        },
        const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace samebits
