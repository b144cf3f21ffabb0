// SPDX-License-Identifier: Apache-2.0
// Threads that share the parts of one computation. They look for work for a while after each, and then sleep.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace dovetail {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  static Pool& get() {
    static Pool* pool = new Pool();  // Never destroyed: its threads end with the process.
    return *pool;
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls `part(i)` for each i below `count`, on all threads; which has which part follows from who is free.
  // If another computation has the threads, the caller computes all parts itself.
  template <typename Part>
  void run(int64_t count, const Part& part) {
    if (count <= 1 || workers_.empty() || !busy_.try_lock()) {
      for (int64_t i = 0; i < count; i++) part(i);
      return;
    }
    std::lock_guard<std::mutex> held(busy_, std::adopt_lock);
    call_ = [](const void* given, int64_t i) { (*static_cast<const Part*>(given))(i); };
    given_ = &part;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    working_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    turn_.fetch_add(1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) {
      { std::lock_guard<std::mutex> locked(mutex_); }
      wake_.notify_all();
    }
    work();
    // Who has not even begun is not waited for: there is nothing left for it to take.
    for (int spins = 0; working_.load(std::memory_order_acquire) > 0; spins++) {
      if (spins < 4096) pause(); else sched_yield();
    }
  }

 private:
  Pool() {
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    for (int i = 1; i < cores; i++) {
      workers_.emplace_back([this] { serve(); });
      workers_.back().detach();
    }
  }

  void work() {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) call_(given_, i);
  }

  void serve() {
    uint64_t seen = 0;
    for (;;) {
      uint64_t turn = wait_after(seen);
      seen = turn;
      work();
      working_.fetch_sub(1, std::memory_order_release);
    }
  }

  uint64_t wait_after(uint64_t seen) {
    uint64_t turn;
    auto since = std::chrono::steady_clock::now();
    for (int spins = 1;; spins++) {
      if ((turn = turn_.load(std::memory_order_acquire)) != seen) return turn;
      pause();
      if (spins % 64 == 0 && std::chrono::steady_clock::now() - since > std::chrono::microseconds(kSpin)) break;
    }
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    std::unique_lock<std::mutex> locked(mutex_);
    wake_.wait(locked, [&] { return (turn = turn_.load(std::memory_order_seq_cst)) != seen; });
    locked.unlock();
    sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    return turn;
  }

  static constexpr int kSpin = 200;  // Microseconds.
  std::vector<std::thread> workers_;
  std::mutex busy_, mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> turn_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<int> working_{0}, sleeping_{0};
  void (*call_)(const void*, int64_t) = nullptr;
  const void* given_ = nullptr;
  int64_t count_ = 0;
};

}  // namespace dovetail
