// The coordinator's message handling.

#include "comm/coordinator.h"

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

bool Coordinator::Handle(int from, std::string_view message) {
  if (gone_[from]) return true;  // what it says after its goodbye matters to nobody
  Reader reader(message);
  switch (reader.Get<Message>()) {
    case Message::kGather:
      return HandleGather(from, message);
    case Message::kWithdraw: {
      std::string key(reader.GetBytes());
      auto it = gatherings_.find(key);
      if (it == gatherings_.end()) return reader.ok();  // complete: kGathered was sent
      it->second.parts.erase(from);
      it->second.gave_up.insert(from);
      if (it->second.parts.empty()) gatherings_.erase(it);
      emit_(from, Writer().Put(Message::kWithdrawn).PutBytes(key).bytes());
      return reader.ok();
    }
    case Message::kQuery: {
      std::string key(reader.GetBytes());
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
      return reader.ok();
    }
    case Message::kEndGeneration: {
      int64_t generation = reader.Get<int64_t>();
      std::string_view reason = reader.GetBytes();
      Broadcast(from, Writer().Put(Message::kEnded).Put<int32_t>(from).Put(generation).PutBytes(reason).bytes());
      return reader.ok();
    }
    case Message::kAbort:
      Broadcast(from, Writer().Put(Message::kAborted).Put<int32_t>(from).PutBytes(reader.GetBytes()).bytes());
      return reader.ok();
    case Message::kGoodbye:
      gone_[from] = true;
      Broadcast(from, Writer().Put(Message::kLeft).Put<int32_t>(from).bytes());
      return true;
    default:
      return false;
  }
}

bool Coordinator::HandleGather(int from, std::string_view message) {
  Reader reader(message);
  reader.Get<Message>();
  std::string key(reader.GetBytes());
  std::vector<int> members(reader.Get<int32_t>());
  for (int& member : members) member = reader.Get<int32_t>();
  std::string_view bytes = reader.GetBytes();
  if (!reader.ok()) return false;
  Gathering& gathering = gatherings_[key];
  gathering.members = members;
  gathering.parts[from] = std::string(bytes);
  gathering.gave_up.erase(from);
  if (gathering.parts.size() < members.size()) return true;
  Writer writer;
  writer.Put(Message::kGathered).PutBytes(key).Put<int32_t>(members.size());
  for (int member : members) writer.PutBytes(gathering.parts[member]);
  for (int member : members) {
    if (!gone_[member]) emit_(member, writer.bytes());
  }
  gatherings_.erase(key);
  return true;
}

void Coordinator::Lost(int process, const std::string& reason) {
  if (gone_[process]) return;
  gone_[process] = true;
  Broadcast(process, Writer().Put(Message::kDied).Put<int32_t>(process).PutBytes(reason).bytes());
}

}  // namespace epl
