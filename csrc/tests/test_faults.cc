// What goes wrong: ranks that disagree, processes that die, leave, stall or never appear, cancelled collectives.

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "comm/wire.h"
#include "tests/check.h"
#include "tests/client.h"

namespace epl_test {
namespace {

bool HasGloo() { return strstr(epl_comm_transports(nullptr), "gloo") != nullptr; }

std::vector<std::string> Transports() {
  std::vector<std::string> names = {"shm", "nccl"};  // the latter on the stand-in of tests/gpu
  if (HasGloo()) names.push_back("gloo");
  return names;
}

// Two processes with one rank each; `change` makes the call of rank 1 another one.
void CheckMismatch(const std::function<void(Call*)>& change, const std::vector<std::string>& words) {
  for (const std::string& transport : Transports()) {
    Options options = MakeOptions(2);
    RunProcesses(2, [&](int process) {
      Job job(options, process);
      epl_communicator* communicator = job.Make("world", Even(2, 1), transport);
      std::vector<float> data(40, 1), more(2, 1);
      auto call = Sum("grads/0", &data);
      call->inputs.push_back(more.data());
      call->outputs.push_back(more.data());
      call->counts.push_back(2);
      if (process == 1) change(call.get());
      call->Submit(communicator, process);
      CHECK(call->Wait() == EPL_INVALID_ARGUMENT);
      for (const std::string& word : words) CHECK_HAS(call->message, word);
      // The ranks are still in step.
      CHECK(SumOnce(communicator, {process}, "after", 10) == EPL_OK);
    });
  }
}

}  // namespace

TEST(mismatch_counts) {
  CheckMismatch([](Call* call) { call->counts[0] = 30; },
                {"rank 0 has float32[40] for 'grads/0'", "rank 1 has float32[30]", "buffer 0 of 2"});
}
TEST(mismatch_second_buffer) {
  CheckMismatch([](Call* call) { call->counts[1] = 1; }, {"float32[2]", "float32[1]", "buffer 1 of 2"});
}
TEST(mismatch_buffers) {
  CheckMismatch([](Call* call) { call->counts.pop_back(); }, {"rank 0 has 2 buffers", "rank 1 has 1"});
}
TEST(mismatch_dtype) {
  CheckMismatch([](Call* call) { call->args.dtype = EPL_INT32; }, {"float32[40]", "int32[40]"});
}
TEST(mismatch_reduction) {
  CheckMismatch([](Call* call) { call->args.reduce_op = EPL_MAX; }, {"reduction sum", "reduction max"});
}
TEST(mismatch_kind) {
  CheckMismatch([](Call* call) { call->args.kind = EPL_BROADCAST; }, {"all_reduce", "broadcast"});
}
TEST(mismatch_key) {
  CheckMismatch([](Call* call) { call->key = "grads/1"; }, {"rank 0 is at 'grads/0'", "rank 1 is at 'grads/1'"});
}
TEST(mismatch_bad_description) {
  CheckMismatch([](Call* call) { call->counts[1] = -1; }, {"rank 1", "negative"});
}

TEST(mismatch_within_a_process) {
  Options options = MakeOptions(2);
  RunProcesses(2, [&](int process) {
    Job job(options, process);
    epl_communicator* communicator = job.Make("world", Even(2, 2));
    std::vector<float> a(4), b(process == 1 ? 5 : 4);
    auto first = Sum("g", &a), second = Sum("g", &b);
    first->Submit(communicator, 2 * process);
    second->Submit(communicator, 2 * process + 1);
    CHECK(first->Wait() == EPL_INVALID_ARGUMENT);
    CHECK(second->Wait() == EPL_INVALID_ARGUMENT);
    CHECK_HAS(first->message, "rank 2 has float32[4] for 'g', rank 3 has float32[5]");
  });
}

TEST(death_in_the_middle) {
  for (const std::string& transport : Transports()) {
    for (int64_t count : {4, 4000000}) {
      Options options = MakeOptions(3);
      RunProcesses(3,
                   [&](int process) {
                     Job job(options, process);
                     epl_communicator* communicator = job.Make("world", Even(3, 1), transport);
                     std::thread killer;
                     if (process == 1) {
                       killer = std::thread([] {
                         Sleep(0.3);
                         kill(getpid(), SIGKILL);
                       });
                     }
                     std::string message;
                     int code = EPL_OK;
                     const double start = Seconds();
                     while (code == EPL_OK) code = SumOnce(communicator, {process}, "g", count, &message);
                     CHECK(Seconds() - start < 8);
                     CHECK(code == EPL_INTERNAL);
                     CHECK_HAS(message, "worker 1 (127.0.0.1:1)");
                     CHECK_HAS(message, "died");
                     // Later ones fail at once.
                     CHECK(SumOnce(communicator, {process}, "g", count, &message) == EPL_INTERNAL);
                     CHECK_HAS(message, "worker 1");
                   },
                   40, {0, SIGKILL, 0});
    }
  }
}

TEST(death_of_process_0) {
  Options options = MakeOptions(2);
  RunProcesses(2,
               [&](int process) {
                 Job job(options, process);
                 epl_communicator* communicator = job.Make("world", Even(2, 1));
                 CHECK(SumOnce(communicator, {process}, "g", 4) == EPL_OK);
                 if (process == 0) kill(getpid(), SIGKILL);
                 std::string message;
                 CHECK(SumOnce(communicator, {process}, "g", 4, &message) == EPL_INTERNAL);
                 CHECK_HAS(message, "worker 0 (" + options.hosts[0] + ") died");
               },
               20, {SIGKILL, 0});
}

TEST(orderly_leave) {
  for (const std::string& transport : Transports()) {
    for (int leaver : {0, 1}) {
      Options options = MakeOptions(2);
      RunProcesses(2, [&](int process) {
        Job job(options, process);
        epl_communicator* communicator = job.Make("world", Even(2, 1), transport);
        // What all have entered is finished, although one leaves at once.
        for (int i = 0; i < 20; ++i) CHECK(SumOnce(communicator, {process}, "g", 100000) == EPL_OK);
        if (process == leaver) return;
        std::string message;
        CHECK(SumOnce(communicator, {process}, "late", 4, &message) == EPL_FAILED_PRECONDITION);
        CHECK_HAS(message, "worker " + std::to_string(leaver));
        CHECK_HAS(message, "has left the job (it exited normally) while rank");
        CHECK_HAS(message, "waits for 'late'");
      });
    }
  }
}

TEST(abort_reaches_all) {
  Options options = MakeOptions(3);
  RunProcesses(3, [&](int process) {
    Job job(options, process);
    epl_communicator* communicator = job.Make("world", Even(3, 1));
    if (process == 2) {
      Sleep(0.2);
      epl_job_abort(job.get(), "disk full");
    }
    std::string message;
    CHECK(SumOnce(communicator, {process}, "g", 4, &message) == EPL_INTERNAL);
    CHECK_HAS(message, "worker 2: disk full");
  });
}

TEST(cancel_of_a_started_one) {
  for (const std::string& transport : Transports()) {
    Options options = MakeOptions(2);
    RunProcesses(2, [&](int process) {
      Job job(options, process);
      epl_communicator* communicator = job.Make("world", Even(2, 2), transport);
      int64_t generation = epl_job_generation(job.get());
      if (process == 0) {
        std::vector<float> a(4), b(4), c(4);
        auto first = Sum("g", &a), second = Sum("g", &b), third = Sum("next", &c);
        first->Submit(communicator, 0);
        second->Submit(communicator, 1);
        third->Submit(communicator, 0);
        CHECK(!first->WaitFor(0.2));
        const double start = Seconds();
        epl_cancel(communicator, first->ticket);
        CHECK(first->Wait() == EPL_CANCELLED);
        CHECK(Seconds() - start < 1);
        // The others wait for the end of the step.
        CHECK(!second->WaitFor(0.2));
        CHECK(!third->WaitFor(0.01));
        epl_job_end_generation_of(job.get(), generation, "cancelled by the user");
        CHECK(second->Wait() == EPL_OUT_OF_RANGE);
        CHECK(third->Wait() == EPL_OUT_OF_RANGE);
        CHECK_HAS(third->message, "cancelled by the user");
      } else {
        Sleep(0.8);
        std::string message;
        CHECK(SumOnce(communicator, {2, 3}, "g", 4, &message) == EPL_OUT_OF_RANGE);
        CHECK_HAS(message, "worker 0");
        CHECK_HAS(message, "cancelled by the user");
        epl_job_end_generation(job.get(), "saw it");
      }
      CHECK(SumOnce(communicator, RanksOf(Even(2, 2), process), "new", 4) == EPL_OK);
    });
  }
}

TEST(cancel_of_a_queued_one) {
  Options options = MakeOptions(1);
  RunProcesses(1, [&](int) {
    Job job(options, 0);
    epl_communicator* communicator = job.Make("world", Even(1, 2));
    std::vector<float> a(4), b(4), c(4);
    auto first = Sum("g", &a), second = Sum("g", &b), third = Sum("g", &c);
    first->Submit(communicator, 0);
    epl_cancel(communicator, first->ticket);
    CHECK(first->Wait(2) == EPL_CANCELLED);
    // Rank 0's next is not matched with rank 1's first.
    second->Submit(communicator, 1);
    third->Submit(communicator, 0);
    CHECK(!second->WaitFor(0.1));
    CHECK(!third->WaitFor(0.01));
    epl_job_end_generation(job.get(), "step failed");
    CHECK(second->Wait(2) == EPL_OUT_OF_RANGE);
    CHECK(third->Wait(2) == EPL_OUT_OF_RANGE);
    CHECK(SumOnce(communicator, {0, 1}, "new", 4) == EPL_OK);
    epl_cancel(communicator, 1);  // long done
  });
}

TEST(timeout_names_the_missing) {
  for (const std::string& transport : Transports()) {
    Options options = MakeOptions(2);
    options.stall = 0.3;
    options.timeout = 1;
    RunProcesses(2, [&](int process) {
      Job job(options, process);
      epl_communicator* communicator = job.Make("grads", Even(2, 2), transport);
      if (process == 1) {
        Sleep(2);
        return;
      }
      std::string message;
      const double start = Seconds();
      std::string words = CaptureStderr([&] {
        CHECK(SumOnce(communicator, {0, 1}, "g/0", 4, &message) == EPL_DEADLINE_EXCEEDED);
      });
      CHECK(Seconds() - start < 1.8);
      CHECK_HAS(message, "'g/0' (all_reduce) of communicator 'grads'");
      CHECK_HAS(message, transport != "gloo" ? "missing: ranks 2, 3 of worker 1 (127.0.0.1:1)"
                                             : "missing: worker 1 (127.0.0.1:1)");
      CHECK_HAS(words, "stalled");
      CHECK_HAS(words, "worker 1 (127.0.0.1:1)");
    });
  }
}

TEST(silence_of_a_stopped_process) {
  for (int stopped : {0, 2}) {
    Options options = MakeOptions(3);
    options.timeout = 0.2;
    RunProcesses(3, [&](int process) {
      Job job(options, process);
      double seconds[3];
      if (process == stopped) {
        const pid_t self = getpid();
        if (fork() == 0) {
          Sleep(5);
          kill(self, SIGCONT);
          _exit(0);
        }
        Sleep(0.3);
        raise(SIGSTOP);
        epl_job_silences(job.get(), seconds);  // its own sleep is nobody's silence
        for (double silence : seconds) CHECK(silence == 0);
      } else {
        Sleep(4.4);
        epl_job_silences(job.get(), seconds);
        for (int other = 0; other < 3; ++other) CHECK((seconds[other] > 3) == (other == stopped));
        void* all = nullptr;
        int64_t sizes[3];
        epl_status status;
        if (stopped == 2) {
          CHECK(epl_job_exchange(job.get(), "never", "", 0, &all, sizes, &status) == EPL_DEADLINE_EXCEEDED);
          CHECK_HAS(status.message, "; nothing was heard of worker 2 (");
        }
      }
      Sleep(2.3);
      epl_job_silences(job.get(), seconds);
      for (double silence : seconds) CHECK(silence == 0);
    });
  }
}

TEST(missing_in_an_exchange) {
  Options options = MakeOptions(3);
  RunProcesses(3, [&](int process) {
    Job job(options, process);
    if (process == 2) Sleep(1);
    std::thread look([&] {
      if (process == 2) return;
      Sleep(0.5);
      int missing[3];
      CHECK(epl_job_missing(job.get(), "x", missing) == 1);
      CHECK(missing[0] == 2);
    });
    void* all = nullptr;
    int64_t sizes[3];
    epl_status status;
    CHECK(epl_job_exchange(job.get(), "x", "", 0, &all, sizes, &status) == EPL_OK);
    epl_free(all);
    look.join();
  });
}

TEST(timeout_of_a_local_rank) {
  Options options = MakeOptions(1);
  options.stall = 0.2;
  options.timeout = 0.7;
  RunProcesses(1, [&](int) {
    Job job(options, 0);
    epl_communicator* communicator = job.Make("world", Even(1, 3));
    std::vector<float> a(4), b(4);
    auto first = Sum("g", &a), second = Sum("g", &b);
    std::string words = CaptureStderr([&] {
      first->Submit(communicator, 0);
      second->Submit(communicator, 2);
      CHECK(first->Wait(3) == EPL_DEADLINE_EXCEEDED);
      CHECK(second->Wait(3) == EPL_DEADLINE_EXCEEDED);
    });
    CHECK_HAS(words, "missing: rank 1 of worker 0");
    CHECK_HAS(first->message, "missing: rank 1 of worker 0");
    epl_job_end_generation(job.get(), "failed");
    CHECK(SumOnce(communicator, {0, 1, 2}, "new", 4) == EPL_OK);
  });
}

TEST(stop_fails_what_is_pending) {
  Options options = MakeOptions(1);
  RunProcesses(1, [&](int) {
    Job job(options, 0);
    epl_communicator* communicator = job.Make("world", Even(1, 2));
    std::vector<float> a(4), b(4);
    auto call = Sum("g", &a), late = Sum("g", &b);
    call->Submit(communicator, 0);
    job.Stop();
    CHECK(call->Wait(2) == EPL_CANCELLED);
    CHECK(epl_communicator_find("world") == nullptr);
    late->Submit(communicator, 1);  // a kernel that still holds it
    CHECK(late->Wait(2) == EPL_CANCELLED);
  });
}

// ---- Generations.

TEST(end_of_data_in_one_process) {
  for (const std::string& transport : Transports()) {
    Options options = MakeOptions(3);
    RunProcesses(3, [&](int process) {
      Job job(options, process);
      epl_communicator* communicator = job.Make("world", Even(3, 1), transport);
      for (int epoch = 0; epoch < 5; ++epoch) {
        std::string message;
        int steps = 0;
        for (;; ++steps) {
          if (steps == 3 + (process + epoch) % 3) {
            epl_job_end_generation(job.get(), "end of data");
            epl_job_end_generation(job.get(), "end of data");
            break;
          }
          int code = SumOnce(communicator, {process}, "g", 10, &message);
          if (code == EPL_OK) continue;
          CHECK(code == EPL_OUT_OF_RANGE);
          CHECK_HAS(message, "ended the step: end of data");
          epl_job_end_generation(job.get(), "another ended");
          break;
        }
        CHECK(steps == 3);  // the fewest that anyone could do
      }
    });
  }
}

// Processes end generations at any moment; every collective succeeds on all or on none, and nothing hangs.
TEST(end_of_generation_races) {
  for (const std::string& transport : Transports()) {
    const int rounds = quick ? 60 : transport == "shm" ? 400 : 150;
    for (int processes : {2, 3}) {
      Options options = MakeOptions(processes);
      options.timeout = 10;
      RunProcesses(
          processes,
          [&](int process) {
            Job job(options, process);
            const std::vector<int> layout = Even(processes, 2);
            const std::vector<int> ranks = RanksOf(layout, process);
            epl_communicator* communicators[2] = {job.Make("a", layout, transport), job.Make("b", layout, transport)};
            std::mt19937 random(process + 17);
            for (int round = 0; round < rounds; ++round) {
              int64_t generation = epl_job_generation(job.get());
              CHECK(generation == round);
              // Another thread ends it at a random moment, in some processes.
              std::mutex submitting;  // what is submitted after the end belongs to the next generation
              std::atomic<bool> over{false};
              std::thread ender;
              const int delay = static_cast<int>(random() % 1500);
              const bool ends = random() % processes == 0 || process == round % processes;
              if (ends) {
                ender = std::thread([&] {
                  usleep(delay);
                  std::lock_guard<std::mutex> lock(submitting);
                  epl_job_end_generation_of(job.get(), generation, "end of data");
                  over = true;
                });
              }
              int64_t done[2] = {0, 0};
              for (bool failed = false; !failed && !over;) {
                std::vector<std::vector<float>> data;
                std::vector<std::unique_ptr<Call>> calls;
                data.reserve(4);
                std::unique_lock<std::mutex> lock(submitting);
                if (over) break;
                for (int c = 0; c < 2; ++c) {
                  for (int rank : ranks) {
                    data.emplace_back(c == 0 ? 3 : 20000, static_cast<float>(rank + 1));
                    calls.push_back(Sum("g", &data.back()));
                    calls.back()->Submit(communicators[c], rank);
                  }
                }
                lock.unlock();
                if (random() % 8 == 0) epl_cancel(communicators[random() % 2], calls[random() % calls.size()]->ticket);
                // A cancelled step is given up, as a session does it.
                for (size_t i = 0; i < calls.size(); ++i) {
                  int code;
                  while (!calls[i]->WaitFor(0.02)) {
                    for (auto& call : calls) {
                      if (call->WaitFor(0) && call->code == EPL_CANCELLED) {
                        epl_job_end_generation_of(job.get(), generation, "cancelled");
                      }
                    }
                  }
                  code = calls[i]->Wait();
                  CHECK_WORDS(code == EPL_OK || code == EPL_OUT_OF_RANGE || code == EPL_CANCELLED, calls[i]->message);
                  if (code != EPL_OK) failed = true;
                  if (code == EPL_OK) {
                    float sum = static_cast<float>(layout.size() * (layout.size() + 1) / 2);
                    for (float value : data[i]) CHECK(value == sum);
                    if (i % 2 == 0) ++done[i / 2];
                  }
                }
              }
              if (ender.joinable()) ender.join();
              epl_job_end_generation_of(job.get(), generation, "step failed");
              // Everyone did the same number.
              void* all = nullptr;
              std::vector<int64_t> sizes(processes);
              epl_status status;
              int code = epl_job_exchange(job.get(), "done", done, sizeof(done), &all, sizes.data(), &status);
              CHECK_WORDS(code == EPL_OK, status.message);
              for (int other = 0; other < processes; ++other) {
                CHECK(sizes[other] == sizeof(done));
                CHECK(memcmp(static_cast<char*>(all) + other * sizeof(done), done, sizeof(done)) == 0);
              }
              epl_free(all);
            }
          },
          120);
    }
  }
}

TEST(generation_of_a_single_process) {
  Options options = MakeOptions(1);
  RunProcesses(1, [&](int) {
    Job job(options, 0);
    epl_communicator* communicator = job.Make("world", Even(1, 2));
    for (int round = 0; round < 100; ++round) {
      std::vector<float> a(4);
      auto call = Sum("g", &a);
      call->Submit(communicator, 0);
      epl_job_end_generation(job.get(), "end");
      CHECK(call->Wait(2) == EPL_OUT_OF_RANGE);
      CHECK(SumOnce(communicator, {0, 1}, "g", 4) == EPL_OK);
    }
  });
}

TEST(stall_in_the_old_generation) {
  Options options = MakeOptions(2);
  options.stall = 0.2;
  RunProcesses(2, [&](int process) {
    Job job(options, process);
    epl_communicator* communicator = job.Make("world", Even(2, 1));
    if (process == 0) {
      epl_job_end_generation(job.get(), "end of data");
      std::string words = CaptureStderr([&] { CHECK(SumOnce(communicator, {0}, "g", 4) == EPL_OK); });
      CHECK_HAS(words, "waiting for the next step of communicator 'world'");
      CHECK_HAS(words, "worker 1 (127.0.0.1:1) (did not end the step that was given up)");
    } else {
      Sleep(0.7);
      CHECK(SumOnce(communicator, {1}, "g", 4) == EPL_OUT_OF_RANGE);
      epl_job_end_generation(job.get(), "saw it");
      CHECK(SumOnce(communicator, {1}, "g", 4) == EPL_OK);
    }
  });
}

}  // namespace epl_test
