// The thread pool behind parallel_for: workers sleep between jobs, claim tasks from one counter, and survive a fork.
#include "samebits/threads.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "samebits/abi.h"

namespace samebits {
namespace {

struct Job {
    int64_t count = 0;
    TaskFunction function = nullptr;
    void* context = nullptr;
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr failure;
};

void work(Job& job, int32_t worker) {
    for (int64_t task; (task = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count;) {
        try {
            job.function(job.context, task, worker);
        } catch (...) {
            if (!job.failed.exchange(true)) job.failure = std::current_exception();
            job.next.store(job.count);
        }
    }
}

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // `yield` takes no time on the processors seen so far; this takes 13 ns on a Neoverse-N1
#endif
}

// A worker spins this long (about 0.1 ms) for the next job before it sleeps: small products come in quick succession, a
// few dozen microseconds of Python apart.
#if defined(__aarch64__)
constexpr int SPINS = 10000;
#else
constexpr int SPINS = 5000;
#endif

class Pool {
  public:
    void run(int64_t count, int32_t threads, TaskFunction function, void* context) {
        Job job;
        job.count = count;
        job.function = function;
        job.context = context;
        const int32_t helpers = static_cast<int32_t>(std::min<int64_t>(threads, count)) - 1;
        // A busy pool (a nested call, or a second Python thread) does its own work: same tasks, same bits.
        std::unique_lock<std::mutex> owner(owner_, std::try_to_lock);
        if (helpers < 1 || !owner.owns_lock()) {
            work(job, 0);
        } else {
            while (static_cast<int32_t>(workers_.size()) < helpers) start_worker();
            {
                std::lock_guard<std::mutex> lock(mutex_);
                job_ = &job;
                wanted_ = helpers;
                generation_.fetch_add(1, std::memory_order_release);
            }
            for (int32_t i = 0; i < helpers; ++i) workers_[static_cast<size_t>(i)]->wake.notify_one();
            work(job, 0);
            {
                // Whoever has not begun by now is not waited for: on a busy machine waking up takes longer than small jobs.
                std::lock_guard<std::mutex> lock(mutex_);
                job_ = nullptr;
            }
            while (busy_.load(std::memory_order_acquire) != 0) pause_or_yield();
        }
        if (job.failed) std::rethrow_exception(job.failure);
    }

  private:
    void pause_or_yield() {
        for (int i = 0; i < 64 && busy_.load(std::memory_order_acquire) != 0; ++i) pause_briefly();
        if (busy_.load(std::memory_order_acquire) != 0) sched_yield();
    }

    // Each has its own bell: a worker that a job has no use for must neither wake nor spin beside those at work.
    struct Worker {
        std::condition_variable wake;
    };

    void start_worker() {
        const int32_t number = static_cast<int32_t>(workers_.size()) + 1;
        const uint64_t seen = generation_.load(std::memory_order_acquire);
        workers_.push_back(std::make_unique<Worker>());
        std::thread([this, number, seen, self = workers_.back().get()] { serve(number, seen, *self); }).detach();
    }

    void serve(int32_t number, uint64_t seen, Worker& self) {
        for (;;) {
            for (int i = 0; i < SPINS && generation_.load(std::memory_order_acquire) == seen; ++i) pause_briefly();
            Job* job = nullptr;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                self.wake.wait(lock, [&] {
                    return number <= wanted_ && generation_.load(std::memory_order_acquire) != seen;
                });
                seen = generation_.load(std::memory_order_acquire);
                job = job_;
                if (job != nullptr) busy_.fetch_add(1, std::memory_order_relaxed);
            }
            if (job != nullptr) {
                work(*job, number);
                busy_.fetch_sub(1, std::memory_order_release);
            }
        }
    }

    std::mutex owner_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Worker>> workers_;
    Job* job_ = nullptr;
    int32_t wanted_ = 0;
    std::atomic<uint64_t> generation_{0};
    std::atomic<int32_t> busy_{0};
};

Pool* pool = nullptr;

// Never destroyed: workers may still be asleep in it when the process ends. A forked child has no workers, so it starts anew.
Pool& the_pool() {
    static std::once_flag once;
    std::call_once(once, [] {
        pool = new Pool;
        pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
    });
    return *pool;
}

}  // namespace

void run_tasks(int64_t count, int32_t threads, TaskFunction function, void* context) {
    if (threads < 1) throw Error("threads must be at least 1, got " + std::to_string(threads));
    if (count > 0) the_pool().run(count, threads, function, context);
}

}  // namespace samebits
