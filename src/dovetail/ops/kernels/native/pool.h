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
    ticket_.store(++turn_ << 32 | kClosed, std::memory_order_seq_cst);  // Nobody takes a part while they are changed.
    call_.store([](const void* given, int64_t i) { (*static_cast<const Part*>(given))(i); });
    given_.store(&part);
    count_.store(count);
    done_.store(0);
    ticket_.store(++turn_ << 32, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) {
      { std::lock_guard<std::mutex> locked(mutex_); }
      wake_.notify_all();
    }
    work();
    // A thread that has no part is not waited for: it may not even have a core.
    for (int spins = 0; done_.load(std::memory_order_acquire) < count; spins++) {
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

  // Takes parts until there are none. A ticket is the number of a computation and that of its next part: it can be
  // taken only as long as both are what they were when all else was read.
  void work() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (;;) {
      const int64_t part = ticket & kClosed;
      if (part >= count_.load()) return;
      auto call = call_.load();
      auto given = given_.load();
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
      call(given, part);
      done_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  void serve() {
    for (uint64_t seen = 0;;) {
      seen = next_after(seen);
      work();
    }
  }

  // Waits until there is another computation than the last one, and returns its number.
  uint64_t next_after(uint64_t seen) {
    uint64_t turn;
    auto changed = [&] {
      const uint64_t ticket = ticket_.load(std::memory_order_seq_cst);
      turn = ticket >> 32;
      return turn != seen && (ticket & kClosed) != kClosed;
    };
    const auto since = std::chrono::steady_clock::now();
    for (int spins = 1;; spins++) {
      if (changed()) return turn;
      pause();
      if (spins % 64 == 0 && std::chrono::steady_clock::now() - since > std::chrono::microseconds(kSpin)) break;
    }
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    std::unique_lock<std::mutex> locked(mutex_);
    wake_.wait(locked, changed);
    locked.unlock();
    sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    return turn;
  }

  static constexpr uint64_t kClosed = 0xffffffff;
  static constexpr int kSpin = 200;  // Microseconds.
  std::vector<std::thread> workers_;
  std::mutex busy_, mutex_;
  std::condition_variable wake_;
  uint64_t turn_ = 0;  // Of the computation; changed by who has the threads.
  std::atomic<uint64_t> ticket_{kClosed};
  std::atomic<int64_t> count_{0}, done_{0};
  std::atomic<void (*)(const void*, int64_t)> call_{nullptr};
  std::atomic<const void*> given_{nullptr};
  std::atomic<int> sleeping_{0};
};

}  // namespace dovetail
