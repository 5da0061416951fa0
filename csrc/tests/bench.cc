// Times of collectives of float32 between processes: medians, and their ratio to what memory allows (each process
// copying as many bytes once). Rounds of all variants are interleaved, so that a noisy machine is noisy for all alike.
// A collective takes as long as it does for the slowest process.
//
//   test_core bench [--processes 2] [--ranks 1] [--rounds 30] [--transports shm,gloo] [--kinds all_reduce]
//                   [--bytes 4096,262144] [--machines 1] [--namespaces FILE,FILE] [--seconds]
//
// With --machines the addresses of the processes are of so many machines, which "hierarchical" tells apart. With
// --namespaces each machine is in that network namespace, with the address 10.77.0.1 and so on. --seconds also prints
// the times of all rounds, in lines "seconds KIND BYTES TRANSPORT ...".

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "tests/check.h"
#include "tests/client.h"

namespace epl_test {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Shape {
  std::string name;
  std::vector<int64_t> counts;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{"4 KB", {1 << 10}}, {"256 KB", {64 << 10}}, {"4 MB", {1 << 20}}, {"64 MB", {16 << 20}}};
  // About what a small BERT has: many small tensors, some large ones.
  std::vector<int64_t> bert;
  for (int layer = 0; layer < 12; ++layer) {
    for (int64_t count : {256 * 256, 256 * 256, 256 * 256, 256 * 256, 256 * 1024, 1024 * 256}) bert.push_back(count);
    for (int i = 0; i < 9; ++i) bert.push_back(256);
  }
  bert.push_back(30522 * 256);
  shapes.push_back({"181 tensors, 69 MB", bert});
  return shapes;
}

epl_kind KindOf(const std::string& name) {
  static const std::map<std::string, epl_kind> kinds = {{"all_reduce", EPL_ALL_REDUCE},
                                                        {"reduce_scatter", EPL_REDUCE_SCATTER},
                                                        {"all_gather", EPL_ALL_GATHER},
                                                        {"broadcast", EPL_BROADCAST}};
  CHECK_WORDS(kinds.count(name) == 1, "no kind is named " + name);
  return kinds.at(name);
}

std::vector<std::string> Words(const char* text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

struct Settings {
  int processes = 2, ranks = 1, rounds = 30, machines = 1;
  std::vector<std::string> transports = {"shm", "gloo"}, kinds = {"all_reduce"}, namespaces;
  std::vector<Shape> shapes = Shapes();
  bool seconds = false;
};

Settings ReadSettings(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--seconds") {
      settings.seconds = true;
      continue;
    }
    CHECK_WORDS(i + 1 < argc, name + " has no value");
    const char* value = argv[++i];
    if (name == "--processes") {
      settings.processes = atoi(value);
    } else if (name == "--ranks") {
      settings.ranks = atoi(value);
    } else if (name == "--rounds") {
      settings.rounds = atoi(value);
    } else if (name == "--machines") {
      settings.machines = atoi(value);
    } else if (name == "--transports") {
      settings.transports = Words(value);
    } else if (name == "--kinds") {
      settings.kinds = Words(value);
    } else if (name == "--namespaces") {
      settings.namespaces = Words(value);
      settings.machines = static_cast<int>(settings.namespaces.size());
    } else if (name == "--bytes") {
      settings.shapes.clear();
      for (const std::string& bytes : Words(value)) settings.shapes.push_back({bytes, {atoll(bytes.c_str()) / 4}});
    } else {
      Fail(__FILE__, __LINE__, "no option is named " + name);
    }
  }
  auto& transports = settings.transports;
  if (strstr(epl_comm_transports(nullptr), "gloo") == nullptr) {
    transports.erase(std::remove(transports.begin(), transports.end(), "gloo"), transports.end());
  }
  return settings;
}

Options OptionsOf(const Settings& settings) {
  Options options = MakeOptions(settings.processes);
  std::vector<int> hosts;
  for (int process = 0; process < settings.processes; ++process) {
    hosts.push_back(1 + process * settings.machines / settings.processes);
  }
  SetMachines(hosts, &options);
  if (settings.namespaces.empty()) return options;
  close(options.listen_fd);
  options.listen_fd = -1;
  for (int process = 0; process < settings.processes; ++process) {
    options.hosts[process] = "10.77.0." + std::to_string(hosts[process]) + ":" + std::to_string(7070 + process);
  }
  return options;
}

void EnterNamespace(const std::string& file) {
  const int fd = open(file.c_str(), O_RDONLY);
  CHECK_WORDS(fd >= 0 && setns(fd, CLONE_NEWNET) == 0, "cannot enter the network namespace " + file);
  close(fd);
}

// The collective on this process's ranks, on buffers that it keeps.
class Work {
 public:
  Work(epl_kind kind, const Shape& shape, int size, const std::vector<int>& own) : kind_(kind), own_(own) {
    const int64_t parts = kind == EPL_ALL_GATHER ? size : 1;
    scale_ = 1.0 / size;
    data_.resize(own.size());
    for (auto& buffers : data_) {
      for (int64_t count : shape.counts) buffers.emplace_back(count / parts, 1.0f);
    }
    for (int64_t count : shape.counts) total_ += count;
    copy_.resize(total_);
  }

  int64_t bytes() const { return total_ * static_cast<int64_t>(sizeof(float)); }
  int repeat() const { return total_ < 100000 ? 20 : 1; }

  // Seconds of the slowest process.
  double Do(epl_communicator* communicator) {
    std::vector<std::unique_ptr<Call>> calls;
    const double start = Seconds();
    for (size_t local = 0; local < own_.size(); ++local) {
      std::unique_ptr<Call> call(new Call);
      for (auto& buffer : data_[local]) {
        call->inputs.push_back(buffer.data());
        call->outputs.push_back(buffer.data());
        call->counts.push_back(buffer.size());
      }
      call->key = "bench";
      call->args.kind = kind_;
      call->args.dtype = EPL_FLOAT32;
      call->args.row_elements = 1;
      call->args.scale = scale_;
      call->Submit(communicator, own_[local]);
      calls.push_back(std::move(call));
    }
    for (auto& call : calls) CHECK_WORDS(call->Wait(60) == EPL_OK, call->message);
    return Slowest(communicator, Seconds() - start);
  }

  // The bound: every process reads and writes these bytes once.
  double Copy() {
    const double start = Seconds();
    for (int each = 0; each < repeat(); ++each) {
      float* to = copy_.data();
      for (auto& buffer : data_[0]) {
        memcpy(to, buffer.data(), buffer.size() * sizeof(float));
        to += buffer.size();
      }
    }
    return (Seconds() - start) / repeat();
  }

 private:
  double Slowest(epl_communicator* communicator, double seconds) {
    std::vector<std::vector<float>> values(own_.size(), {static_cast<float>(seconds)});
    std::vector<std::unique_ptr<Call>> calls;
    for (size_t local = 0; local < own_.size(); ++local) {
      calls.push_back(Sum("slowest", &values[local]));
      calls.back()->args.reduce_op = EPL_MAX;
      calls.back()->Submit(communicator, own_[local]);
    }
    for (auto& call : calls) CHECK_WORDS(call->Wait(60) == EPL_OK, call->message);
    return values[0][0];
  }

  const epl_kind kind_;
  const std::vector<int> own_;
  double scale_;
  int64_t total_ = 0;
  std::vector<std::vector<std::vector<float>>> data_;
  std::vector<float> copy_;
};

// Times by transport, then those of the copy.
std::vector<std::vector<double>> Measure(Work* work, const std::vector<epl_communicator*>& communicators, int rounds) {
  std::vector<std::vector<double>> times(communicators.size() + 1);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < communicators.size(); ++i) {
      for (int each = 0; each < work->repeat(); ++each) {
        const double seconds = work->Do(communicators[i]);
        if (round > 1) times[i].push_back(seconds);
      }
    }
    const double seconds = work->Copy();
    if (round > 1) times.back().push_back(seconds);
  }
  return times;
}

void Print(const Settings& settings, const std::string& kind, const Shape& shape, int64_t bytes,
           const std::vector<std::vector<double>>& times) {
  const double bound = Median(times.back());
  printf("%-14s %-20s copy %8.4f", kind.c_str(), shape.name.c_str(), bound * 1e3);
  for (size_t i = 0; i < settings.transports.size(); ++i) {
    printf("   %s %8.4f (%.4f) [%.1f]", settings.transports[i].c_str(), Median(times[i]) * 1e3,
           *std::min_element(times[i].begin(), times[i].end()) * 1e3, Median(times[i]) / bound);
  }
  printf("\n");
  for (size_t i = 0; settings.seconds && i < settings.transports.size(); ++i) {
    printf("seconds %s %lld %s", kind.c_str(), static_cast<long long>(bytes), settings.transports[i].c_str());
    for (double seconds : times[i]) printf(" %.7f", seconds);
    printf("\n");
  }
  fflush(stdout);
}

}  // namespace
}  // namespace epl_test

int BenchMain(int argc, char** argv) {
  using namespace epl_test;
  const Settings settings = ReadSettings(argc, argv);
  const Options options = OptionsOf(settings);
  printf("%d processes x %d ranks, float32, medians in ms (minimum) [times the copy]\n", settings.processes,
         settings.ranks);
  RunProcesses(
      settings.processes,
      [&](int process) {
        if (!settings.namespaces.empty()) {
          EnterNamespace(settings.namespaces[process * settings.machines / settings.processes]);
        }
        Job job(options, process);
        const std::vector<int> layout = Even(settings.processes, settings.ranks);
        std::vector<epl_communicator*> communicators;
        for (const std::string& transport : settings.transports) {
          communicators.push_back(job.Make(transport, layout, transport));
        }
        for (const std::string& name : settings.kinds) {
          for (const Shape& shape : settings.shapes) {
            const epl_kind kind = KindOf(name);
            if (kind != EPL_ALL_REDUCE && kind != EPL_BROADCAST && shape.counts.size() > 1) continue;  // of one tensor
            Work work(kind, shape, static_cast<int>(layout.size()), RanksOf(layout, process));
            const auto times = Measure(&work, communicators, settings.rounds);
            if (process == 0) Print(settings, name, shape, work.bytes(), times);
          }
        }
      },
      600);
  return 0;
}
