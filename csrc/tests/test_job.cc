// Jobs and communicators: starting, strangers, exchanging, names, starting again.

#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "comm/wire.h"
#include "tests/check.h"
#include "tests/client.h"

namespace epl_test {

TEST(start_names_the_missing) {
  Options options = MakeOptions(4);
  options.start_timeout = 1;
  RunProcesses(2, [&](int process) {
    epl_job* job = nullptr;
    std::string message;
    const double start = Seconds();
    CHECK(TryStart(options, process * 2, &job, &message) == EPL_DEADLINE_EXCEEDED);
    CHECK(Seconds() - start < 5);
    CHECK_HAS(message, "worker 1 (127.0.0.1:1), worker 3 (127.0.0.1:3) did not appear within 1 s");
  });
}

TEST(start_without_process_0) {
  Options options = MakeOptions(2);
  close(options.listen_fd);
  options.start_timeout = 1;
  epl_job* job = nullptr;
  std::string message;
  CHECK(TryStart(options, 1, &job, &message) == EPL_DEADLINE_EXCEEDED);
  CHECK_HAS(message, "worker 0 (" + options.hosts[0] + ") did not appear within 1 s");
}

TEST(start_twice_with_one_index) {
  Options options = MakeOptions(3);
  options.start_timeout = 2;
  RunProcesses(3, [&](int process) {
    if (process == 2) Sleep(0.4);
    epl_job* job = nullptr;
    std::string message;
    int code = TryStart(options, process == 0 ? 0 : 1, &job, &message);
    if (process == 2) {
      CHECK(code == EPL_FAILED_PRECONDITION);
      CHECK_HAS(message, "index 1 is already taken");
      CHECK_HAS(message, "task index");
    } else {
      CHECK(code == EPL_DEADLINE_EXCEEDED);
      CHECK_HAS(message, "worker 2 (127.0.0.1:2) did not appear");
      CHECK_HAS(message, "index 1 is already taken");
    }
  });
}

TEST(start_with_another_size) {
  Options options = MakeOptions(3);
  options.start_timeout = 1;
  RunProcesses(2, [&](int process) {
    Options own = options;
    if (process == 1) {
      own.processes = 2;
      own.hosts.resize(2);
    }
    epl_job* job = nullptr;
    std::string message;
    CHECK(TryStart(own, process, &job, &message) != EPL_OK);
    CHECK_HAS(message, "for a job of 2 processes, worker 0 for one of 3");
  });
}

TEST(strangers_are_refused) {
  Options options = MakeOptions(2);
  RunProcesses(3, [&](int process) {
    if (process < 2) {
      if (process == 1) Sleep(0.5);
      Job job(options, process);
      CHECK(SumOnce(job.Make("world", Even(2, 1)), {process}, "g", 4) == EPL_OK);
      return;
    }
    int fd = -1;
    CHECK(epl::Connect(options.hosts[0], 5, &fd).ok());
    const char words[] = "GET / HTTP/1.1\r\n\r\n";
    CHECK(send(fd, words, sizeof(words), MSG_NOSIGNAL) > 0);
    std::string answer;
    char buffer[4096];
    for (ssize_t size; epl::WaitReadable(fd, 5) && (size = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, size);
    }
    CHECK_HAS(answer, "this is the control plane of an EPL job");
  });
}

TEST(another_server_at_the_port) {
  Options options = MakeOptions(2);
  options.start_timeout = 2;
  std::thread server([&] {
    int fd = accept(options.listen_fd, nullptr, nullptr);
    const char words[] = "SSH-2.0-OpenSSH_9.2\r\nmore words than a length field has room for\r\n";
    CHECK(send(fd, words, sizeof(words), MSG_NOSIGNAL) > 0);
    Sleep(0.5);
    close(fd);
  });
  epl_job* job = nullptr;
  std::string message;
  CHECK(TryStart(options, 1, &job, &message) == EPL_FAILED_PRECONDITION);
  CHECK_HAS(message, "another program uses its port");
  server.join();
}

TEST(exchange_in_process_order) {
  Options options = MakeOptions(4);
  RunProcesses(4, [&](int process) {
    Job job(options, process);
    for (int round = 0; round < 20; ++round) {
      std::string own(round == 7 ? 300000 + process : process * 3, static_cast<char>('a' + process));
      void* all = nullptr;
      int64_t sizes[4];
      epl_status status;
      CHECK_WORDS(epl_job_exchange(job.get(), "plan", own.data(), own.size(), &all, sizes, &status) == EPL_OK,
                  status.message);
      std::string expected;
      for (int other = 0; other < 4; ++other) {
        std::string part(round == 7 ? 300000 + other : other * 3, static_cast<char>('a' + other));
        CHECK(sizes[other] == static_cast<int64_t>(part.size()));
        expected += part;
      }
      CHECK(expected == std::string(static_cast<char*>(all), expected.size()));
      epl_free(all);
    }
  });
}

TEST(exchange_names_the_missing) {
  Options options = MakeOptions(3);
  options.timeout = 1;
  options.stall = 0.4;
  RunProcesses(3, [&](int process) {
    Job job(options, process);
    if (process == 1) {
      Sleep(2);
      return;
    }
    void* all = nullptr;
    int64_t sizes[3];
    epl_status status;
    std::string words = CaptureStderr(
        [&] { CHECK(epl_job_exchange(job.get(), "plan", "x", 1, &all, sizes, &status) == EPL_DEADLINE_EXCEEDED); });
    CHECK_HAS(status.message, "missing: worker 1 (127.0.0.1:1)");
    CHECK_HAS(words, "the exchange 'plan'");
    Sleep(1);  // the other one should see a timeout, not this one's leaving
  });
}

TEST(exchange_with_one_that_left) {
  Options options = MakeOptions(3);
  RunProcesses(3, [&](int process) {
    Job job(options, process);
    if (process == 1) return;
    void* all = nullptr;
    int64_t sizes[3];
    epl_status status;
    CHECK(epl_job_exchange(job.get(), "plan", "x", 1, &all, sizes, &status) == EPL_FAILED_PRECONDITION);
    CHECK_HAS(status.message, "has left the job (it exited normally)");
    CHECK_HAS(status.message, "'plan'");
  });
}

TEST(communicators_by_name) {
  Options options = MakeOptions(2);
  RunProcesses(2, [&](int process) {
    Job job(options, process);
    epl_communicator* world = job.Make("world", Even(2, 1));
    CHECK(job.Make("world", Even(2, 1)) == world);
    CHECK(epl_communicator_size(world) == 2);
    CHECK(epl_communicator_find("nobody") == nullptr);
    std::string message;
    CHECK(job.TryMake("world", Even(2, 2), "auto", &message) == EPL_INVALID_ARGUMENT);
    CHECK_HAS(message, "exists already");
    CHECK(job.TryMake("other", {1 - process}, "auto", &message) == EPL_INVALID_ARGUMENT);
    CHECK_HAS(message, "owns none");
    CHECK(job.TryMake("differs", Even(2, 1 + process), "auto", &message) == EPL_INVALID_ARGUMENT);
    CHECK_HAS(message, "over processes [0 1], worker 1 (127.0.0.1:1) with auto over [0 0 1 1]");
    CHECK(job.TryMake("carrier", Even(2, 1), "pigeon", &message) == EPL_INVALID_ARGUMENT);
    CHECK(job.TryMake("spread", Even(2, 1), "local", &message) == EPL_INVALID_ARGUMENT);
    CHECK(strcmp(epl_communicator_transport(world), "shm") == 0);
    epl_communicator* own = job.Make("own", {process, process}, "auto");
    CHECK(strcmp(epl_communicator_transport(own), "local") == 0);
    CHECK(SumOnce(own, {0, 1}, "g", 4) == EPL_OK);
    epl_communicator_destroy(own);
    CHECK(epl_communicator_find("own") == nullptr);
    CHECK(SumOnce(world, {process}, "g", 4) == EPL_OK);
  });
}

TEST(subsets_of_processes) {
  Options options = MakeOptions(3);
  RunProcesses(3, [&](int process) {
    Job job(options, process);
    const std::vector<int> pair = {2, 0};
    epl_communicator* some = process == 1 ? nullptr : job.Make("some", pair);
    epl_communicator* all = job.Make("all", Even(3, 1));
    for (int round = 0; round < 50; ++round) {
      if (some != nullptr) CHECK(SumOnce(some, RanksOf(pair, process), "g", 100) == EPL_OK);
      CHECK(SumOnce(all, {process}, "g", 100) == EPL_OK);
    }
  });
}

TEST(many_communicators_at_once) {
  Options options = MakeOptions(2);
  RunProcesses(2, [&](int process) {
    Job job(options, process);
    std::vector<std::thread> threads;
    std::vector<epl_communicator*> communicators;
    for (int i = 0; i < 6; ++i) communicators.push_back(job.Make("c" + std::to_string(i), Even(2, 1)));
    for (epl_communicator* communicator : communicators) {
      threads.emplace_back([=] {
        for (int round = 0; round < 100; ++round) CHECK(SumOnce(communicator, {process}, "g", 1000) == EPL_OK);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// The same port again, in the same processes: with an inherited socket and with one of our own.
TEST(start_again) {
  Options options = MakeOptions(2);
  Options own = MakeOptions(2);
  close(own.listen_fd);
  own.listen_fd = -1;
  RunProcesses(2, [&](int process) {
    for (int round = 0; round < 5; ++round) {
      for (const Options& each : {options, own}) {
        Job job(each, process);
        CHECK(SumOnce(job.Make("world", Even(2, 1)), {process}, "g", 100) == EPL_OK);
      }
    }
  });
}

TEST(more_processes_than_processors) {
  Options options = MakeOptions(8);
  RunProcesses(8, [&](int process) {
    Job job(options, process);
    epl_communicator* world = job.Make("world", Even(8, 1));
    for (int round = 0; round < 50; ++round)
      CHECK(SumOnce(world, {process}, "g", round % 2 == 0 ? 10 : 50000) == EPL_OK);
  });
}

}  // namespace epl_test
