// Every kind, dtype and reduction over every transport, against a plain reference computed by each process for all
// ranks.

#include <math.h>
#include <string.h>

#include <algorithm>
#include <random>

#include "comm/reduce.h"
#include "tests/check.h"
#include "tests/client.h"
#include "tests/gpu/stand_in.h"

namespace epl_test {
namespace {

using Bytes = std::vector<uint8_t>;

const epl_dtype kTypes[] = {EPL_UINT8,   EPL_INT8,    EPL_INT32,   EPL_INT64,
                            EPL_FLOAT16, EPL_FLOAT32, EPL_FLOAT64, EPL_BFLOAT16};

// Numbers whose sums and products over a dozen ranks are exact in float16, so that the order does not matter.
double Value(int rank, int64_t i, int seed, epl_reduce_op op) {
  uint32_t hash = static_cast<uint32_t>(i * 2654435761u + rank * 40503u + seed * 9973u);
  hash = (hash ^ (hash >> 13)) * 1274126177u;
  int small = (hash >> 16) % 4;
  return op == EPL_PROD ? small % 2 + 1 : small * (op == EPL_SUM ? 1 : 3);
}

void Store(epl_dtype dtype, double value, uint8_t* to) {
  switch (dtype) {
    case EPL_UINT8:
      *to = static_cast<uint8_t>(value);
      break;
    case EPL_INT8:
      *reinterpret_cast<int8_t*>(to) = static_cast<int8_t>(value);
      break;
    case EPL_INT32: {
      int32_t x = static_cast<int32_t>(value);
      memcpy(to, &x, sizeof(x));
      break;
    }
    case EPL_INT64: {
      int64_t x = static_cast<int64_t>(value);
      memcpy(to, &x, sizeof(x));
      break;
    }
    case EPL_FLOAT16: {  // all test values are exact
      uint16_t bits = 0;
      if (value != 0) {
        int exponent;
        double fraction = frexp(fabs(value), &exponent);
        bits = static_cast<uint16_t>((exponent + 14) << 10 | (static_cast<int>(fraction * 2048) & 0x3ff));
        if (value < 0) bits |= 0x8000;
      }
      memcpy(to, &bits, sizeof(bits));
      break;
    }
    case EPL_FLOAT32: {
      float x = static_cast<float>(value);
      memcpy(to, &x, sizeof(x));
      break;
    }
    case EPL_FLOAT64:
      memcpy(to, &value, sizeof(value));
      break;
    case EPL_BFLOAT16: {  // all test values are exact
      float x = static_cast<float>(value);
      memcpy(to, reinterpret_cast<const uint8_t*>(&x) + 2, 2);
      break;
    }
  }
}

struct Case {
  std::vector<int> rank_process;
  int process;
  epl_communicator* communicator;
  epl_kind kind;
  epl_dtype dtype;
  epl_reduce_op op;
  std::vector<int64_t> counts;  // of the fused buffers; for rows: counts[0] = mean rows
  int64_t row_elements = 1;
  int root = 0;
  bool in_place = false;
  bool scaled = false;
  int seed = 0;
  std::vector<epl::gpu::Stream> streams;  // on GPUs: by local rank

  void UseStream(size_t local, Call* call) const {
    if (streams.empty()) return;
    gpu_stand_in::UseGpu(static_cast<int>(local));
    call->args.stream = streams[local];
  }
  int size() const { return static_cast<int>(rank_process.size()); }
  int64_t element() const { return epl::SizeOf(dtype); }
  double Scale(int rank) const { return scaled ? (rank % 2 == 0 ? 2 : 0.5) : 1; }
  double Scaling(int rank) const { return epl::IsFloating(dtype) ? Scale(rank) : 1; }
  // Rows that a rank has, or sends to another.
  int64_t Rows(int rank) const {
    return kind == EPL_ALL_GATHER ? std::max<int64_t>(0, counts[0] + (rank * 7 + seed) % 5 - 2) : counts[0];
  }
  int64_t Split(int rank, int to) const {
    return std::max<int64_t>(0, counts[0] / size() + (rank * 3 + to * 5 + seed) % 4 - 1);
  }
  double At(int rank, int64_t i) const { return Value(rank, i, seed, op); }
  double Reduced(int64_t i) const {
    double result = 0;
    for (int rank = 0; rank < size(); ++rank) {
      double value = At(rank, i) * Scaling(rank);
      if (rank == 0)
        result = value;
      else if (op == EPL_SUM)
        result += value;
      else if (op == EPL_PROD)
        result *= value;
      else if (op == EPL_MIN)
        result = std::min(result, value);
      else
        result = std::max(result, value);
    }
    return result;
  }
  std::string Name() const {
    return "kind " + std::to_string(kind) + " dtype " + std::to_string(dtype) + " op " + std::to_string(op) +
           " count " + std::to_string(counts.empty() ? -1 : counts[0]) + " buffers " + std::to_string(counts.size()) +
           " root " + std::to_string(root) + " row " + std::to_string(row_elements) + (in_place ? " in place" : "");
  }
};

void CheckEqual(const Case& it, int rank, const uint8_t* got, int64_t count,
                const std::function<double(int64_t)>& value) {
  Bytes expected(it.element());
  for (int64_t i = 0; i < count; ++i) {
    Store(it.dtype, value(i), expected.data());
    if (memcmp(expected.data(), got + i * it.element(), it.element()) != 0) {
      Fail(__FILE__, __LINE__,
           it.Name() + ": rank " + std::to_string(rank) + " element " + std::to_string(i) + " of " +
               std::to_string(count) + " is wrong");
    }
  }
}

// Fused kinds: element i of buffer b is number offset(b) + i.
void RunFused(const Case& it) {
  std::vector<int> ranks = RanksOf(it.rank_process, it.process);
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::vector<Bytes>> inputs(ranks.size()), outputs(ranks.size());
  for (size_t local = 0; local < ranks.size(); ++local) {
    std::unique_ptr<Call> call(new Call);
    int64_t number = 0;
    for (int64_t count : it.counts) {
      Bytes input(count * it.element() + 1), output(count * it.element() + 1, 0xcd);
      for (int64_t i = 0; i < count; ++i) Store(it.dtype, it.At(ranks[local], number + i), &input[i * it.element()]);
      number += count;
      inputs[local].push_back(std::move(input));
      outputs[local].push_back(std::move(output));
    }
    for (size_t b = 0; b < it.counts.size(); ++b) {
      call->inputs.push_back(inputs[local][b].data());
      call->outputs.push_back(it.in_place ? inputs[local][b].data() : outputs[local][b].data());
    }
    call->counts = it.counts;
    call->key = "fused/" + it.Name();
    call->args.kind = it.kind;
    call->args.dtype = it.dtype;
    call->args.reduce_op = it.op;
    call->args.root = it.root;
    call->args.scale = it.Scale(ranks[local]);
    it.UseStream(local, call.get());
    call->Submit(it.communicator, ranks[local]);
    calls.push_back(std::move(call));
  }
  for (size_t local = 0; local < ranks.size(); ++local) {
    CHECK_WORDS(calls[local]->Wait() == EPL_OK, calls[local]->message);
    int64_t number = 0;
    for (size_t b = 0; b < it.counts.size(); ++b) {
      const uint8_t* got = static_cast<const uint8_t*>(calls[local]->outputs[b]);
      const int64_t begin = number;
      if (it.kind == EPL_REDUCE && ranks[local] != it.root) {
        // Left as it was.
        if (it.in_place) {
          CheckEqual(it, ranks[local], got, it.counts[b], [&](int64_t i) { return it.At(ranks[local], begin + i); });
        } else {
          for (int64_t i = 0; i < it.counts[b] * it.element(); ++i) CHECK(got[i] == 0xcd);
        }
      } else {
        CheckEqual(it, ranks[local], got, it.counts[b], [&](int64_t i) {
          return it.kind == EPL_BROADCAST ? it.At(it.root, begin + i) : it.Reduced(begin + i);
        });
      }
      number += it.counts[b];
    }
  }
}

void RunRows(const Case& it) {
  std::vector<int> ranks = RanksOf(it.rank_process, it.process);
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<Bytes> inputs(ranks.size());
  const int64_t row = it.row_elements;
  auto rows_of = [&](int rank) {
    if (it.kind != EPL_ALL_TO_ALL) return it.Rows(rank);
    int64_t sum = 0;
    for (int to = 0; to < it.size(); ++to) sum += it.Split(rank, to);
    return sum;
  };
  for (size_t local = 0; local < ranks.size(); ++local) {
    const int rank = ranks[local];
    std::unique_ptr<Call> call(new Call);
    const int64_t count = rows_of(rank) * row;
    inputs[local].resize(count * it.element() + 1);
    for (int64_t i = 0; i < count; ++i) Store(it.dtype, it.At(rank, i), &inputs[local][i * it.element()]);
    call->inputs = {inputs[local].data()};
    call->counts = {count};
    if (it.kind == EPL_ALL_TO_ALL) {
      for (int to = 0; to < it.size(); ++to) call->splits.push_back(it.Split(rank, to));
    }
    call->element_size = static_cast<int>(it.element());
    call->key = "rows/" + it.Name();
    call->args.kind = it.kind;
    call->args.dtype = it.dtype;
    call->args.reduce_op = it.op;
    call->args.row_elements = row;
    call->args.scale = it.Scale(rank);
    it.UseStream(local, call.get());
    call->Submit(it.communicator, rank);
    calls.push_back(std::move(call));
  }
  for (size_t local = 0; local < ranks.size(); ++local) {
    const int rank = ranks[local];
    CHECK_WORDS(calls[local]->Wait() == EPL_OK, calls[local]->message);
    const uint8_t* got = calls[local]->allocated.data();
    const std::vector<int64_t>& rows = calls[local]->rows;
    if (it.kind == EPL_REDUCE_SCATTER) {
      CHECK(rows.size() == 1);
      int64_t total = it.counts[0], size = it.size();
      int64_t begin = 0;
      for (int r = 0; r < rank; ++r) begin += total / size + (r < total % size);
      CHECK(rows[0] == total / size + (rank < total % size));
      CheckEqual(it, rank, got, rows[0] * row, [&](int64_t i) { return it.Reduced(begin * row + i); });
      continue;
    }
    CHECK(static_cast<int>(rows.size()) == it.size());
    for (int source = 0; source < it.size(); ++source) {
      int64_t begin = 0;
      if (it.kind == EPL_ALL_GATHER) {
        CHECK(rows[source] == it.Rows(source));
      } else {
        CHECK(rows[source] == it.Split(source, rank));
        for (int to = 0; to < rank; ++to) begin += it.Split(source, to);
      }
      CheckEqual(it, rank, got, rows[source] * row, [&](int64_t i) { return it.At(source, begin * row + i); });
      got += rows[source] * row * it.element();
    }
  }
}

void RunAll(epl_communicator* communicator, const std::vector<int>& rank_process, int process,
            const std::vector<epl::gpu::Stream>& streams = {}) {
  Case it;
  it.rank_process = rank_process;
  it.process = process;
  it.communicator = communicator;
  it.streams = streams;
  std::vector<std::vector<int64_t>> shapes = {{1}, {0}, {}, {37, 0, 5, 1}, {70001}};
  if (!quick) shapes.push_back({300007, 3, 100000});
  if (!streams.empty()) shapes.push_back({5, 300007, 7});  // small ones next to a large one
  std::vector<int64_t> rows = {0, 1, 9, 5000};
  const std::vector<int64_t> few = rows;
  rows.push_back(70000);  // several slots full
  for (epl_dtype dtype : kTypes) {
    it.dtype = dtype;
    for (const std::vector<int64_t>& shape : shapes) {
      it.counts = shape;
      for (int op = 0; op < 4; ++op) {
        if (op != EPL_SUM && shape.size() != 4 && shape != std::vector<int64_t>{70001}) continue;
        it.op = static_cast<epl_reduce_op>(op);
        it.seed++;
        it.kind = EPL_ALL_REDUCE;
        it.in_place = it.seed % 2 == 0;
        // On GPUs only sums are scaled.
        it.scaled = it.seed % 3 == 0 && (streams.empty() || op == EPL_SUM);
        RunFused(it);
        it.kind = EPL_REDUCE;
        it.root = it.seed % it.size();
        RunFused(it);
      }
      it.op = EPL_SUM;
      it.scaled = false;
      it.kind = EPL_BROADCAST;
      RunFused(it);
    }
    it.in_place = false;
    for (int64_t count : quick&& dtype != EPL_FLOAT32 ? few : rows) {
      it.counts = {count};
      for (int64_t row : {1, 3}) {
        it.row_elements = row;
        it.seed++;
        it.kind = EPL_ALL_GATHER;
        RunRows(it);
        it.kind = EPL_REDUCE_SCATTER;
        it.scaled = it.seed % 2 == 0;
        RunRows(it);
        it.scaled = false;
        it.kind = EPL_ALL_TO_ALL;
        RunRows(it);
      }
    }
  }
}

// `hosts`: by process, the last number of its address 127.0.0.x; each is a machine.
void RunTransport(const std::string& transport, const std::vector<int>& rank_process, int processes,
                  const std::vector<int>& hosts = {}) {
  Options options = MakeOptions(processes);
  SetMachines(hosts, &options);
  RunProcesses(
      processes,
      [&](int process) {
        Job job(options, process);
        epl_communicator* communicator = job.Make("world", rank_process, transport);
        if (transport != "auto") CHECK(transport == epl_communicator_transport(communicator));
        RunAll(communicator, rank_process, process);
      },
      300);
}

// Each rank has a GPU of its own; those of a process are numbered from 0.
void RunOnGpus(const std::vector<int>& rank_process, int processes) {
  Options options = MakeOptions(processes);
  RunProcesses(
      processes,
      [&](int process) {
        const int ranks = static_cast<int>(RanksOf(rank_process, process).size());
        {
          Job job(options, process);
          epl_communicator* communicator = job.Make("world", rank_process, "nccl");
          CHECK(std::string("nccl") == epl_communicator_transport(communicator));
          std::vector<epl::gpu::Stream> streams;
          for (int rank = 0; rank < ranks; ++rank) {
            gpu_stand_in::UseGpu(rank);
            streams.push_back(gpu_stand_in::MakeStream());
          }
          RunAll(communicator, rank_process, process, streams);
        }
        // The streams of the ranks are the test's own.
        CHECK_WORDS(gpu_stand_in::Leaks() == std::to_string(ranks) + " streams", gpu_stand_in::Leaks());
      },
      300);
}

bool HasGloo() { return strstr(epl_comm_transports(nullptr), "gloo") != nullptr; }

}  // namespace

TEST(kinds_local_1) { RunTransport("local", Even(1, 1), 1); }
TEST(kinds_local_2) { RunTransport("local", Even(1, 2), 1); }
TEST(kinds_local_3) { RunTransport("local", Even(1, 3), 1); }
TEST(kinds_gpu_1) { RunOnGpus(Even(1, 1), 1); }
TEST(kinds_gpu_2) { RunOnGpus(Even(1, 2), 1); }
TEST(kinds_gpu_3) { RunOnGpus(Even(1, 3), 1); }
TEST(kinds_gpu_2x1) { RunOnGpus(Even(2, 1), 2); }
TEST(kinds_gpu_uneven_interleaved) { RunOnGpus({1, 0, 2, 1, 0, 1}, 3); }
TEST(kinds_shm_2x1) { RunTransport("shm", Even(2, 1), 2); }
TEST(kinds_shm_2x2) { RunTransport("shm", Even(2, 2), 2); }
TEST(kinds_shm_3x1) { RunTransport("shm", Even(3, 1), 3); }
TEST(kinds_shm_3x3) { RunTransport("shm", Even(3, 3), 3); }
TEST(kinds_shm_4x1) { RunTransport("shm", Even(4, 1), 4); }
TEST(kinds_shm_uneven_interleaved) { RunTransport("shm", {1, 0, 2, 1, 0, 1}, 3); }
TEST(kinds_gloo_2x1) {
  if (HasGloo()) RunTransport("gloo", Even(2, 1), 2);
}
TEST(kinds_gloo_2x3) {
  if (HasGloo()) RunTransport("gloo", Even(2, 3), 2);
}
TEST(kinds_gloo_3x2) {
  if (HasGloo()) RunTransport("gloo", {1, 0, 2, 1, 0, 1}, 3);
}
TEST(kinds_gloo_4x1) {
  if (HasGloo()) RunTransport("gloo", Even(4, 1), 4);
}

TEST(kinds_hierarchical_2_machines_x2) {
  if (HasGloo()) RunTransport("hierarchical", Even(4, 1), 4, {1, 1, 2, 2});
}
TEST(kinds_hierarchical_2_machines_interleaved) {
  if (HasGloo()) RunTransport("hierarchical", {2, 0, 3, 1, 0, 3, 1, 2, 0}, 4, {1, 2, 2, 1});
}
TEST(kinds_hierarchical_3_machines_x2) {
  if (HasGloo()) RunTransport("hierarchical", Even(6, 1), 6, {1, 1, 2, 2, 3, 3});
}
TEST(kinds_hierarchical_2_machines_x3) {
  if (HasGloo()) RunTransport("hierarchical", Even(6, 1), 6, {1, 1, 1, 2, 2, 2});
}

// float32 sums are added up in the order of the ranks, whatever the transport and the chunks, and equal on all ranks.
TEST(sum_in_rank_order) {
  std::vector<std::string> transports = {"shm"};
  if (HasGloo()) transports.push_back("gloo");
  for (const std::string& transport : transports) {
    for (int processes : {2, 3}) {
      Options options = MakeOptions(processes);
      RunProcesses(processes, [&](int process) {
        Job job(options, process);
        epl_communicator* communicator = job.Make("world", Even(processes, 1), transport);
        for (int64_t count : {5, 12345, 400000}) {
          std::vector<std::vector<float>> all;
          for (int rank = 0; rank < processes; ++rank) {
            std::mt19937 random(rank);
            std::uniform_real_distribution<float> uniform(-1, 1);
            all.emplace_back();
            for (int64_t i = 0; i < count; ++i) all.back().push_back(uniform(random));
          }
          std::vector<float> expected = all[0];
          for (int rank = 1; rank < processes; ++rank) {
            for (int64_t i = 0; i < count; ++i) expected[i] += all[rank][i];
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
}

namespace {

uint16_t Brain(float value) {  // exact values only
  uint16_t bits;
  memcpy(&bits, reinterpret_cast<const uint8_t*>(&value) + 2, sizeof(bits));
  return bits;
}

// The sum of bfloat16 numbers, in the wide and in the portable loop.
void CheckSum(const std::vector<uint16_t>& terms, uint16_t expected, const std::vector<double>& scales = {}) {
  for (auto reduce : {epl::Reduce, epl::ReducePortable}) {
    std::vector<std::vector<uint16_t>> rows;
    std::vector<const void*> sources;
    for (uint16_t term : terms) rows.emplace_back(37, term);
    for (const auto& row : rows) sources.push_back(row.data());
    std::vector<uint16_t> result(37);
    reduce(EPL_BFLOAT16, EPL_SUM, result.data(), sources.data(), scales.empty() ? nullptr : scales.data(),
           static_cast<int>(terms.size()), 37);
    for (uint16_t bits : result) CHECK_WORDS(bits == expected, std::to_string(bits));
  }
}

}  // namespace

TEST(bfloat16_is_rounded_once) {
  CheckSum({Brain(256), Brain(1), Brain(1)}, Brain(258));  // 257 alone would become 256
  CheckSum({Brain(256), Brain(1)}, Brain(256));            // a tie goes to the even one,
  CheckSum({Brain(258), Brain(1)}, Brain(260));            // upwards as well
  CheckSum({Brain(1), Brain(1)}, Brain(768), {256, 512});  // a factor is no bfloat16
  CheckSum({0x7f7f, 0x7f7f}, 0x7f80);                      // too large: infinity
  CheckSum({0x7f80, 0xff80}, 0xffc0);                      // and what is no number stays none
  CheckSum({0x7f81, Brain(1)}, 0x7fc1);
}

// A rank that cannot allocate its output fails alone; the others get theirs.
TEST(allocation_refused) {
  Options options = MakeOptions(2);
  RunProcesses(2, [&](int process) {
    Job job(options, process);
    epl_communicator* communicator = job.Make("world", Even(2, 1));
    float data[4] = {1, 2, 3, 4};
    for (int round = 0; round < 2; ++round) {
      Call call;
      call.key = "gather";
      call.inputs = {data};
      call.counts = {4};
      call.args.kind = EPL_ALL_GATHER;
      call.args.dtype = EPL_FLOAT32;
      call.args.row_elements = 2;
      call.args.scale = 1;
      call.refuse_allocation = round == 0 && process == 1;
      call.Submit(communicator, process);
      int code = call.Wait();
      if (call.refuse_allocation) {
        CHECK(code == EPL_INTERNAL);
        CHECK_HAS(call.message, "no memory");
      } else {
        CHECK_WORDS(code == EPL_OK, call.message);
        CHECK(call.rows == std::vector<int64_t>({2, 2}));
      }
    }
  });
}

}  // namespace epl_test
