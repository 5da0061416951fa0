// The hierarchical transport: what passes between machines, the order of its sums, where it is used, and deaths. That
// its results are right is tested with those of the other transports, in test_kinds.cc.

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "comm/program.h"
#include "comm/reduce.h"
#include "tests/check.h"
#include "tests/client.h"

namespace epl_test {
namespace {

bool HasGloo() { return strstr(epl_comm_transports(nullptr), "gloo") != nullptr; }

// Processes with one rank each, seen from process `self`.
epl::Members MembersOf(int processes, int self) {
  epl::Members members;
  members.rank_process = Even(processes, 1);
  members.self = self;
  for (int process = 0; process < processes; ++process) {
    members.processes.push_back(process);
    members.ranks_of.push_back({process});
  }
  return members;
}

epl::MachineLayout LayoutOf(int machines, int each) {
  epl::MachineLayout layout;
  layout.members.resize(machines);
  for (int member = 0; member < machines * each; ++member) {
    layout.members[member / each].push_back(member);
    layout.machine_of.push_back(member / each);
    layout.place_of.push_back(member % each);
  }
  return layout;
}

// Bytes that a collective of so many floats for each process sends, by pair of machines.
std::map<std::pair<int, int>, int64_t> BytesBetween(epl_kind kind, const epl::MachineLayout& layout, bool hierarchical,
                                                    int64_t floats = 32768) {
  const int size = static_cast<int>(layout.machine_of.size());
  const epl::Members members = MembersOf(size, 0);
  const int64_t count = floats * (kind == EPL_ALL_GATHER ? 1 : size);
  std::vector<int64_t> splits(size, count / size);
  epl::Request request;
  request.args.kind = kind;
  request.args.dtype = EPL_FLOAT32;
  request.args.num_buffers = 1;
  request.args.counts = &count;
  request.args.row_elements = 1;
  request.args.row_splits = splits.data();
  request.args.scale = 1;
  request.args.key = "bytes";
  epl::Op op;
  op.requests = {&request};
  auto program = epl::MakeProgram(op, members, 64 * size * 512, hierarchical ? &layout : nullptr);
  const std::vector<int64_t> rows = kind == EPL_ALL_GATHER ? std::vector<int64_t>{count} : splits;
  epl::Announcement announcement;
  announcement.rows = rows;
  program->SetRows(std::vector<epl::Announcement>(size, announcement));
  std::map<std::pair<int, int>, int64_t> bytes;
  for (int64_t step = 0; step < program->steps(); ++step) {
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        const std::pair<int, int> pair(layout.machine_of[from], layout.machine_of[to]);
        if (pair.first == pair.second) continue;
        const epl::Block block = program->Sent(step, from, to);
        CHECK(block.offset >= 0 && block.size >= 0 && block.offset + block.size <= 64 * size * 512);
        bytes[pair] += block.size;
      }
    }
  }
  return bytes;
}

void CheckBytes(epl_kind kind) {
  for (int machines : {2, 3, 4}) {
    for (int each : {2, 3, 4}) {
      const epl::MachineLayout layout = LayoutOf(machines, each);
      auto flat = BytesBetween(kind, layout, false), hierarchical = BytesBetween(kind, layout, true);
      CHECK(hierarchical.size() == static_cast<size_t>(machines * (machines - 1)));
      for (const auto& entry : hierarchical) {
        // The last pieces are shorter, not alike in both.
        const int64_t one = entry.second * each, other = flat[entry.first];
        CHECK_WORDS(std::abs(one - other) * 200 <= other,
                    "kind " + std::to_string(kind) + ", " + std::to_string(machines) + " machines of " +
                        std::to_string(each) + ": " + std::to_string(entry.second) + " bytes, flat " +
                        std::to_string(flat[entry.first]));
      }
    }
  }
}

}  // namespace

TEST(hierarchical_bytes_all_reduce) { CheckBytes(EPL_ALL_REDUCE); }
TEST(hierarchical_bytes_reduce) { CheckBytes(EPL_REDUCE); }
TEST(hierarchical_bytes_broadcast) { CheckBytes(EPL_BROADCAST); }
TEST(hierarchical_is_flat_for_a_small_broadcast) {
  const epl::MachineLayout layout = LayoutOf(2, 2);
  CHECK(BytesBetween(EPL_BROADCAST, layout, true, 256) == BytesBetween(EPL_BROADCAST, layout, false, 256));
  CHECK(BytesBetween(EPL_BROADCAST, layout, true, 512) != BytesBetween(EPL_BROADCAST, layout, false, 512));
}
TEST(hierarchical_bytes_all_gather) { CheckBytes(EPL_ALL_GATHER); }
TEST(hierarchical_bytes_reduce_scatter) { CheckBytes(EPL_REDUCE_SCATTER); }

// The ranks of a machine in their order, then the machines: on every rank, for any size, also if ranks alternate.
TEST(hierarchical_sums_by_machine) {
  if (!HasGloo()) return;
  for (int machines : {2, 3}) {
    const int size = 2 * machines;
    Options options = MakeOptions(size);
    std::vector<int> hosts;
    for (int process = 0; process < size; ++process) hosts.push_back(process % machines + 1);
    SetMachines(hosts, &options);
    RunProcesses(size, [&](int process) {
      Job job(options, process);
      epl_communicator* communicator = job.Make("world", Even(size, 1), "hierarchical");
      CHECK(std::string("hierarchical") == epl_communicator_transport(communicator));
      for (int64_t count : {5, 12345, 400000}) {
        std::vector<std::vector<float>> all;
        for (int rank = 0; rank < size; ++rank) {
          std::mt19937 random(rank);
          std::uniform_real_distribution<float> uniform(-1, 1);
          all.emplace_back();
          for (int64_t i = 0; i < count; ++i) all.back().push_back(uniform(random));
        }
        std::vector<float> expected(count);
        for (int64_t i = 0; i < count; ++i) {
          for (int machine = 0; machine < machines; ++machine) {
            const float here = all[machine][i] + all[machine + machines][i];
            expected[i] = machine == 0 ? here : expected[i] + here;
          }
        }
        std::vector<float> data = all[process];
        auto call = Sum("order", &data);
        call->Submit(communicator, process);
        CHECK_WORDS(call->Wait() == EPL_OK, call->message);
        CHECK(memcmp(data.data(), expected.data(), count * sizeof(float)) == 0);
      }
    });
  }
}

TEST(hierarchical_is_auto_elsewhere) {
  for (const std::vector<int>& hosts : {std::vector<int>{1, 1}, {1, 2}, {1, 1, 2}}) {
    const int size = static_cast<int>(hosts.size());
    Options options = MakeOptions(size);
    SetMachines(hosts, &options);
    RunProcesses(size, [&](int process) {
      Job job(options, process);
      epl_communicator* communicator = job.Make("world", Even(size, 1), "hierarchical");
      CHECK(std::string("shm") == epl_communicator_transport(communicator));
      CHECK(SumOnce(communicator, {process}, "sum", 1000) == EPL_OK);
    });
  }
}

TEST(hierarchical_on_one_worker_alone) {
  Options options = MakeOptions(4);
  SetMachines({1, 1, 2, 2}, &options);
  RunProcesses(4, [&](int process) {
    Job job(options, process);
    std::string message;
    CHECK(job.TryMake("world", Even(4, 1), process == 3 ? "hierarchical" : "auto", &message) == EPL_INVALID_ARGUMENT);
    CHECK_HAS(message, "makes it with transport auto");
    CHECK_HAS(message, "worker 3 (127.0.0.2:3) with hierarchical");
  });
}

TEST(hierarchical_death) {
  if (!HasGloo()) return;
  for (int dying : {1, 2}) {  // next to process 0, and on the other machine
    Options options = MakeOptions(4);
    SetMachines({1, 1, 2, 2}, &options);
    std::vector<int> signals(4);
    signals[dying] = SIGKILL;
    RunProcesses(
        4,
        [&](int process) {
          Job job(options, process);
          epl_communicator* communicator = job.Make("world", Even(4, 1), "hierarchical");
          std::thread killer;
          if (process == dying) {
            killer = std::thread([] {
              Sleep(0.3);
              kill(getpid(), SIGKILL);
            });
          }
          std::string message;
          int code = EPL_OK;
          while (code == EPL_OK) code = SumOnce(communicator, {process}, "g", 1000000, &message);
          CHECK(code == EPL_INTERNAL);
          CHECK_HAS(message, "worker " + std::to_string(dying) + " (" + options.hosts[dying] + ")");
          CHECK_HAS(message, "died");
        },
        40, signals);
  }
}

}  // namespace epl_test
