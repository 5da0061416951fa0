// Times of all-reduce (float32, sum) between processes of this machine: medians, and their ratio to what memory allows
// (each process copying as many bytes once). Rounds of all variants are interleaved, so that a noisy machine is noisy
// for all alike.
//
//   test_core bench [--processes 2] [--ranks 1] [--rounds 30] [--transports shm,gloo] [--machines 1]
//
// With --machines the addresses of the processes are of so many machines, which "hierarchical" tells apart.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "tests/check.h"
#include "tests/client.h"

namespace epl_test {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Shape {
  const char* name;
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

}  // namespace
}  // namespace epl_test

int BenchMain(int argc, char** argv) {
  using namespace epl_test;
  int processes = 2, ranks = 1, rounds = 30, machines = 1;
  std::vector<std::string> transports = {"shm", "gloo"};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--processes") == 0) processes = atoi(argv[i + 1]);
    if (strcmp(argv[i], "--ranks") == 0) ranks = atoi(argv[i + 1]);
    if (strcmp(argv[i], "--rounds") == 0) rounds = atoi(argv[i + 1]);
    if (strcmp(argv[i], "--machines") == 0) machines = atoi(argv[i + 1]);
    if (strcmp(argv[i], "--transports") == 0) {
      transports.clear();
      for (char* name = strtok(argv[i + 1], ","); name != nullptr; name = strtok(nullptr, ","))
        transports.push_back(name);
    }
  }
  if (strstr(epl_comm_transports(nullptr), "gloo") == nullptr) {
    transports.erase(std::remove(transports.begin(), transports.end(), "gloo"), transports.end());
  }
  Options options = MakeOptions(processes);
  std::vector<int> hosts;
  for (int process = 0; process < processes; ++process) hosts.push_back(1 + process * machines / processes);
  SetMachines(hosts, &options);
  RunProcesses(
      processes,
      [&](int process) {
        Job job(options, process);
        const std::vector<int> layout = Even(processes, ranks);
        const std::vector<int> own = RanksOf(layout, process);
        std::vector<epl_communicator*> communicators;
        for (const std::string& transport : transports) communicators.push_back(job.Make(transport, layout, transport));
        if (process == 0)
          printf("%d processes x %d ranks, float32 sum, medians in ms (minimum) [times the copy]\n", processes, ranks);
        for (const Shape& shape : Shapes()) {
          std::vector<std::vector<std::vector<float>>> data(own.size());
          int64_t total = 0;
          for (auto& buffers : data) {
            for (int64_t count : shape.counts) buffers.emplace_back(count, 1.0f);
          }
          for (int64_t count : shape.counts) total += count;
          std::vector<float> copy(total);
          std::vector<std::vector<double>> times(transports.size() + 1);
          const int repeat = total < 100000 ? 20 : 1;
          for (int round = 0; round < rounds; ++round) {
            for (size_t i = 0; i < transports.size(); ++i) {
              for (int each = 0; each < repeat; ++each) {
                std::vector<std::unique_ptr<Call>> calls;
                const double start = Seconds();
                for (size_t local = 0; local < own.size(); ++local) {
                  std::unique_ptr<Call> call(new Call);
                  for (auto& buffer : data[local]) {
                    call->inputs.push_back(buffer.data());
                    call->outputs.push_back(buffer.data());
                    call->counts.push_back(buffer.size());
                  }
                  call->key = "bench";
                  call->args.kind = EPL_ALL_REDUCE;
                  call->args.dtype = EPL_FLOAT32;
                  call->args.scale = 1.0 / static_cast<double>(layout.size());
                  call->Submit(communicators[i], own[local]);
                  calls.push_back(std::move(call));
                }
                for (auto& call : calls) CHECK_WORDS(call->Wait(60) == EPL_OK, call->message);
                if (round > 1) times[i].push_back(Seconds() - start);
              }
            }
            // The bound: every process reads and writes these bytes once.
            const double start = Seconds();
            for (int each = 0; each < repeat; ++each) {
              float* to = copy.data();
              for (auto& buffer : data[0]) {
                memcpy(to, buffer.data(), buffer.size() * sizeof(float));
                to += buffer.size();
              }
            }
            if (round > 1) times.back().push_back((Seconds() - start) / repeat);
          }
          if (process != 0) continue;
          const double bound = Median(times.back());
          printf("%-20s copy %8.4f", shape.name, bound * 1e3);
          for (size_t i = 0; i < transports.size(); ++i) {
            printf("   %s %8.4f (%.4f) [%.1f]", transports[i].c_str(), Median(times[i]) * 1e3,
                   *std::min_element(times[i].begin(), times[i].end()) * 1e3, Median(times[i]) / bound);
          }
          printf("\n");
          fflush(stdout);
        }
      },
      600);
  return 0;
}
