// Checks of what came over the wire.

#include "comm/messages.h"

#include <cmath>
#include <set>

#include "comm/wire.h"

namespace epl {
namespace {

// Far beyond any number of steps, and far enough from the end of the numbers to count on from it.
constexpr int64_t kMostGenerations = int64_t{1} << 60;

// One process after the other, none twice.
bool GetProcesses(Reader* reader, int num_processes, std::vector<int>* processes) {
  std::set<int> seen;
  for (int left = reader->GetCount(num_processes, sizeof(int32_t)); left > 0; --left) {
    const int process = reader->Get<int32_t>();
    if (process < 0 || process >= num_processes || !seen.insert(process).second) return false;
    processes->push_back(process);
  }
  return true;
}

bool GetProcess(Reader* reader, int num_processes, int* process) {
  *process = reader->Get<int32_t>();
  return *process >= 0 && *process < num_processes;
}

bool GetGeneration(Reader* reader, int64_t* generation) {
  *generation = reader->Get<int64_t>();
  return *generation >= 0 && *generation < kMostGenerations;
}

// Seconds of some processes, none twice.
bool GetSilences(Reader* reader, int num_processes, std::vector<double>* silences) {
  silences->assign(num_processes, 0);
  for (int left = reader->GetCount(num_processes, sizeof(int32_t) + sizeof(double)); left > 0; --left) {
    int process = 0;
    if (!GetProcess(reader, num_processes, &process) || (*silences)[process] != 0) return false;
    const double seconds = (*silences)[process] = reader->Get<double>();
    if (!std::isfinite(seconds) || seconds <= 0) return false;
  }
  return true;
}

std::string GetText(Reader* reader) { return std::string(reader->GetBytes()); }

}  // namespace

bool Parse(std::string_view message, int num_processes, ToCoordinator* parsed) {
  Reader reader(message);
  bool sane = true;
  parsed->kind = reader.Get<Message>();
  switch (parsed->kind) {
    case Message::kGather:
      parsed->key = GetText(&reader);
      sane = GetProcesses(&reader, num_processes, &parsed->members) && !parsed->members.empty();
      parsed->bytes = GetText(&reader);
      break;
    case Message::kWithdraw:
    case Message::kQuery:
      parsed->key = GetText(&reader);
      break;
    case Message::kEndGeneration:
      sane = GetGeneration(&reader, &parsed->generation);
      parsed->reason = GetText(&reader);
      break;
    case Message::kAbort:
      parsed->reason = GetText(&reader);
      break;
    case Message::kGoodbye:
    case Message::kPulse:
      break;
    default:
      sane = false;
  }
  return sane && reader.done();
}

bool Parse(std::string_view message, int num_processes, FromCoordinator* parsed) {
  Reader reader(message);
  bool sane = true;
  parsed->kind = reader.Get<Message>();
  switch (parsed->kind) {
    case Message::kGathered:
      parsed->key = GetText(&reader);
      parsed->parts.resize(reader.GetCount(num_processes, sizeof(int64_t)));
      for (std::string& part : parsed->parts) part = GetText(&reader);
      break;
    case Message::kWithdrawn:
      parsed->key = GetText(&reader);
      break;
    case Message::kMissing:
      parsed->key = GetText(&reader);
      sane = GetProcesses(&reader, num_processes, &parsed->missing);
      break;
    case Message::kEnded:
      sane = GetProcess(&reader, num_processes, &parsed->process) && GetGeneration(&reader, &parsed->generation);
      parsed->reason = GetText(&reader);
      break;
    case Message::kAborted:
    case Message::kDied:
      sane = GetProcess(&reader, num_processes, &parsed->process);
      parsed->reason = GetText(&reader);
      break;
    case Message::kLeft:
      sane = GetProcess(&reader, num_processes, &parsed->process);
      break;
    case Message::kSilent:
      sane = GetSilences(&reader, num_processes, &parsed->silences);
      break;
    default:
      sane = false;
  }
  return sane && reader.done();
}

}  // namespace epl
