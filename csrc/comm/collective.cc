// Validation and comparison of collectives.

#include "comm/collective.h"

#include <stdint.h>

#include <algorithm>

#include "comm/reduce.h"
#include "comm/wire.h"

namespace epl {
namespace {

bool ReducesData(int kind) { return kind == EPL_ALL_REDUCE || kind == EPL_REDUCE || kind == EPL_REDUCE_SCATTER; }
bool HasRoot(int kind) { return kind == EPL_REDUCE || kind == EPL_BROADCAST; }
bool MovesRows(int kind) { return kind == EPL_ALL_GATHER || kind == EPL_REDUCE_SCATTER || kind == EPL_ALL_TO_ALL; }
// More than any output has, and few enough to count bytes in 64 bits.
constexpr int64_t kMostElements = int64_t{1} << 58;
// Row counts may differ between the ranks.
bool Uneven(int kind) { return kind == EPL_ALL_GATHER || kind == EPL_ALL_TO_ALL; }

const char* NameOfReduceOp(int op) {
  static const char* const names[] = {"sum", "prod", "min", "max"};
  return op >= 0 && op < 4 ? names[op] : "unknown";
}

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccd;
}

std::string Shorten(const std::string& text, size_t size) {
  return text.size() <= size ? text : text.substr(0, size - 3) + "...";
}

int64_t RowsOf(const epl_collective& args) {
  if (args.row_elements > 0) return args.counts[0] / args.row_elements;
  return args.kind == EPL_ALL_GATHER && args.row_splits != nullptr ? args.row_splits[0] : 0;
}

Status Damaged() { return Status(EPL_INTERNAL, "the description of a collective arrived damaged"); }

// Whether a member announces as many row counts as its ranks have, and none that could not lie in memory.
bool RowsFit(const Announcement& it, const Members& members, int member) {
  const size_t ranks = members.ranks_of[member].size();
  const size_t expected = it.kind == EPL_ALL_GATHER ? ranks : it.kind == EPL_ALL_TO_ALL ? ranks * members.size() : 0;
  if (it.rows.size() != expected || it.row_elements < 0) return false;
  const int64_t most = kMostElements / std::max<int64_t>(1, it.row_elements) / members.size();
  return std::all_of(it.rows.begin(), it.rows.end(), [most](int64_t rows) { return rows >= 0 && rows <= most; });
}

// The description of one rank's submission, without rows.
Announcement Describe(const Request& request) {
  const epl_collective& args = request.args;
  Announcement it;
  it.rank = request.rank;
  it.key = args.key;
  it.kind = args.kind;
  it.dtype = args.dtype;
  it.reduce_op = ReducesData(args.kind) ? args.reduce_op : 0;
  it.root = HasRoot(args.kind) ? args.root : 0;
  it.row_elements = MovesRows(args.kind) ? args.row_elements : 0;
  it.num_buffers = args.num_buffers;
  if (!Uneven(args.kind)) {
    for (int i = 0; i < args.num_buffers; ++i) {
      it.total += args.counts[i];
      it.fingerprint = Mix(it.fingerprint, args.counts[i]);
      if (i < Announcement::kMaxCounts) it.counts.push_back(args.counts[i]);
    }
  }
  return it;
}

// "rank 0 has float32[40] for 'grads/0', rank 2 has float32[30]"; empty if they mean the same.
std::string Difference(const Announcement& a, const Announcement& b) {
  auto words = [&](const std::string& of_a, const std::string& of_b) {
    return Format("rank %d has %s for '%s', rank %d has %s", a.rank, of_a.c_str(), Shorten(a.key, 400).c_str(), b.rank,
                  of_b.c_str());
  };
  auto kind = [](const Announcement& it) { return NameOf(static_cast<epl_kind>(it.kind)); };
  auto dtype = [](const Announcement& it) { return NameOf(static_cast<epl_dtype>(it.dtype)); };
  if (a.key != b.key) {
    return Format(
        "rank %d is at '%s' (%s), rank %d is at '%s' (%s): every rank must do the same collectives in the same "
        "order",
        a.rank, Shorten(a.key, 400).c_str(), kind(a), b.rank, Shorten(b.key, 400).c_str(), kind(b));
  }
  if (a.kind != b.kind) return words(kind(a), kind(b));
  if (a.num_buffers != b.num_buffers) {
    return words(Format("%d buffers", a.num_buffers), Format("%d", b.num_buffers));
  }
  if (a.dtype != b.dtype || a.fingerprint != b.fingerprint) {
    for (size_t i = 0; i < a.counts.size() && i < b.counts.size(); ++i) {
      if (a.counts[i] == b.counts[i] && a.dtype == b.dtype) continue;
      std::string text = words(Format("%s[%lld]", dtype(a), static_cast<long long>(a.counts[i])),
                               Format("%s[%lld]", dtype(b), static_cast<long long>(b.counts[i])));
      return a.num_buffers == 1 ? text : text + Format(" (buffer %d of %d)", static_cast<int>(i), a.num_buffers);
    }
    if (a.dtype != b.dtype) return words(dtype(a), dtype(b));
    return words(Format("%lld elements in %d buffers", static_cast<long long>(a.total), a.num_buffers),
                 Format("%lld, differing after the first %d buffers", static_cast<long long>(b.total),
                        Announcement::kMaxCounts));
  }
  if (a.reduce_op != b.reduce_op) {
    return words(Format("reduction %s", NameOfReduceOp(a.reduce_op)),
                 Format("reduction %s", NameOfReduceOp(b.reduce_op)));
  }
  if (a.root != b.root) return words(Format("root %d", a.root), Format("root %d", b.root));
  if (a.row_elements != b.row_elements) {
    return words(Format("rows of %lld elements", static_cast<long long>(a.row_elements)),
                 Format("rows of %lld", static_cast<long long>(b.row_elements)));
  }
  return "";
}

}  // namespace

const char* NameOf(epl_kind kind) {
  static const char* const names[] = {"all_reduce", "reduce",         "broadcast",
                                      "all_gather", "reduce_scatter", "all_to_all"};
  return kind >= 0 && kind < 6 ? names[kind] : "unknown";
}

const char* NameOf(epl_dtype dtype) {
  static const char* const names[] = {"uint8", "int8", "int32", "int64", "float16", "float32", "float64"};
  return dtype >= 0 && dtype < 7 ? names[dtype] : "unknown";
}

std::string Label(const epl_collective& args) {
  return Format("'%s' (%s)", args.key == nullptr ? "" : args.key, NameOf(args.kind));
}

int Members::member_of(int rank) const {
  return static_cast<int>(std::find(processes.begin(), processes.end(), rank_process[rank]) - processes.begin());
}

Status Request::Check(const Members& members) const {
  auto wrong = [&](const std::string& text) {
    return Status(EPL_INVALID_ARGUMENT, Format("rank %d, %s: %s", rank, Label(args).c_str(), text.c_str()));
  };
  if (args.key == nullptr) return wrong("the key is NULL");
  if (args.kind < EPL_ALL_REDUCE || args.kind > EPL_ALL_TO_ALL)
    return wrong(Format("no kind has number %d", args.kind));
  if (SizeOf(args.dtype) == 0) return wrong(Format("no dtype has number %d", args.dtype));
  if (ReducesData(args.kind) && (args.reduce_op < EPL_SUM || args.reduce_op > EPL_MAX)) {
    return wrong(Format("no reduction has number %d", args.reduce_op));
  }
  if (HasRoot(args.kind) && (args.root < 0 || args.root >= members.size())) {
    return wrong(Format("root %d, expected 0 <= root < %d", args.root, members.size()));
  }
  const bool rows = MovesRows(args.kind);
  if (args.num_buffers < (rows ? 1 : 0) || (rows && args.num_buffers > 1)) {
    return wrong(Format("%d buffers, expected %s", args.num_buffers, rows ? "1" : "0 or more"));
  }
  for (int i = 0; i < args.num_buffers; ++i) {
    if (args.counts[i] < 0) return wrong(Format("buffer %d has a negative number of elements", i));
  }
  if (!rows) return Status();
  if (allocate == nullptr) return wrong("no function to allocate the output with");
  if (args.row_elements < 0 || (args.row_elements == 0 && args.counts[0] != 0) ||
      (args.row_elements > 0 && args.counts[0] % args.row_elements != 0)) {
    return wrong(Format("%lld elements are no whole number of rows of %lld", static_cast<long long>(args.counts[0]),
                        static_cast<long long>(args.row_elements)));
  }
  if (args.kind == EPL_ALL_TO_ALL) {
    if (args.row_splits == nullptr) return wrong("row_splits is NULL");
    int64_t sum = 0;
    for (int r = 0; r < members.size(); ++r) {
      if (args.row_splits[r] < 0) return wrong(Format("a negative number of rows for rank %d", r));
      sum += args.row_splits[r];
    }
    if (args.row_elements > 0 && sum != RowsOf(args)) {
      return wrong(Format("the row splits add up to %lld, the input has %lld rows", static_cast<long long>(sum),
                          static_cast<long long>(RowsOf(args))));
    }
  }
  return Status();
}

int64_t Announcement::MaxSize(const Members& members) {
  int64_t ranks = 0;
  for (const std::vector<int>& of : members.ranks_of) ranks = std::max<int64_t>(ranks, of.size());
  return 256 + 2 * kMaxText + 8 * kMaxCounts + 8 * ranks * members.size();
}

std::string Announcement::Pack() const {
  Writer writer;
  writer.Put<int32_t>(error.code()).PutBytes(Shorten(error.message(), kMaxText)).Put<int32_t>(rank);
  // A key that is too long to travel is told apart by its hash.
  std::string name = key;
  if (name.size() > kMaxText - 32) {
    uint64_t hash = 0;
    for (char c : name) hash = Mix(hash, static_cast<uint8_t>(c));
    name = Format("%s...%016llx", name.substr(0, kMaxText - 32).c_str(), static_cast<unsigned long long>(hash));
  }
  writer.PutBytes(name).Put(kind).Put(dtype).Put(reduce_op).Put(root).Put(row_elements);
  writer.Put(num_buffers).Put(total).Put(fingerprint);
  writer.Put<int32_t>(counts.size());
  for (int64_t count : counts) writer.Put(count);
  writer.Put<int32_t>(rows.size());
  for (int64_t row : rows) writer.Put(row);
  return writer.bytes();
}

Announcement Announcement::Unpack(const std::string& bytes) {
  Reader reader(bytes);
  Announcement it;
  int code = reader.Get<int32_t>();
  it.error = Status(code, std::string(reader.GetBytes()));
  it.rank = reader.Get<int32_t>();
  it.key = std::string(reader.GetBytes());
  it.kind = reader.Get<int32_t>();
  it.dtype = reader.Get<int32_t>();
  it.reduce_op = reader.Get<int32_t>();
  it.root = reader.Get<int32_t>();
  it.row_elements = reader.Get<int64_t>();
  it.num_buffers = reader.Get<int32_t>();
  it.total = reader.Get<int64_t>();
  it.fingerprint = reader.Get<uint64_t>();
  it.counts.resize(reader.GetCount(kMaxCounts, sizeof(int64_t)));
  for (int64_t& count : it.counts) count = reader.Get<int64_t>();
  it.rows.resize(reader.GetCount(INT32_MAX, sizeof(int64_t)));
  for (int64_t& row : it.rows) row = reader.Get<int64_t>();
  if (!reader.done()) it.error = Damaged();
  return it;
}

Announcement Announce(const Op& op, const Members& members) {
  for (const Request* request : op.requests) {
    if (request->error.ok()) continue;
    Announcement broken;
    broken.rank = request->rank;
    broken.error = request->error;
    return broken;
  }
  Announcement first = Describe(*op.requests[0]);
  for (const Request* request : op.requests) {
    const epl_collective& args = request->args;
    if (request != op.requests[0]) {
      std::string difference = Difference(first, Describe(*request));
      if (!difference.empty() && first.error.ok()) first.error = Status(EPL_INVALID_ARGUMENT, difference);
    }
    if (args.kind == EPL_ALL_TO_ALL && first.kind == EPL_ALL_TO_ALL) {
      first.rows.insert(first.rows.end(), args.row_splits, args.row_splits + members.size());
    } else if (args.kind == EPL_ALL_GATHER && first.kind == EPL_ALL_GATHER) {
      first.rows.push_back(RowsOf(args));
    }
  }
  return first;
}

Status CheckSame(const std::vector<Announcement>& all, const Members& members, const std::string& communicator) {
  auto say = [&](const std::string& text) {
    return Status(EPL_INVALID_ARGUMENT, "the ranks of communicator '" + communicator + "' disagree: " + text);
  };
  for (const Announcement& it : all) {
    if (!it.error.ok()) return say(it.error.message());
  }
  for (const Announcement& it : all) {
    std::string difference = Difference(all[0], it);
    if (!difference.empty()) return say(difference);
  }
  for (int member = 0; member < members.num_members(); ++member) {
    if (!RowsFit(all[member], members, member)) return Damaged();
  }
  return Status();
}

}  // namespace epl
