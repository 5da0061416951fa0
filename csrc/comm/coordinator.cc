// The coordinator's message handling.

#include "comm/coordinator.h"

#include <algorithm>
#include <utility>

#include "comm/wire.h"

namespace epl {

Coordinator::Coordinator(int num_processes, Emit emit)
    : num_processes_(num_processes), emit_(std::move(emit)), gone_(num_processes) {}

void Coordinator::Broadcast(int except, const std::string& message) {
  for (int process = 0; process < num_processes_; ++process) {
    if (process != except && !gone_[process]) emit_(process, message);
  }
}

std::string Coordinator::Handle(int from, std::string_view bytes) {
  if (gone_[from]) return "";  // what it says after its goodbye matters to nobody
  ToCoordinator message;
  if (!Parse(bytes, num_processes_, &message)) return "it sent what makes no sense";
  switch (message.kind) {
    case Message::kGather:
      return HandleGather(from, std::move(message));
    case Message::kWithdraw:
      HandleWithdraw(from, message.key);
      break;
    case Message::kQuery:
      HandleQuery(from, message.key);
      break;
    case Message::kEndGeneration:
      Broadcast(
          from,
          Writer().Put(Message::kEnded).Put<int32_t>(from).Put(message.generation).PutBytes(message.reason).bytes());
      break;
    case Message::kAbort:
      Broadcast(from, Writer().Put(Message::kAborted).Put<int32_t>(from).PutBytes(message.reason).bytes());
      break;
    case Message::kPulse:  // the control plane answers it
      break;
    default:  // kGoodbye
      gone_[from] = true;
      Broadcast(from, Writer().Put(Message::kLeft).Put<int32_t>(from).bytes());
  }
  return "";
}

std::string Coordinator::HandleGather(int from, ToCoordinator message) {
  const std::string& key = message.key;
  const std::vector<int>& members = message.members;
  if (std::find(members.begin(), members.end(), from) == members.end()) {
    return "it gathers '" + key + "', of which it is no member";
  }
  Gathering& gathering = gatherings_[key];
  if (gathering.members.empty()) gathering.members = members;
  // Processes that disagree on their order only learn that from each other's bytes.
  if (!std::is_permutation(members.begin(), members.end(), gathering.members.begin(), gathering.members.end())) {
    return "it gathers '" + key + "' over other processes than the workers before it";
  }
  gathering.parts[from] = std::move(message.bytes);
  gathering.gave_up.erase(from);
  if (gathering.parts.size() < members.size()) return "";
  Writer writer;
  writer.Put(Message::kGathered).PutBytes(key).Put<int32_t>(members.size());
  for (int member : members) writer.PutBytes(gathering.parts.at(member));
  for (int member : members) {
    if (!gone_[member]) emit_(member, writer.bytes());
  }
  gatherings_.erase(key);
  return "";
}

void Coordinator::HandleWithdraw(int from, const std::string& key) {
  auto it = gatherings_.find(key);
  if (it == gatherings_.end()) return;  // complete: kGathered was sent
  it->second.parts.erase(from);
  it->second.gave_up.insert(from);
  if (it->second.parts.empty()) gatherings_.erase(it);
  emit_(from, Writer().Put(Message::kWithdrawn).PutBytes(key).bytes());
}

void Coordinator::HandleQuery(int from, const std::string& key) {
  std::vector<int> missing;
  auto it = gatherings_.find(key);
  if (it != gatherings_.end()) {
    for (int member : it->second.members) {
      if (it->second.parts.count(member) + it->second.gave_up.count(member) == 0) missing.push_back(member);
    }
  }
  Writer writer;
  writer.Put(Message::kMissing).PutBytes(key).Put<int32_t>(missing.size());
  for (int process : missing) writer.Put<int32_t>(process);
  emit_(from, writer.bytes());
}

void Coordinator::Lost(int process, const std::string& reason) {
  if (gone_[process]) return;
  gone_[process] = true;
  Broadcast(process, Writer().Put(Message::kDied).Put<int32_t>(process).PutBytes(reason).bytes());
}

}  // namespace epl
