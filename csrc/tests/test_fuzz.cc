// What comes over the wire and is no message of a job: 200,000 mutated messages, and damaged ones by hand. To be run
// under the sanitizers; nothing may be read or written out of its place, no count believed that the bytes do not bear
// out.

#include <string.h>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "comm/collective.h"
#include "comm/coordinator.h"
#include "comm/handshake.h"
#include "comm/messages.h"
#include "comm/pulse.h"
#include "comm/wire.h"
#include "tests/check.h"

namespace epl_test {
namespace {

using epl::FromCoordinator;
using epl::Message;
using epl::ToCoordinator;
using epl::Writer;

constexpr int kProcesses = 4;

int Rounds() { return quick ? 4000 : 200000; }

// Changes a message as a broken or hostile sender would.
std::string Mutate(std::string bytes, std::mt19937* random) {
  static const std::vector<int64_t> numbers = {-1,        0,         1,         kProcesses, INT32_MAX,
                                               INT32_MIN, INT64_MAX, INT64_MIN, 1 << 20};
  auto below = [&](size_t limit) { return limit == 0 ? 0 : (*random)() % limit; };
  for (int changes = 1 + below(3); changes > 0; --changes) {
    const int64_t number = numbers[below(numbers.size())];
    const size_t width = below(2) == 0 ? sizeof(int32_t) : sizeof(int64_t);
    switch (below(5)) {
      case 0:
        if (!bytes.empty()) bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        bytes.resize(below(bytes.size() + 1));
        break;
      case 2:
        bytes.append(1 + below(20), static_cast<char>(below(256)));
        break;
      case 3:
        if (bytes.size() >= width) memcpy(&bytes[below(bytes.size() - width + 1)], &number, width);
        break;
      default:
        bytes.insert(below(bytes.size() + 1), reinterpret_cast<const char*>(&number), width);
    }
  }
  return bytes;
}

void Fuzz(const std::vector<std::string>& seeds, const std::function<void(const std::string&)>& take) {
  std::mt19937 random(1);
  for (int round = 0; round < Rounds(); ++round) take(Mutate(seeds[random() % seeds.size()], &random));
}

std::string Gather(const std::string& key, const std::vector<int>& members, int64_t count) {
  Writer writer;
  writer.Put(Message::kGather).PutBytes(key).Put<int32_t>(count);
  for (int member : members) writer.Put<int32_t>(member);
  return writer.PutBytes("some bytes").bytes();
}

std::string Gather(const std::string& key, const std::vector<int>& members) {
  return Gather(key, members, members.size());
}

std::string Silent(const std::vector<std::pair<int32_t, double>>& silences) {
  Writer writer;
  writer.Put(Message::kSilent).Put<int32_t>(silences.size());
  for (const auto& entry : silences) writer.Put(entry.first).Put(entry.second);
  return writer.bytes();
}

std::vector<std::string> MessagesToCoordinator() {
  return {
      Gather("a", {0, 1}),
      Gather("b", {0, 1, 2, 3}),
      Writer().Put(Message::kWithdraw).PutBytes("a").bytes(),
      Writer().Put(Message::kQuery).PutBytes("b").bytes(),
      Writer().Put(Message::kEndGeneration).Put<int64_t>(7).PutBytes("no data").bytes(),
      Writer().Put(Message::kAbort).PutBytes("reason").bytes(),
      Writer().Put(Message::kPulse).bytes(),
  };
}

std::vector<std::string> MessagesFromCoordinator() {
  return {
      Writer().Put(Message::kGathered).PutBytes("a").Put<int32_t>(2).PutBytes("x").PutBytes("").bytes(),
      Writer().Put(Message::kWithdrawn).PutBytes("a").bytes(),
      Writer().Put(Message::kMissing).PutBytes("b").Put<int32_t>(2).Put<int32_t>(1).Put<int32_t>(3).bytes(),
      Writer().Put(Message::kEnded).Put<int32_t>(3).Put<int64_t>(7).PutBytes("no data").bytes(),
      Writer().Put(Message::kAborted).Put<int32_t>(2).PutBytes("reason").bytes(),
      Writer().Put(Message::kDied).Put<int32_t>(1).PutBytes("reason").bytes(),
      Writer().Put(Message::kLeft).Put<int32_t>(0).bytes(),
      Silent({{2, 40.5}, {3, 7}}),
  };
}

}  // namespace

TEST(a_gathering_with_a_count_that_cannot_be_is_refused) {
  epl::Coordinator coordinator(kProcesses, [](int, const std::string&) {});
  for (int64_t count : {int64_t{-1}, int64_t{INT32_MAX}, int64_t{0}, int64_t{1}, int64_t{3}}) {
    CHECK(coordinator.Handle(1, Gather("k", {0, 1}, count)) == "it sent what makes no sense");
  }
  CHECK(coordinator.Handle(1, Gather("k", {1, 4})) == "it sent what makes no sense");
  CHECK(coordinator.Handle(1, Gather("k", {-1, 1})) == "it sent what makes no sense");
  CHECK(coordinator.Handle(1, Gather("k", {1, 1})) == "it sent what makes no sense");
  CHECK(coordinator.Handle(1, Gather("k", {0, 2})) == "it gathers 'k', of which it is no member");
  CHECK(coordinator.Handle(1, Gather("k", {0, 1})).empty());
  CHECK(coordinator.Handle(2, Gather("k", {1, 2})) == "it gathers 'k' over other processes than the workers before it");
}

TEST(a_message_of_the_coordinator_with_numbers_that_cannot_be_is_refused) {
  FromCoordinator parsed;
  for (const std::string& message : MessagesFromCoordinator()) {
    CHECK(epl::Parse(message, kProcesses, &parsed));
    parsed = FromCoordinator();
  }
  for (int32_t count : {-1, INT32_MAX, kProcesses + 1}) {
    CHECK(!epl::Parse(Writer().Put(Message::kGathered).PutBytes("a").Put(count).bytes(), kProcesses, &parsed));
    CHECK(!epl::Parse(Writer().Put(Message::kMissing).PutBytes("a").Put(count).bytes(), kProcesses, &parsed));
    CHECK(!epl::Parse(Writer().Put(Message::kLeft).Put(count).bytes(), kProcesses, &parsed));
  }
  for (int64_t generation : {int64_t{-1}, INT64_MAX}) {
    CHECK(!epl::Parse(Writer().Put(Message::kEnded).Put<int32_t>(0).Put(generation).PutBytes("").bytes(), kProcesses,
                      &parsed));
  }
  for (const auto& entry :
       std::vector<std::pair<int32_t, double>>{{-1, 1}, {kProcesses, 1}, {2, 0}, {2, -1}, {2, NAN}}) {
    CHECK(!epl::Parse(Silent({entry}), kProcesses, &parsed));
  }
  CHECK(!epl::Parse(Silent({{2, 1}, {2, 1}}), kProcesses, &parsed));
}

TEST(a_pulse_is_no_more_than_a_pulse) {
  epl::Coordinator coordinator(kProcesses, [](int, const std::string&) { CHECK(false); });
  CHECK(coordinator.Handle(1, Writer().Put(Message::kPulse).bytes()).empty());
  CHECK(!coordinator.gone(1));
  CHECK(coordinator.Handle(1, Writer().Put(Message::kPulse).Put<uint8_t>(0).bytes()) == "it sent what makes no sense");
}

TEST(what_worker_0_says_of_silence_is_forgotten_when_it_is_gone) {
  epl::Pulse pulse(kProcesses);
  FromCoordinator parsed;
  CHECK(epl::Parse(Silent({{2, 40.5}}), kProcesses, &parsed));
  pulse.Take(parsed.silences);
  CHECK(pulse.Silences() == std::vector<double>({0, 0, 40.5, 0}));
  pulse.Gone(1);
  CHECK(pulse.Silences() == std::vector<double>({0, 0, 40.5, 0}));
  pulse.Gone(0);
  CHECK(pulse.Silences() == std::vector<double>(kProcesses));
}

TEST(mutated_messages_to_the_coordinator) {
  int refused = 0, answered = 0;
  std::unique_ptr<epl::Coordinator> coordinator;
  int round = 0;
  Fuzz(MessagesToCoordinator(), [&](const std::string& message) {
    if (round++ % 100 == 0) {
      coordinator.reset(new epl::Coordinator(kProcesses, [&](int to, const std::string& answer) {
        // What the coordinator says must be what a job takes.
        FromCoordinator parsed;
        CHECK(to >= 0 && to < kProcesses);
        CHECK(epl::Parse(answer, kProcesses, &parsed));
        ++answered;
      }));
    }
    refused += !coordinator->Handle(round % kProcesses, message).empty();
  });
  CHECK(refused > Rounds() / 2);
  CHECK(answered > Rounds() / 100);
}

TEST(mutated_messages_of_the_coordinator) {
  int taken = 0;
  Fuzz(MessagesFromCoordinator(), [&](const std::string& message) {
    FromCoordinator parsed;
    if (!epl::Parse(message, kProcesses, &parsed)) return;
    ++taken;
    CHECK(parsed.process >= 0 && parsed.process < kProcesses);
    CHECK(parsed.parts.size() <= kProcesses && parsed.missing.size() <= kProcesses);
    for (int process : parsed.missing) CHECK(process >= 0 && process < kProcesses);
    CHECK(parsed.generation >= 0 && parsed.generation + 1 > 0);
    CHECK(parsed.silences.empty() || parsed.silences.size() == kProcesses);
    for (double silence : parsed.silences) CHECK(std::isfinite(silence) && silence >= 0);
  });
  CHECK(taken > Rounds() / 100);
}

TEST(mutated_descriptions_of_collectives) {
  epl::Members members;
  members.rank_process = {0, 0, 1};
  members.processes = {0, 1};
  members.ranks_of = {{0, 1}, {2}};
  std::vector<std::string> seeds;
  for (epl_kind kind : {EPL_ALL_GATHER, EPL_ALL_TO_ALL, EPL_ALL_REDUCE}) {
    epl::Announcement it;
    it.key = "gradients/0";
    it.kind = kind;
    it.dtype = EPL_FLOAT32;
    it.row_elements = kind == EPL_ALL_REDUCE ? 0 : 3;
    it.counts = {1, 2};
    it.rows.assign(kind == EPL_ALL_GATHER ? 1 : kind == EPL_ALL_TO_ALL ? 3 : 0, 5);
    seeds.push_back(it.Pack());
  }
  int taken = 0;
  Fuzz(seeds, [&](const std::string& bytes) {
    std::vector<epl::Announcement> all(2, epl::Announcement::Unpack(bytes));
    all[0].rows.resize(all[1].rows.size() * 2, 0);  // it has twice as many ranks
    if (!epl::CheckSame(all, members, "world").ok()) return;
    ++taken;
    int64_t elements = 0;
    for (int64_t rows : all[1].rows) {
      CHECK(rows >= 0);
      CHECK(!__builtin_add_overflow(elements, rows * all[1].row_elements, &elements));
    }
    CHECK(all[1].kind != EPL_ALL_GATHER || all[1].rows.size() == 1);
    CHECK(all[1].kind != EPL_ALL_TO_ALL || all[1].rows.size() == 3);
  });
  CHECK(taken > Rounds() / 100);
}

TEST(mutated_handshakes) {
  epl::Identity server_is, client_is;
  server_is.num_processes = client_is.num_processes = kProcesses;
  server_is.job = client_is.job = "job 7";
  client_is.process = 1;
  // Stands in for the real one, which is not the core's.
  server_is.mac = client_is.mac = [](std::string_view text) {
    return std::string(32, static_cast<char>(std::hash<std::string_view>()(text)));
  };
  std::mt19937 random(1);
  int admitted = 0;
  for (int round = 0; round < Rounds(); ++round) {
    epl::ServerHandshake server(server_is, 99);
    epl::ClientHandshake client(client_is);
    const int damaged = random() % 5;  // which of the four frames; 4: none
    auto carry = [&](int number, const std::string& frame) {
      return number == damaged ? Mutate(frame, &random) : frame;
    };
    epl::HandshakeStep step = server.Take(carry(0, client.hello()));
    if (step.kind != epl::HandshakeStep::kSend) continue;
    step = client.Take(carry(1, step.text));
    if (step.kind != epl::HandshakeStep::kSend) continue;
    step = server.Take(carry(2, step.text));
    if (step.kind != epl::HandshakeStep::kDone) continue;
    CHECK(server.process() == 1);
    step = client.Take(carry(3, step.text));
    CHECK(client.server_is_proven() == (step.kind == epl::HandshakeStep::kWait));
    for (const std::string& frame : {epl::ServerHandshake::Waiting("for 2"), epl::ServerHandshake::Refused("late", 4),
                                     epl::ServerHandshake::Start()}) {
      client.Take(Mutate(frame, &random));
    }
    ++admitted;
  }
  CHECK(admitted > Rounds() / 10);
}

}  // namespace epl_test
