// Who is admitted to a job and who is not, and what waiting workers say.

#include <ifaddrs.h>
#include <netdb.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "comm/messages.h"
#include "comm/rendezvous.h"
#include "tests/check.h"
#include "tests/client.h"

namespace epl_test {
namespace {

constexpr uint64_t kMagic = 0x314d4d4f434c5045;  // what every frame of the handshake begins with

epl::RendezvousOptions Natively(const Options& options, int process) {
  epl::RendezvousOptions native;
  native.identity.job = options.job_name;
  native.identity.num_processes = options.processes;
  native.identity.process = process;
  native.identity.mac = MacUnder(options.secret);
  native.hosts = options.hosts;
  native.listen_fd = options.listen_fd;
  native.start_timeout_s = options.start_timeout;
  return native;
}

// Starts worker 1 as `other` says, which must be refused, next to a job that it must not disturb.
std::string RefusedBeside(const Options& options, const Options& other) {
  int channel[2];
  CHECK(pipe(channel) == 0);
  RunProcesses(3, [&](int process) {
    if (process == 2) {
      epl_job* job = nullptr;
      std::string message;
      const double start = Seconds();
      CHECK(TryStart(other, 1, &job, &message) == EPL_FAILED_PRECONDITION);
      CHECK(Seconds() - start < 5);
      CHECK(write(channel[1], message.data(), message.size()) > 0);
      return;
    }
    if (process == 1) Sleep(0.5);  // the other one is there first
    Job job(options, process);
    CHECK(SumOnce(job.Make("world", Even(2, 1)), {process}, "g", 4) == EPL_OK);
  });
  char buffer[4096];
  const ssize_t size = read(channel[0], buffer, sizeof(buffer));
  return std::string(buffer, size);
}

// The addresses of this machine that others can reach, if it has any.
std::vector<std::string> OwnAddresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  CHECK(getifaddrs(&list) == 0);
  for (ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    char host[NI_MAXHOST];
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    CHECK(getnameinfo(each->ifa_addr, sizeof(sockaddr_in), host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0);
    if (strncmp(host, "127.", 4) != 0) addresses.push_back(host);
  }
  freeifaddrs(list);
  return addresses;
}

// Connects once for each of these frames and says it. A full queue of connections makes one take 1, 3, 7, ... s.
void SayToWorker0(const Options& options, const std::vector<std::string>& frames) {
  for (const std::string& frame : frames) {
    int fd = -1;
    CHECK(epl::Connect(options.hosts[0], 60, &fd).ok());
    epl::Connection(fd).Send(frame);
  }
}

Options Secret(int processes) {
  Options options = MakeOptions(processes);
  options.secret = "correct horse";
  options.job_name = "job 7";
  return options;
}

}  // namespace

TEST(a_worker_without_the_secret_is_refused) {
  Options options = Secret(2), other = options;
  other.secret = "";
  CHECK_HAS(RefusedBeside(options, other), "it has no job secret, and worker 0 has one");
}

TEST(a_worker_with_another_secret_is_refused) {
  Options options = Secret(2), other = options;
  other.secret = "battery staple";
  CHECK_HAS(RefusedBeside(options, other), "its job secret is another one than worker 0's");
}

TEST(a_worker_of_an_older_job_is_refused) {
  Options options = Secret(2), other = options;
  other.job_name = "job 6\n";
  CHECK_HAS(RefusedBeside(options, other), "its EPL_JOB_ID is 'job 6?', that of worker 0 'job 7'");
}

TEST(a_worker_0_without_the_secret_is_refused) {
  Options options = Secret(2), server = options;
  server.secret = "";
  server.start_timeout = 1;
  RunProcesses(2, [&](int process) {
    epl_job* job = nullptr;
    std::string message;
    CHECK(TryStart(process == 0 ? server : options, process, &job, &message) != EPL_OK);
    CHECK_HAS(message, "it has a job secret, and worker 0 has none");
  });
}

// One that takes any proof, in order to be taken for worker 0.
TEST(a_worker_0_that_lies_is_refused) {
  Options options = Secret(2);
  std::thread liar([&] {
    epl::Connection connection(accept(options.listen_fd, nullptr, nullptr));
    epl::PrepareSocket(connection.fd());
    epl::Identity identity = Natively(options, 0).identity;
    identity.mac = MacUnder("a guess");
    epl::ServerHandshake server(identity, 1);
    std::string hello, proof;
    while (!connection.Next(&hello)) connection.Receive();
    const std::string challenge = server.Take(hello).text;
    connection.Send(challenge);
    while (!connection.Next(&proof)) connection.Receive();
    CHECK(server.Take(proof).kind == epl::HandshakeStep::kFail);
    connection.Send(epl::Writer().Put(kMagic).Put<uint8_t>(3).PutBytes(proof).bytes());  // its own proof, sent back
    Sleep(0.5);
  });
  epl_job* job = nullptr;
  std::string message;
  CHECK(TryStart(options, 1, &job, &message) == EPL_FAILED_PRECONDITION);
  CHECK_HAS(message, "worker 0 (" + options.hosts[0] + "): it does not know the job secret of this worker");
  liar.join();
}

TEST(strangers_do_not_hold_up_a_job) {
  Options options = Secret(2);
  int started[2];
  CHECK(pipe(started) == 0);
  RunProcesses(3, [&](int process) {
    if (process < 2) {
      if (process == 1) Sleep(1);  // the strangers are there first
      const double start = Seconds();
      Job job(options, process);
      CHECK(Seconds() - start < 8);
      CHECK(SumOnce(job.Make("world", Even(2, 1)), {process}, "g", 4) == EPL_OK);
      CHECK(write(started[1], "x", 1) == 1);
      return;
    }
    std::vector<std::unique_ptr<epl::Connection>> silent;
    for (int i = 0; i < 300; ++i) {
      int fd = -1;
      Sleep(0.002);  // the queue of the system holds 64
      if (!epl::Connect(options.hosts[0], 5, &fd).ok())
        break;  // the job has started, and worker 0 does not listen any more
      silent.emplace_back(new epl::Connection(fd));
      if (i % 3 == 1) silent.back()->Send(std::string(i * 10, 'x'));
      if (i % 3 == 2) CHECK(send(fd, "\x00\x02\x00", 3, MSG_NOSIGNAL) == 3);
    }
    CHECK(silent.size() > 100);
    epl::WaitReadable(started[0], 12);
  });
}

// Many refusals for one reason do not hide another one.
TEST(few_refusals_for_one_reason_are_reported) {
  Options options = Secret(2);
  options.start_timeout = 2;
  RunProcesses(2, [&](int process) {
    epl_job* job = nullptr;
    std::string message;
    if (process == 1) {
      SayToWorker0(options, std::vector<std::string>(100, "hello"));
      Options other = options;
      other.secret = "battery staple";
      CHECK(TryStart(other, 1, &job, &message) == EPL_FAILED_PRECONDITION);
      return;
    }
    const std::string words = CaptureStderr([&] { CHECK(TryStart(options, 0, &job, &message) != EPL_OK); });
    CHECK_HAS(words, "more callers from 127.0.0.1 that are refused for this reason are not reported");
    CHECK_HAS(words, "its job secret is another one than worker 0's");
    CHECK(std::count(words.begin(), words.end(), '\n') == 5);
    CHECK_HAS(message, "its job secret is another one than worker 0's");
  });
}

TEST(few_reasons_of_refusals_are_reported) {
  const Options options = Secret(2);
  RunProcesses(2, [&](int process) {
    const auto join = [&] {
      Job job(options, process);
      CHECK(SumOnce(job.Make("world", Even(2, 1)), {process}, "g", 4) == EPL_OK);
    };
    if (process == 1) {
      std::vector<std::string> hellos;
      for (uint32_t version = 100; version < 300; ++version) {
        hellos.push_back(epl::Writer().Put(kMagic).Put(version).bytes());
      }
      SayToWorker0(options, hellos);
      return join();
    }
    const std::string words = CaptureStderr(join);
    CHECK_HAS(words, "callers from other hosts, or refused for other reasons, are not reported");
    CHECK(std::count(words.begin(), words.end(), '\n') == 100);
  });
}

// It may be a stranger, in a job without a secret, that fills the memory of worker 0.
TEST(a_worker_that_speaks_before_the_start_is_lost) {
  Options options = MakeOptions(3);
  RunProcesses(4, [&](int process) {
    if (process < 3) {
      if (process > 0) Sleep(1.5);  // the other one is there first
      Job job(options, process);
      CHECK(SumOnce(job.Make("world", Even(3, 1)), {process}, "g", 4) == EPL_OK);
      return;
    }
    int fd = -1;
    CHECK(epl::Connect(options.hosts[0], 5, &fd).ok());
    epl::Connection connection(fd);
    const epl::Identity identity = Natively(options, 1).identity;
    epl::ClientHandshake handshake(identity);
    connection.Send(handshake.hello());
    for (std::string frame; !handshake.server_is_proven(); epl::WaitReadable(fd, 1)) {
      CHECK(connection.Receive());
      while (connection.Next(&frame)) {
        const epl::HandshakeStep step = handshake.Take(frame);
        if (step.kind == epl::HandshakeStep::kSend) connection.Send(step.text);
      }
    }
    connection.Send("x");
    for (const double start = Seconds(); connection.Receive(); Sleep(0.01)) CHECK(Seconds() - start < 1);
  });
}

// Mutated words to a real worker 0, which in the end admits whom it waits for.
TEST(mutated_words_to_worker_0) {
  Options options = Secret(2);
  const int callers = quick ? 300 : 3000;
  RunProcesses(
      2,
      [&](int process) {
        if (process == 1) {
          std::mt19937 random(1);
          for (int i = 0; i < callers; ++i) {
            int fd = -1;
            CHECK(epl::Connect(options.hosts[0], 5, &fd).ok());
            epl::Connection connection(fd);
            const epl::Identity identity = Natively(options, 1).identity;
            std::string frame = epl::ClientHandshake(identity).hello();
            const uint64_t size = frame.size();
            frame.insert(0, reinterpret_cast<const char*>(&size), sizeof(size));
            if (i % 3 == 0) frame += frame;  // a hello in place of the proof
            frame[random() % frame.size()] ^= static_cast<char>(1 << random() % 8);
            frame.resize(random() % 4 == 0 ? random() % frame.size() : frame.size());
            ssize_t ignored = send(fd, frame.data(), frame.size(), MSG_NOSIGNAL);
            static_cast<void>(ignored);
          }
        }
        Job job(options, process);
        CHECK(SumOnce(job.Make("world", Even(2, 1)), {process}, "g", 4) == EPL_OK);
      },
      quick ? 60 : 300);
}

TEST(a_worker_that_sends_what_makes_no_sense_ends_the_job_in_good_order) {
  for (const int32_t count : {-1, INT32_MAX, 3}) {
    Options options = Secret(3);
    RunProcesses(3, [&](int process) {
      if (process == 1) {
        epl::Meeting meeting;
        CHECK(epl::Meet(Natively(options, 1), &meeting).ok());
        epl::Connection* connection = meeting.connections[0].get();
        epl::Writer gather;
        gather.Put(epl::Message::kGather).PutBytes("k").Put(count).Put<int32_t>(9).Put<int32_t>(1).Put<int32_t>(0);
        connection->Send(gather.PutBytes("x").bytes());
        while (connection->Receive()) Sleep(0.01);
        return;
      }
      Job job(options, process);
      void* all = nullptr;
      int64_t sizes[3];
      epl_status status;
      CHECK(epl_job_exchange(job.get(), "plan", "x", 1, &all, sizes, &status) == EPL_INTERNAL);
      CHECK_HAS(status.message, "worker 1 (127.0.0.1:1) died or was lost: it sent what makes no sense");
    });
  }
}

TEST(a_worker_0_that_sends_what_makes_no_sense_ends_the_job_in_good_order) {
  for (const int32_t count : {-1, INT32_MAX, 5}) {
    Options options = Secret(2);
    RunProcesses(2, [&](int process) {
      if (process == 0) {
        epl::Meeting meeting;
        CHECK(epl::Meet(Natively(options, 0), &meeting).ok());
        epl::Connection* connection = meeting.connections[1].get();
        connection->Send(epl::Writer().Put(epl::Message::kGathered).PutBytes("exchange/plan#0").Put(count).bytes());
        while (connection->Receive()) Sleep(0.01);
        return;
      }
      Job job(options, process);
      void* all = nullptr;
      int64_t sizes[2];
      epl_status status;
      CHECK(epl_job_exchange(job.get(), "plan", "x", 1, &all, sizes, &status) == EPL_INTERNAL);
      CHECK_HAS(status.message, "worker 0 (" + options.hosts[0] + ") sent what makes no sense");
    });
  }
}

// Worker 1 comes, 2 and 3 do not; another worker 1 looks for a worker 0 whose name nobody knows.
TEST(who_waits_says_every_ten_seconds_for_whom_and_why) {
  Options options = Secret(4);
  options.hosts[2] = "no-such-host.invalid:1";
  options.hosts[3] = "127.0.0.1:9";
  options.start_timeout = 12;
  RunProcesses(4, [&](int process) {
    Options own = options;
    if (process == 2) own.hosts[0] = "no-such-host.invalid:2";
    if (process == 3) own.hosts[0] = "127.0.0.1:9";
    epl_job* job = nullptr;
    std::string message;
    const std::string words =
        CaptureStderr([&] { CHECK(TryStart(own, process == 0 ? 0 : 1, &job, &message) == EPL_DEADLINE_EXCEEDED); });
    const std::string worker0 = "EPL: worker 0 (" + options.hosts[0] +
                                ") has waited 10 s for worker 2 (no-such-host.invalid:1) [cannot resolve "
                                "'no-such-host.invalid:1': ";
    const std::string worker1 = "EPL: worker 1 (127.0.0.1:1) has waited 10 s for worker 0 (" + own.hosts[0] + "): ";
    if (process < 2) {
      CHECK_HAS(words, worker0);
      CHECK_HAS(words, "], worker 3 (127.0.0.1:9)\n");
      CHECK_HAS(message, "; worker 2: cannot resolve");
    } else if (process == 2) {
      CHECK_HAS(words, worker1 + "cannot resolve 'no-such-host.invalid:2': ");
    } else {
      CHECK_HAS(words, worker1 + "cannot connect to 127.0.0.1:9: Connection refused");
    }
  });
}

TEST(ports_are_open_on_the_interface_of_the_address_alone) {
  const auto bound_to = [](const std::string& address, const std::vector<std::string>& hosts) {
    int fd = -1;
    CHECK(epl::Listen(address, hosts, &fd).ok());
    epl::Connection listener(fd);
    sockaddr_storage name = {};
    socklen_t size = sizeof(name);
    CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0);
    char host[256], port[32];
    CHECK(getnameinfo(reinterpret_cast<sockaddr*>(&name), size, host, sizeof(host), port, sizeof(port),
                      NI_NUMERICHOST | NI_NUMERICSERV) == 0);
    return std::string(host);
  };
  CHECK(bound_to("127.0.0.1:0", {"127.0.0.1:0", "127.0.0.1:1"}) == "127.0.0.1");
  const std::string localhost = bound_to("localhost:0", {"localhost:0", "10.0.0.9:1"});
  CHECK(localhost == "127.0.0.1" || localhost == "::1");
  CHECK(bound_to("127.0.0.2:0", {"127.0.0.2:0", "10.0.0.9:1"}) == "127.0.0.2");
  for (const std::string& own : OwnAddresses()) {
    CHECK(bound_to(own + ":0", {own + ":0", "10.0.0.9:1"}) == own);
  }
  // An address that is forwarded to this machine, and a name that only the others know.
  for (const std::string elsewhere : {"198.51.100.7:0", "no-such-host.invalid:0"}) {
    const std::string any = bound_to(elsewhere, {elsewhere, "10.0.0.9:1"});
    CHECK(any == "0.0.0.0" || any == "::");
  }
}

}  // namespace epl_test
